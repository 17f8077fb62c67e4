"""Backend `my_method`: a machine that does one thing at a time."""

from __future__ import annotations

from placekit_core import Component, Options, hookimpl


class MyMethodOptions(Options):
    """Options of backend `my_method`: none yet."""


@hookimpl
def placekit_backends() -> list[Component]:
    """What this package adds."""
    return [
        Component(
            name="my_method",
            summary="simulated machine that does one thing at a time: the sum of all operations and transfers",
            config=MyMethodOptions,
            target="placekit_my_method.my_method:MyMethod",
        )
    ]
