"""The parameter server: parameters, optimisers and the budget of an asynchronous training, in one Ray actor.

Mirhoseini et al. 2017, section 3.4. Every change is a call with plain arguments. A call is written to a log before it is
carried out, so that a server that is killed and restarted repeats the log and has the same state to the last bit. Every call
of a controller carries a number; a call that Ray repeats, because its answer was lost, is carried out once.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_learn.optimisers import OPTIMISERS, Optimiser

from placekit_core import pack_state, unpack_state, write_atomically

Arrays = Mapping[str, Any]
SNAPSHOT = "server.npz"
_LOG_BYTES, _SNAPSHOTS = 64 * 2**20, 4
"""A log that is longer, and so many times as long as the last snapshot, becomes a snapshot."""


class Log:
    """Calls on disk, each as its length and a state with a checksum; they belong to the snapshot of the same number."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / f"calls-{number}.log"
        self.file = self.path.open("ab")

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.file.tell()

    def write(self, name: str, arguments: Sequence[Any]) -> None:
        """Add a call. It is in the hands of the system when this returns: the end of this process does not lose it."""
        data = pack_state({"call": name, "arguments": list(arguments)})
        self.file.write(len(data).to_bytes(8, "big") + data)
        self.file.flush()

    def read(self) -> Iterator[tuple[str, list[Any]]]:
        """All calls; one that was being written when the process ended is cut off."""
        data, at = self.path.read_bytes(), 0
        while at + 8 <= len(data):
            size = int.from_bytes(data[at : at + 8], "big")
            try:
                call = unpack_state(data[at + 8 : at + 8 + size])
            except ValueError:
                break
            yield call["call"], call["arguments"]
            at += 8 + size
        self.file.truncate(at)

    def close(self) -> None:
        """Remove it."""
        self.file.close()
        self.path.unlink(missing_ok=True)


class ParameterServer:
    """The state that controllers share; in `folder`, a snapshot and a log of the calls since then.

    Attributes:
        version: number of steps so far.
        parameters: after these steps.
        recorded: evaluations that the driver has not taken yet; `first` is the number of the first of them.
        round: where controllers wait for each other, the evaluations since the last step, by controller: they are told in this
            order, so that equal seeds give equal histories.
        lives: how often each controller was started; calls of earlier lives, which may arrive late, change nothing.
        pending: for each controller, its evaluations of which no step was made yet; `lost` counts those of controllers that died.
        restarts: how often a controller or the server was started again.
        staleness: for each staleness, how many gradients had it: the steps that others made since their parameters were read.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.waiting: dict[int, tuple[tuple[Any, ...], asyncio.Future[None]]] = {}
        self.here: set[int] = set()
        self.all_here = asyncio.Event()
        self.number = self.saved_bytes = 0
        path = self.folder / SNAPSHOT
        if not path.is_file():  # it is told what to begin with
            return
        self.saved_bytes = path.stat().st_size
        data = unpack_state(path.read_bytes())
        self.number = int(data["number"])
        self._restore(data["state"])
        self.log = Log(self.folder, self.number)
        for name, arguments in list(self.log.read()):
            getattr(self, f"_{name}")(*arguments)
        self._do("restart")
        self.all_here.set()  # who had arrived does not come again

    async def begin(self, about: Mapping[str, Any]) -> None:
        """Begin with `about`, plain data; nothing if it has begun already.

        It has `parameters`, `optimiser` (a name in OPTIMISERS), `controllers`, `synchronous`, `limit` (evaluations that may be
        made; None: no limit) and `progress` (share of the budget that was used before). A state of `snapshot` will do, too.
        """
        if not self.number:
            self._restore(about if "version" in about else self._first(about))
            self._save()
            self.log = Log(self.folder, self.number)

    def _first(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """The state before the first step."""
        count = about["controllers"]
        return {
            **about, "optimisers": {}, "version": 0, "first": 0, "recorded": [], "closed": False,
            "lives": [0] * count, "round": [[] for _ in range(count)],
            "steps": [0] * count, "tickets": [0] * count, "granted": [0] * count, "kept": [None] * count,
            "left": [False] * count, "used": [0] * count, "pending": [0] * count, "staleness": {}, "evaluations": 0,
            "lost": 0, "restarts": -count, "told": 0.0,
        }  # fmt: skip

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.about = {key: state[key] for key in ("optimiser", "controllers", "synchronous", "limit", "progress")}
        self.parameters = {name: np.array(values) for name, values in state["parameters"].items()}
        self.optimisers: dict[str, Optimiser] = {}
        for name, saved in state["optimisers"].items():
            self._optimiser(name).restore(saved)
        self.version, self.first = int(state["version"]), int(state["first"])
        self.recorded: list[Any] = list(state["recorded"])
        self.steps, self.tickets = list(state["steps"]), list(state["tickets"])
        self.granted, self.kept, self.left = list(state["granted"]), list(state["kept"]), list(state["left"])
        self.used, self.lives = list(state["used"]), list(state["lives"])
        self.round: list[list[Any]] = [list(each) for each in state["round"]]
        self.staleness = {int(k): int(v) for k, v in state["staleness"].items()}
        self.pending, self.lost, self.evaluations = (
            list(state["pending"]),
            int(state["lost"]),
            int(state["evaluations"]),
        )
        self.closed, self.told, self.restarts = bool(state["closed"]), float(state["told"]), int(state["restarts"])

    def _state(self) -> dict[str, Any]:
        return {
            **self.about,
            "parameters": self.parameters,
            "optimisers": {name: o.state() for name, o in self.optimisers.items()},
            "version": self.version, "first": self.first, "recorded": self.recorded, "closed": self.closed,
            "lives": self.lives, "round": self.round,
            "steps": self.steps, "tickets": self.tickets, "granted": self.granted, "kept": self.kept,
            "left": self.left, "used": self.used, "pending": self.pending, "staleness": self.staleness,
            "evaluations": self.evaluations, "lost": self.lost, "restarts": self.restarts, "told": self.told,
        }  # fmt: skip

    def _save(self) -> None:
        """Write a snapshot; a log of its own begins with it."""
        self.number += 1
        data = pack_state({"number": self.number, "state": self._state()})
        self.saved_bytes = len(data)
        write_atomically(self.folder / SNAPSHOT, data)

    def _do(self, name: str, *arguments: Any) -> Any:
        """Carry a change out, after it was written."""
        self.log.write(name, arguments)
        answer = getattr(self, f"_{name}")(*arguments)
        if self.log.size > max(_LOG_BYTES, _SNAPSHOTS * self.saved_bytes):
            old = self.log
            self._save()
            self.log = Log(self.folder, self.number)
            old.close()
        return answer

    async def fetch(self, controller: int) -> dict[str, Any]:
        """What a controller needs to begin, or to go on after it was restarted; what it had asked for is given back."""
        self.waiting.pop(controller, None)
        self._do("release", controller)
        return {
            "life": self.lives[controller],
            "version": self.version, "parameters": dict(self.parameters), "kept": self.kept[controller],
            "step": self.steps[controller], "ticket": self.tickets[controller], "progress": self._progress(controller),
        }  # fmt: skip

    async def arrive(self, controller: int) -> None:
        """A controller and its workers are ready. It returns when all are: they begin together."""
        self.here.add(controller)
        if len(self.here) == self.about["controllers"]:
            self.all_here.set()
        await self.all_here.wait()

    async def ready(self) -> bool:
        """Whether all controllers have arrived."""
        return self.all_here.is_set()

    async def reserve(self, controller: int, life: int, count: int) -> tuple[int, float]:
        """How many of `count` evaluations it may make now, and the share of the budget that is used.

        What it had reserved before and not recorded is given back: a controller has one batch at a time.
        """
        if life != self.lives[controller]:
            return 0, self._progress(controller)
        granted = int(max(0, min(count, self._left_for(controller))))
        if granted or self.granted[controller]:
            self._do("grant", controller, granted)
        return granted, self._progress(controller)

    async def record(
        self,
        controller: int,
        life: int,
        ticket: int,
        number: int,
        placements: Arrays,
        measurements: Arrays,
        faults: Mapping[str, int],
    ) -> float:
        """Count evaluations of problem `number`; ticket 0, 1, ... of the controller. Returns the progress."""
        if (life, ticket) == (self.lives[controller], self.tickets[controller]):
            self._do("count", controller, number, placements, measurements, faults)
        return self._progress(controller)

    async def push(
        self, controller: int, life: int, step: int, optimiser: str, gradients: Arrays, rate: float, based_on: int
    ) -> tuple[int, dict[str, Any]]:
        """Apply gradients, step 0, 1, ... of the controller, computed with the parameters of version `based_on`.

        Returns the version and the parameters after it. Where controllers wait for each other, it returns when the gradients of
        all were applied.
        """
        if (life, step) == (self.lives[controller], self.steps[controller]):
            if not self.about["synchronous"]:
                self._do("apply", [[controller, optimiser, gradients, rate, based_on]])
            else:
                done = asyncio.get_running_loop().create_future()
                self.waiting[controller] = (controller, optimiser, gradients, rate, based_on), done
                self._apply_round()
                await done
        return self.version, dict(self.parameters)

    async def keep(self, controller: int, life: int, state: Mapping[str, Any]) -> None:
        """Keep the state of a controller, from which it goes on if it is restarted."""
        if life == self.lives[controller]:
            self._do("keep", controller, state)

    async def leave(self, controller: int) -> None:
        """A controller has ended; the others do not wait for it."""
        self._do("leave", controller)
        self._apply_round()

    async def tell(self, progress: float) -> None:
        """The share of the budget's seconds that is used; at 1, no more evaluations are granted."""
        self._do("tell", progress)

    async def collect(self, since: int) -> tuple[list[Any], int]:
        """The evaluations from number `since` on; the server forgets those before. Also the version."""
        done = max(0, min(since - self.first, len(self.recorded)))
        del self.recorded[:done]
        self.first += done
        return list(self.recorded), self.version

    async def snapshot(self) -> bytes:
        """The whole state, packed here, because Ray packs answers in another thread; the driver keeps it in its checkpoint."""
        return pack_state(self._state())

    async def where(self) -> int:
        """The process of the server."""
        return os.getpid()

    def _progress(self, controller: int) -> float:
        """Share of the budget that is used, in [0, 1]; of its own share, where controllers wait for each other.

        The rates of a schedule then do not depend on who was first.
        """
        limit, before, used = self.about["limit"], self.about["progress"], self.evaluations
        if limit is not None and self.about["synchronous"]:
            limit, used = self._share(controller), self.used[controller]
        counted = 0.0 if limit is None else before + (1 - before) * used / max(limit, 1)
        return float(min(1.0, max(counted, self.told)))

    def _share(self, controller: int) -> int:
        """The evaluations of a controller, where they wait for each other."""
        limit, count = int(self.about["limit"]), int(self.about["controllers"])
        return limit // count + (controller < limit % count)

    def _left_for(self, controller: int) -> float:
        """Evaluations that a controller may still ask for; where they wait for each other, each has its own share."""
        limit = self.about["limit"]
        if self.closed:
            return 0
        if limit is None:
            return math.inf
        if self.about["synchronous"]:
            return float(self._share(controller) - self.used[controller])
        return float(limit - self.evaluations - sum(self.granted) + self.granted[controller])

    def _restart(self) -> None:
        self.restarts += 1

    def _release(self, controller: int) -> None:
        self.restarts += 1
        self.lives[controller] += 1
        self.left[controller] = False
        self.granted[controller] = 0
        self.lost += self.pending[controller]
        self.pending[controller] = 0

    def _grant(self, controller: int, count: int) -> None:
        self.granted[controller] = count

    def _count(
        self, controller: int, number: int, placements: Arrays, measurements: Arrays, faults: Mapping[str, int]
    ) -> None:
        count = len(measurements["value_s"])
        self.round[controller].append([number, dict(placements), dict(measurements), dict(faults)])
        if not self.about["synchronous"]:
            self._tell_round()
        self.evaluations += count
        self.pending[controller] += count
        self.used[controller] += count
        self.granted[controller] = 0
        self.tickets[controller] += 1

    def _keep(self, controller: int, state: Mapping[str, Any]) -> None:
        self.kept[controller] = dict(state)
        self.pending[controller] = 0

    def _leave(self, controller: int) -> None:
        self.left[controller] = True
        if all(self.left):
            self._tell_round()

    def _tell_round(self) -> None:
        """Have the driver take the evaluations of all controllers, in their order."""
        for each in self.round:
            self.recorded += each
            each.clear()

    def _tell(self, progress: float) -> None:
        self.told = max(self.told, progress)
        self.closed = self.closed or progress >= 1

    def _apply_round(self) -> None:
        """Where controllers wait for each other: apply the mean of their gradients once all have sent theirs."""
        if not self.waiting or any(not left and c not in self.waiting for c, left in enumerate(self.left)):
            return
        ready = [self.waiting[c] for c in sorted(self.waiting)]
        self.waiting = {}
        self._do("apply", [list(arguments) for arguments, _ in ready])
        for _, done in ready:
            if not done.done():
                done.set_result(None)

    def _apply(self, sent: Sequence[Sequence[Any]]) -> None:
        """One step along the mean of gradients that were sent together."""
        name, rate = str(sent[0][1]), float(sent[0][3])
        gradients: dict[str, NDArray[Any]] = {key: np.array(each) for key, each in sent[0][2].items()}
        for _, _, more, _, _ in sent[1:]:
            for key in gradients:
                gradients[key] = gradients[key] + more[key]
        if len(sent) > 1:
            gradients = {key: total / len(sent) for key, total in gradients.items()}
        for key, step in self._optimiser(name).steps(gradients, rate).items():
            self.parameters[key] = self.parameters[key] + step
        self._tell_round()
        for controller, _, _, _, based_on in sent:
            late = self.version - int(based_on)
            self.staleness[late] = self.staleness.get(late, 0) + 1
            self.steps[int(controller)] += 1
        self.version += 1

    def _optimiser(self, name: str) -> Optimiser:
        return self.optimisers.setdefault(name, OPTIMISERS[self.about["optimiser"]]())
