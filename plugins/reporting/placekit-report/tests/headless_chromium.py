"""A headless Chromium for tests of pages. It speaks the DevTools protocol over two pipes: no driver, no port, no other package.

Playwright's wheel has 53 MB and Selenium's 12 MB with a driver beside it; the few calls that tests need are below.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
    "--force-color-profile=srgb", "--host-resolver-rules=MAP * ~NOTFOUND", "about:blank",
)  # fmt: skip
CODES = {
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13, "Escape": 27, "Home": 36,
    "End": 35, "PageUp": 33, "PageDown": 34, "Space": 32,
}  # fmt: skip
MODIFIERS = {"alt": 1, "ctrl": 2, "meta": 4, "shift": 8}


def chromium() -> Path | None:
    """The Chromium of this machine, if it has one."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return None if found is None else Path(found)


class Browser:
    """One page in a headless Chromium. Close it with `with`, or `close()`.

    Attributes:
        errors: what the page wrote to the console as an error or a warning, and uncaught exceptions.
        requests: the addresses that the page asked for, its own among them.
    """

    def __init__(self, width: int = 1280, height: int = 900, timeout_s: float = 30.0) -> None:
        """Raises FileNotFoundError if there is no Chromium."""
        program = chromium()
        if program is None:
            raise FileNotFoundError(f"none of {', '.join(NAMES)} is on the path")
        self.timeout_s = timeout_s
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._last, self._rest, self._session = 0, b"", ""
        self._folder = tempfile.TemporaryDirectory(prefix="placekit-browser-", ignore_cleanup_errors=True)
        self._pid = self._start(program)
        try:
            [page] = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
            answer = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
            self._session = answer["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.emulate(width, height)
        except BaseException:
            self.close()
            raise

    def _start(self, program: Path) -> int:
        """Start the browser in a group of its own; it reads from descriptor 3 and writes to 4."""
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        # Numbers above 10, so that copying one to 3 does not close the other.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (read, write)]
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        actions += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        flags = [*FLAGS[:-1], f"--user-data-dir={self._folder.name}"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to run as root with its sandbox
        try:
            return os.posix_spawn(
                program, [str(program), *flags, FLAGS[-1]], os.environ, file_actions=actions, setpgroup=0
            )
        finally:
            for fd in (read, write, *high):
                os.close(fd)

    def call(self, method: str, **parameters: Any) -> Any:
        """The answer to a method of the DevTools protocol. Raises RuntimeError if it fails, TimeoutError if none comes."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._write, data) :]
        until = time.monotonic() + self.timeout_s
        while True:
            answer = self._receive(until)
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no answer of the browser in {self.timeout_s:g} s")
            part = os.read(self._read, 2**20)
            if not part:
                raise RuntimeError("the browser ended")
            self._rest += part
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case str():
                self._events.append(message)
        return message

    def emulate(
        self, width: int = 1280, height: int = 900, *, scale: float = 1.0, dark: bool = False, touch: bool = False,
        scripts: bool = True, still: bool = False, media: str = "",
    ) -> None:  # fmt: skip
        """The screen of the next pages: `scale` device pixels per pixel; `still` asks for little motion, `media` may be print."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=touch
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        features = {"prefers-color-scheme": "dark" if dark else "light"}
        features["prefers-reduced-motion"] = "reduce" if still else "no-preference"
        self.call(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": n, "value": v} for n, v in features.items()]
        )

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there; forgets earlier errors and requests."""
        self.errors, self.requests, self._events = [], [], []
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + self.timeout_s
        while not any(e["method"] == "Page.loadEventFired" for e in self._events):
            self._receive(until)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, after its promise if it is one. Raises RuntimeError if it throws."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["result"].get("description", answer["exceptionDetails"]["text"]))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page has drawn twice."""
        self.evaluate("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(() => f(0))))")

    def key(self, key: str, *modifiers: str) -> None:
        """Press and release a key: a name of `CODES`, or a character."""
        held = sum(MODIFIERS[m] for m in modifiers)
        text = "\r" if key == "Enter" else "" if len(key) > 1 else key
        code = CODES.get(key) or ord(key.upper())
        down = {"key": key, "windowsVirtualKeyCode": code, "modifiers": held}
        self.call("Input.dispatchKeyEvent", type="keyDown", **down, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **down)

    def insert(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """An event of the mouse (`mouseMoved`, `mousePressed`, `mouseReleased`, `mouseWheel`) at a point of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, x: float, y: float, to_x: float, to_y: float, steps: int = 4) -> None:
        """Press the left button, move, release it; with no distance, a click."""
        button = {"button": "left", "buttons": 1, "clickCount": 1}
        self.mouse("mousePressed", x, y, **button)
        for i in range(1, steps + 1):
            self.mouse("mouseMoved", x + (to_x - x) * i / steps, y + (to_y - y) * i / steps, button="left", buttons=1)
        self.mouse("mouseReleased", to_x, to_y, **button)

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        """Write a PNG of the window; `full`, of the whole page."""
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(image["data"]))

    def close(self) -> None:
        """End the browser and its processes."""
        if self._pid:
            os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
            os.close(self._read)
            os.close(self._write)
            self._folder.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
