"""Speculative decoding: a small model drafts tokens one by one, and the large one checks them in one step."""

from __future__ import annotations

from dataclasses import replace

from placekit_models.checkpoint.names import named
from placekit_models.checkpoint.sources import find
from placekit_models.shape import Checkpoint

from placekit_core import ConfigError
from placekit_runtimes.planning.question import PlanOptions, Question, folder_or_file

DIFFERENT = 128
"""Number of words by which vocabularies may differ (llama.cpp, `SPEC_VOCAB_MAX_SIZE_DIFFERENCE`)."""


def drafting(question: Question) -> Question:
    """The draft model with the same machine and use. Raises ConfigError if its vocabulary differs."""
    o = question.options
    draft, weights = named(o.draft, o.draft_weights)
    checkpoint = find(draft, weights)
    words, own = _words(question.checkpoint), _words(checkpoint)
    if abs(words - own) > DIFFERENT:
        raise ConfigError(
            f"{checkpoint.name} cannot draft for {question.name}: it has {own:,} words, and the model {words:,}",
            "draft with a small model of the same family",
        )
    path = folder_or_file(draft)
    file = str(path) if path and path.suffix == ".gguf" else f"{checkpoint.name}-{(weights or 'bf16').upper()}.gguf"
    plain = PlanOptions.model_validate(o.model_dump() | {"draft": "", "images": 0, "mmproj": ""})
    return replace(question, checkpoint=checkpoint, options=plain, name=checkpoint.name, file=file)


def _words(checkpoint: Checkpoint) -> int:
    return next(t.shape[1] for t in checkpoint.tensors if t.key == "token_embd")


def tokens_per_check(accepted: float, drafted: int) -> float:
    """Expected tokens per check: the accepted drafts before the first wrong one, and the model's own token.

    Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1.
    """
    return (1 - accepted ** (drafted + 1)) / (1 - accepted)
