"""Reads command lines of llama.cpp and vLLM: their flags, the model, and how it is used; `read_splits` reads the rest.

The names follow ggml-org/llama.cpp, common/arg.cpp, and vLLM's documentation of `vllm serve`; the code is our own.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, get_args

from placekit_models.checkpoint.gguf_header import bits_of
from placekit_models.checkpoint.names import named
from placekit_models.checkpoint.recipes import GGUF, PACKED

from placekit_core import ConfigError
from placekit_runtimes.planning.flags import IGNORED, SWITCHES, TABLES
from placekit_runtimes.planning.question import CacheType, RuntimeName

_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.S)
_COMMENT = re.compile(r"\s# (?:in the box of (\S+))?[^'\"]*$")
_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True, eq=False)
class Line:
    """A command line.

    Attributes:
        command: `llama-server`, `llama-cli`, `llama-bench` or `vllm`.
        flags: flags with their values in order; each by the last of its names in the tables.
        variables: environment variables.
        positional: the other words.
        box: a device of the box where it runs, from a comment `# in the box of DEVICE`; empty if unknown.
        kept: arguments of llama-server that change nothing here, as they are written, and those of unknown flags.
        notes: notes for the user.
    """

    command: str
    flags: Sequence[tuple[str, str]]
    variables: dict[str, str]
    positional: Sequence[str]
    box: str
    kept: Sequence[str]
    notes: list[str]

    @property
    def runtime(self) -> RuntimeName:
        """Which runtime it starts."""
        return TABLES[self.command][0]

    def last(self, flag: str) -> str | None:
        """The value that counts; None if the flag is not given."""
        return next((value for name, value in reversed(self.flags) if name == flag), None)

    def true(self, flag: str) -> bool:
        """Whether a switch is given, and not as `0` or `off`."""
        return (self.last(flag) or "1") not in ("0", "off", "false") and self.last(flag) is not None

    def number(self, flag: str, kind: type[int] | type[float] = int) -> Any:
        """A number; None if the flag is not given. Raises ConfigError."""
        return None if (text := self.last(flag)) is None else number(flag, text, kind)

    def model(self, weights: str | None = None) -> tuple[str, str | None]:
        """The model, and its format if a name says it; `weights`: the format that the user gives. Raises ConfigError."""
        if self.runtime == "vllm":
            name = self.last("--model") or next((w for w in self.positional if w != "serve"), None)
            if name is None:
                raise ConfigError("the command line names no model", "vllm serve MODEL ...")
            method = (self.last("--quantization") or "").partition("_")[0]  # awq_marlin is a kernel for awq
            return name, weights or (method if method in PACKED else None)
        repository, file = self.last("--hf-repo"), self.last("--model") or self.last("--hf-file")
        if file is None and repository is None:
            raise ConfigError("the command line names no model", "-m FILE.gguf, or -hf USER/MODEL-GGUF:Q4_K_M")
        if file is not None and os.path.exists(os.path.expanduser(file)):
            return file, weights
        title, _, tag = str(repository).rpartition("/")[2].partition(":")
        given = PurePath(file).name if file else f"{title}:{tag or 'Q4_K_M'}"
        name, own = named(given, weights)
        if own is None or name == given:
            raise ConfigError(
                f"{given} is not on this computer, and its name does not end in a known format",
                f"give model=hf:NAME weights=q4_k_m, or the path of the file; formats are {', '.join(GGUF)}",
            )
        self.notes.append(f"{given} is not on this computer: {name} with weights={own} is evaluated instead")
        return name, own

    def named_by(self) -> list[str]:
        """The arguments that name the model, for llama-server."""
        flags = {"--model": "-m", "--hf-repo": "-hf", "--hf-file": "-hff"}
        return [word for flag, short in flags.items() if (value := self.last(flag)) for word in (short, value)]

    def options(self) -> dict[str, Any]:
        """The options of a plan that the command line sets. Raises ConfigError."""
        own = self._of_vllm() if self.runtime == "vllm" else self._of_llamacpp()
        return {key: value for key, value in own.items() if value is not None}

    def _of_llamacpp(self) -> dict[str, Any]:
        types = [self.last(f"--cache-type-{x}") or "f16" for x in "kv"]
        for flag, type_ in zip(("-ctk", "-ctv"), types, strict=True):
            if type_ not in get_args(CacheType) or type_ == "fp8":
                known = ", ".join(t for t in get_args(CacheType) if t != "fp8")
                raise ConfigError(f"{flag} {type_} is not a type of cache that placekit knows", f"it knows {known}")
        cache = max(types, key=lambda t: bits_of(t.upper()))
        if types[0] != types[1]:
            self.notes.append(f"keys of the cache ({types[0]}) and values ({types[1]}) are both counted as {cache}")
        if self.last("--flash-attn") in ("off", "0"):
            self.notes.append(
                "the command line turns flash attention off, but the predicted speeds are with flash attention"
            )
        mmproj = self.last("--mmproj")
        if mmproj is not None and not os.path.exists(os.path.expanduser(mmproj)):
            self.notes.append(f"{PurePath(mmproj).name} is not on this computer: its memory and time are left out")
            mmproj = None
        users, context = self.number("--parallel") or 1, self.number("--ctx-size") or None
        ubatch, batch = self.number("--ubatch-size"), self.number("--batch-size")
        own = {"cache": cache, "ubatch": min(ubatch or 512, batch) if batch else ubatch, "mmproj": mmproj}
        if self.command == "llama-bench":
            prompt, generate = self.number("--n-prompt") or 512, self.number("--n-gen") or 128
            return own | {"prompt": prompt, "generate": generate, "context": prompt + generate}
        users = max(users, 1)  # -1: as many as llama.cpp likes
        return own | {"users": users if users > 1 else None, "context": context and max(context // users, 1)}

    def _of_vllm(self) -> dict[str, Any]:
        length, type_ = self.last("--max-model-len"), self.last("--kv-cache-dtype") or "auto"
        context = None
        if length is not None and length not in ("auto", "-1"):
            times = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}.get(length[-1:], 1)
            context = int(number("--max-model-len", length.rstrip("kKmM"), float) * times)
        cache = "fp8" if type_.startswith("fp8") else {"bfloat16": "bf16"}.get(type_, "f16")
        own = {"context": context, "users": self.number("--max-num-seqs"), "cache": cache}
        return own | {"ubatch": self.number("--max-num-batched-tokens")}


def number(flag: str, text: str, kind: type[int] | type[float] = int) -> Any:
    """A number in a value of a flag or variable. Raises ConfigError."""
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not abs(value) < 2**40:
        raise ConfigError(f"{flag} {text!r:.40} is not a number", "give one number")
    return value


def is_line(word: str) -> bool:
    """Whether a word is a command line, and not a path."""
    first = word.split(maxsplit=1)[:1]
    begins = bool(first) and (_VARIABLE.match(first[0]) is not None or _command(first) in TABLES)
    return begins or (" " in word.strip() and not word.endswith(".json") and not os.path.exists(word))


def _command(words: Sequence[str]) -> str:
    if "vllm.entrypoints.openai.api_server" in words:
        return "vllm"
    return PurePath(words[0]).name.removesuffix(".exe") if words else ""


def read(text: str) -> Line:
    """Read a command line, with its environment variables. Raises ConfigError if placekit cannot read it."""
    rows = [row for row in text.replace("\\\n", " ").splitlines() if not row.lstrip().startswith("rpc-server ")]
    try:
        words = shlex.split(" ".join(_COMMENT.sub("", row) for row in rows))
    except ValueError as e:
        raise ConfigError(f"the command line cannot be split into words: {e}", "close its quotes") from None
    variables: dict[str, str] = {}
    while words and ((match := _VARIABLE.fullmatch(words[0])) or words[0] in ("env", "export")):
        variables |= {match[1]: match[2]} if match else {}
        words = words[1:]
    command = _command(words)
    if command not in TABLES:
        raise ConfigError(
            f"placekit does not read command lines of {command or text!r:.40}", f"it reads those of {', '.join(TABLES)}"
        )
    runtime, table = TABLES[command]
    before = [
        word for name, value in variables.items() if name.startswith("LLAMA_ARG_")
        for word in ("--" + name.removeprefix("LLAMA_ARG_").lower().replace("_", "-"), value)
    ]  # fmt: skip
    flags: list[tuple[str, str]] = []
    positional: list[str] = []
    unknown: list[str] = []
    kept: list[str] = []
    for name, value in _flags([*before, *words[1:]], runtime):
        if command == "llama-server" and (name not in table or table[name] == "--batch-size"):
            kept += [word for word in (name, value) if word]
        if not name:
            positional.append(value)
        elif name not in table:
            unknown += [name] if name not in IGNORED[runtime] else []
        elif not value and table[name] not in ("--cpu-moe", "--flash-attn", "--no-kv-offload"):
            raise ConfigError(f"{name} has no value", f"{name} VALUE")
        else:
            flags.append((table[name], value))
    box = next((match[1] for row in rows if (match := _COMMENT.search(row))), "")
    found = Line(command, flags, variables, positional, box or "", kept, [])
    if unknown:
        found.notes.append(f"ignored, because placekit does not know it: {', '.join(dict.fromkeys(unknown))}")
    return found


def _flags(words: Sequence[str], runtime: RuntimeName) -> Iterator[tuple[str, str]]:
    """Flags with their values; other words with an empty flag."""
    i = 0
    while i < len(words):
        name, equals, value = words[i].partition("=")
        i += 1
        if not _FLAG.match(name):
            yield "", words[i - 1]
            continue
        if runtime == "vllm":
            name = name.replace("_", "-")
        switch = runtime == "vllm" and name.startswith(SWITCHES)
        if not equals and not switch and i < len(words) and not _FLAG.match(words[i]):
            value = words[i]
            i += 1
        yield name, value
