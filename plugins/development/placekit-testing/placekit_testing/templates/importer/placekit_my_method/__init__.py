"""Importer `my_method`: tables of operations (.ops.csv)."""

from __future__ import annotations

from pydantic import Field

from placekit_core import ImporterComponent, Options, hookimpl


class MyMethodOptions(Options):
    """Options of importer `my_method`."""

    path: str = Field("", description="table of operations (.ops.csv); the example of this package if not given")


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """What this package adds."""
    return [
        ImporterComponent(
            name="my_method",
            summary="a table of operations: name, flops, output_bytes, inputs",
            config=MyMethodOptions,
            target="placekit_my_method.my_method:MyMethod",
            files=(".ops.csv",),
        )
    ]
