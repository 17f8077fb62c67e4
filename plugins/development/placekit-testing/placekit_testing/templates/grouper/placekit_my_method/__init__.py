"""Grouper `my_method`: pieces of a topological order."""

from __future__ import annotations

from pydantic import Field

from placekit_core import Component, Options, hookimpl


class MyMethodOptions(Options):
    """Options of grouper `my_method`."""

    max_groups: int = Field(32, ge=1, description="maximum number of groups")


@hookimpl
def placekit_groupers() -> list[Component]:
    """What this package adds."""
    return [
        Component(
            name="my_method",
            summary="runs of operations that follow each other, at most `max_groups` of them",
            config=MyMethodOptions,
            target="placekit_my_method.my_method:MyMethod",
        )
    ]
