"""The question that a plan answers: a model, a machine, and how the model is used."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from placekit_models.shape import Checkpoint
from pydantic import BeforeValidator, Field

from placekit_core import Cluster, Options

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "fp8"]
RuntimeName = Literal["llamacpp", "vllm", "accelerate", "exo"]
SYNONYMS = {
    "quant": "weights", "quants": "weights", "quantization": "weights", "quantisation": "weights", "format": "weights",
    "ctx": "context", "ctx_size": "context", "ctx-size": "context", "c": "context", "kv": "cache", "np": "users",
}  # fmt: skip
"""Options by other names that people try."""


def _count(value: Any) -> Any:
    """Tokens that are written as `32k` or `32,768`; k is 1,024."""
    text = str(value).strip().lower()
    if match := re.fullmatch(r"(\d{1,6})k", text):
        return 1024 * int(match[1])
    return text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", text) else value


def _cache(value: Any) -> Any:
    name, known = str(value).lower(), get_args(CacheType)
    if name not in known and (close := difflib.get_close_matches(name, known, 1)):
        raise ValueError(f"did you mean {close[0]}? known are {', '.join(known)}")
    return name


def _runtime(value: Any) -> Any:
    return re.sub(r"[^a-z]", "", value.lower()) if isinstance(value, str) else value


Tokens = Annotated[int, BeforeValidator(_count)]


class PlanOptions(Options):
    """Options of `placekit plan`."""

    weights: str | None = Field(
        None,
        description="format of the weights: q4_k_m, q8_0, fp8, awq, mxfp4, ...; null: as in the model's files, else bf16",
    )
    context: Tokens = Field(8192, ge=1, le=2**24, description="tokens that each user's cache can hold")
    prompt: Tokens = Field(1000, ge=1, le=2**24, description="tokens of a question")
    generate: Tokens = Field(500, ge=1, le=2**24, description="tokens of an answer")
    images: int = Field(0, ge=0, le=1000, description="images in a question; their tokens are among those of prompt")
    mmproj: str = Field(
        "",
        description="GGUF file of the model part that reads images; empty: the one beside the model, if images are given",
    )
    image: int | None = Field(
        None, ge=1, description="pixels of each side of an image; null: as the file of mmproj has it"
    )
    draft: str = Field(
        "",
        description="hf:NAME or a GGUF file: a small model that drafts tokens, which the model then checks together; empty: none",
    )
    draft_tokens: int = Field(4, ge=1, le=64, description="tokens that are drafted before each check")
    draft_weights: str | None = Field(None, description="format of the draft model's weights, as weights=")
    accepted: float = Field(
        0.7, ge=0, lt=1, description="chance that a drafted token is right; depends on models and texts"
    )
    users: int = Field(1, ge=1, le=2**12, description="users at once")
    cache: Annotated[CacheType, BeforeValidator(_cache)] = Field("f16", description="type of numbers in the cache")
    ubatch: int = Field(
        512, ge=32, le=2**16,
        description="most tokens of a prompt that are computed at once; not given: as many as the runtime, such as 2048 for vLLM",
    )  # fmt: skip
    runtime: Annotated[RuntimeName | None, BeforeValidator(_runtime)] = Field(
        None,
        description="plan for this runtime alone; null: for llama.cpp and vLLM, if they run the format of the weights",
    )


@dataclass(frozen=True, eq=False)
class Question:
    """A model on a machine, and its use.

    Attributes:
        checkpoint: the tensors of the model.
        cluster: the machine.
        options: how the model is used.
        name: the model's name and the format of its weights, to show.
        file: the file or the folder of the model, as command lines name it.
        named_by: arguments of llama-server that name the model, such as `-hf USER/X-GGUF:Q4_K_M`; empty: those for `file`.
        kept: further arguments of the user's own llama-server.
    """

    checkpoint: Checkpoint
    cluster: Cluster
    options: PlanOptions
    name: str
    file: str
    named_by: Sequence[str] = ()
    kept: Sequence[str] = ()

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs, the one with the fastest memory first."""
        kinds = [self.cluster.kinds[kind] for kind in self.cluster.device_kind]
        found = [d for d, kind in enumerate(kinds) if kind.type == "gpu"]
        return tuple(sorted(found, key=lambda d: -kinds[d].memory_bytes_per_s))

    @cached_property
    def cpu(self) -> int | None:
        """The CPU whose memory is the host's, in the box of the fastest GPU; None if the machine is described without it."""
        host = self.cluster.launchers.host
        found = [d for d, k in enumerate(self.cluster.device_kind) if self.cluster.kinds[k].type == "cpu"]
        return min(found, key=lambda d: host[d] != host[self.gpus[0]] if self.gpus else 0, default=None)

    @property
    def depth(self) -> int:
        """Tokens in the cache for the average token of an answer."""
        return min(self.options.prompt + self.options.generate // 2, self.options.context - 1)

    def answer_s(self, decode_s: NDArray[np.float64], prompt_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds until all users have their answers: their prompts one after the other, then their tokens together."""
        return self.options.users * prompt_s + self.options.generate * decode_s


def folder_or_file(model: str) -> Path | None:
    """The path of a model that is on this computer; None for a name."""
    path = Path(model.removeprefix("hf:")).expanduser()
    return path if path.exists() else None
