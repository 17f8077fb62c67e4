"""Base classes of components' options; a module of its own, because listing components imports only this."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """Base of a component's options: unknown names are refused, and the defaults here are the only defaults."""

    # built at first use: a command lists a hundred components and runs a few
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class LearnableOptions(Options):
    """Base of the options of learnable policies."""

    checkpoint: str | None = Field(
        None,
        description="run directory of a trained policy to start from (`policy.safetensors`), or `pkg://PACKAGE/FOLDER`:"
        " one that a package ships; null: untrained",
    )
