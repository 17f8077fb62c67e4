"""The hyperparameters in the header of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from placekit_core import ImporterError
from placekit_models.checkpoint.gguf_header import Header, read_gguf
from placekit_models.checkpoint.modules import architectures
from placekit_models.shape import Checkpoint, Tensor

MAX_LAYERS = 1000
PERIODS = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "gpt-oss": 2, "llama4": 4, "exaone4": 4, "olmo2": 4,
    "gemma-embedding": 6,
}  # fmt: skip
"""Architectures with windows whose header does not list the layers: in each group of this many layers, the last one sees all
tokens (llama.cpp, `set_swa_pattern`)."""
CHUNK = 8192
"""Tokens that Llama 4 sees in its chunked layers."""


def from_gguf(path: Path) -> Checkpoint:
    """The tensors of a file with their hyperparameters. Raises ImporterError."""
    return from_header(read_gguf(path), path)


def from_header(header: Header, path: Path) -> Checkpoint:
    """As `from_gguf`. Raises ImporterError if the header contradicts itself."""
    get = Values(header.values, path)
    tensors = {t.name: t for t in header.tensors}
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        what = "an adapter" if get.text("general.type") == "adapter" else "not a decoder of text"
        raise ImporterError(
            f"{path} has no embedding of words (token_embd.weight): it is {what}", "give the file of the model"
        )
    if any(name.startswith("enc.") for name in tensors):
        raise ImporterError(f"{path} has an encoder, but only decoders can be planned from files", "give model=hf:NAME")
    hidden = get.number("embedding_length")
    if hidden and embedding.shape[0] != hidden:
        raise get.contradiction(f"embedding_length {hidden}", f"token_embd.weight, as wide as {embedding.shape[0]}")
    numbers = {t.layer for t in header.tensors}
    layers = get.number("block_count") or max(numbers) + 1
    if max(numbers) >= layers or layers > MAX_LAYERS or layers < 1:
        raise get.contradiction(f"block_count {layers}", f"layers up to {max(numbers)} (at most {MAX_LAYERS} are read)")
    lacking = next((i for i in range(layers) if i not in numbers), None)
    if lacking is not None:
        raise get.contradiction(f"block_count {layers}", f"no tensor of layer {lacking}")
    notes = []
    if get.architecture not in architectures():
        notes.append(
            f"placekit does not know the architecture {get.architecture!r}: the plan follows from the sizes of its tensors, and"
            " assumes attention to all tokens"
        )
    if header.missing_bytes:
        notes.append(f"{path.name} ends {header.missing_bytes:,} bytes early: the plan uses its header only")
    kept, dropped = without_drafts(header.tensors)
    if dropped:
        notes.append(f"left out: {dropped:,} bytes of layers that draft tokens")
    layers = max(t.layer for t in kept) + 1
    count, active = get.number("expert_count"), get.number("expert_used_count")
    check_experts(kept, count, active, get)
    channels = next((t.shape[1] for t in kept if t.key == "ssm_conv1d" and len(t.shape) > 1), 0)
    state = get.number("ssm.inner_size") * get.number("ssm.state_size") + embedding.shape[0] * get.number(
        "wkv.head_size"
    )
    kernel = get.number("ssm.conv_kernel")
    cached = max(get.number("shortconv.l_cache") - 1, 0) * embedding.shape[0]
    convolution = max(kernel - 1, 0) * channels + cached
    return Checkpoint(
        tuple(kept), layers, active, get.number("attention.head_count"), _windows(get, layers),
        state or _heads_state(get), convolution, path.name.removesuffix(".gguf"), get.architecture, tuple(notes),
    )  # fmt: skip


def _heads_state(get: Values) -> int:
    """State of Kimi's linear attention: a square for each head."""
    return int(get.number("attention.head_count") * get.number("kda.head_dim") ** 2)


def without_drafts(tensors: Iterable[Tensor]) -> tuple[list[Tensor], int]:
    """The tensors without layers that draft the next tokens, and the bytes of these layers."""
    own = list(tensors)
    drafts = {t.layer for t in own if t.key.startswith("nextn") and t.layer >= 0}
    return [t for t in own if t.layer not in drafts], sum(t.bytes for t in own if t.layer in drafts)


def check_experts(tensors: Iterable[Tensor], count: int, active: int, get: Values) -> None:
    """Raise ImporterError if tensors of experts do not fit the hyperparameters."""
    for t in tensors:
        if "exps" in t.key and t.matrix:
            if len(t.shape) != 3 or (count and t.shape[2] != count):
                raise get.contradiction(f"expert_count {count}", f"{t.name} with sizes {list(t.shape)}")
            if not 0 < active <= t.shape[2]:
                raise get.contradiction(f"expert_used_count {active}", f"{t.name} with {t.shape[2]} experts")


class Values:
    """The values of one architecture."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self.values, self.path = values, path
        self.architecture = self.text("general.architecture")
        if not self.architecture:
            raise ImporterError(
                f"{path} does not say its architecture (general.architecture)", "give the file of a model"
            )

    def text(self, key: str) -> str:
        """The text of a key; empty if the header lacks it."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int:
        """The count of a key, or the largest count of a list; 0 if the header lacks it. Raises ImporterError."""
        value = self.values.get(f"{self.architecture}.{key}", 0)
        if isinstance(value, list):
            value = max(value, default=0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise ImporterError(
                f"{self.path}: {self.architecture}.{key} is {value!r:.40}, not a count", "download the file again"
            )
        return value

    def contradiction(self, said: str, has: str) -> ImporterError:
        """The error for a value that the tensors contradict."""
        return ImporterError(
            f"{self.path} contradicts itself: it says {said}, but has {has}", "download the file again"
        )


def _windows(get: Values, layers: int) -> tuple[int, ...]:
    """[layers] the window of each layer; 0: none."""
    window = get.number("attention.sliding_window") or (CHUNK if get.architecture == "llama4" else 0)
    pattern = get.values.get(f"{get.architecture}.attention.sliding_window_pattern")
    if not window:
        return ()
    if isinstance(pattern, list):
        return tuple(window if sees else 0 for sees in pattern[:layers])
    period = pattern if isinstance(pattern, int) and pattern > 0 else PERIODS.get(get.architecture, 1)
    return tuple(window if (i + 1) % period else 0 for i in range(layers))
