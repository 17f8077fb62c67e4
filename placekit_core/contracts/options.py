"""Base classes of components' options; a module of its own, because listing components imports only this."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """Base of a component's options: unknown names are refused, and the defaults here are the only defaults."""

    # built at first use: a command lists a hundred components and runs a few
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ImporterOptions(Options):
    """Base of the options of importers that take seconds: `placekit run` keeps the graphs that they make (run/imports.py).

    The graph must depend on nothing but the options, the environment, and what Python code reads during `Importer.load`.
    """

    cache: bool = Field(
        True, description="keep the graph on this computer for later runs of `placekit run`; false: import it again"
    )


class LearnableOptions(Options):
    """Base of the options of learnable policies."""

    checkpoint: str | None = Field(
        None,
        description="run directory of a trained policy to start from (`policy.safetensors`), or `pkg://PACKAGE/FOLDER`,"
        " which a package ships; null: untrained",
    )
    rollouts: int = Field(
        1,
        ge=1,
        description="placements that the policy makes with `trainer=none`: one without exploration, the others drawn; the best"
        " is kept",
    )
