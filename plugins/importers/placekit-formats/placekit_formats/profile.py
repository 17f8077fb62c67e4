"""Importer `profile`: measured seconds and bytes of each layer, on several kinds of devices. docs/formats.md has the CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placekit_core import Importer, Program
from placekit_formats import ProfileOptions
from placekit_formats.json_program import FORMAT, VERSION, program_of
from placekit_formats.profile_files import KINDS, SIZES, Row, read_rows
from placekit_formats.reading import mistake, require_path


class ProfileImporter(Importer):
    """One program, named like the file or folder: the training step of a micro-batch through a chain of layers.

    - Layer `L` has the operations `L`, `L.backward` and `L.update`, and the sources `L.parameter` and `L.state`; they share a
      device. A layer whose name is a number N is called `layers.N`.
    - `L` writes the layer's output, which the next layer reads, and the values that the layer keeps for `L.backward`.
      `L.backward` also reads the gradient of the output, and writes the gradients of the parameters and the inputs.
    - Seconds are the profile's, as measured. The bytes of a layer are the most on any kind of device.
    """

    name = "profile"
    options_class = ProfileOptions

    def load(self) -> list[Program]:
        """The program. Raises ImporterError that names the file, or the layer, kind or micro-batch that is missing."""
        path = self.options.path
        require_path(path, self.name)
        rows = _with(path, read_rows(self.options), "degree", self.options.degree)
        layers: dict[str, dict[str, Row]] = {}  # by kind
        for row in _with(path, rows, "microbatch", self.options.microbatch):
            if layers.setdefault(row.layer, {}).setdefault(row.kind, row) is not row:
                raise mistake(path, f"layer {row.layer!r} is there twice for {row.kind}")
        kinds = dict.fromkeys(kind for found in layers.values() for kind in found)
        missing = next(((layer, kind) for layer, found in layers.items() for kind in kinds if kind not in found), None)
        if missing is not None:
            raise mistake(path, f"layer {missing[0]!r} is missing for {missing[1]}", KINDS)
        place = Path(path).resolve()
        return [
            program_of(path, {
                "format": FORMAT, "version": VERSION, "name": place.name if place.is_dir() else place.stem, "measured": True,
                "attributes": {"microbatch": row.microbatch, "degree": row.degree}, "operations": _operations(layers),
            })
        ]  # fmt: skip


def _with(path: str, rows: Sequence[Row], field: str, wanted: int | None) -> list[Row]:
    """The rows with this value of a field; None stands for the only value. Raises ImporterError with all values."""
    found: dict[int, dict[str, None]] = {}
    for row in rows:
        found.setdefault(getattr(row, field), {})[row.kind] = None
    if wanted is None and len(found) == 1:
        wanted = next(iter(found))
    if wanted not in found:
        has = "; ".join(f"{value} ({', '.join(found[value])})" for value in sorted(found))
        problem = f"it has several values of {field}" if wanted is None else f"it has no {field} {wanted}"
        raise mistake(path, problem, f"importer.{field} is one of: {has}")
    return [row for row in rows if getattr(row, field) == wanted]


def _operations(layers: dict[str, dict[str, Row]]) -> list[dict[str, Any]]:
    """The operations, in the form of importer `json`, of layers in the order of the forward pass."""
    names = [f"layers.{layer}" if layer.isdigit() else layer for layer in layers]
    operations: list[dict[str, Any]] = []
    reads: list[int] = []  # bytes of the output of the layer before
    for i, (name, rows) in enumerate(zip(names, layers.values(), strict=True)):
        size = {what: max(getattr(row, f"{what}_bytes") for row in rows.values()) for what in SIZES}
        size["output"] //= next(iter(rows.values())).degree  # each device of a group sends its part
        parameter, state, backward, place = f"{name}.parameter", f"{name}.state", f"{name}.backward", {"colocate": i}
        arriving = [[f"{following}.backward", 1] for following in names[i + 1 : i + 2]]
        held = [{"bytes": size[what], "storage": f"{name}.{what}"} for what in ("parameter", "state")]
        for phase, own, inputs, outputs in (
            ("forward", name, [parameter, *names[max(i - 1, 0) : i]], [size["output"], size["saved"]]),
            ("backward", backward, [parameter, [name, 1], *arriving], [size["gradient"], *reads]),
            ("update", f"{name}.update", [parameter, state, backward], held),
        ):
            seconds = {kind: getattr(row, f"{phase}_s") for kind, row in rows.items()}
            kernel = {"name": own, "op_type": phase, "phase": phase, "module": name, **place}
            operations.append({**kernel, "inputs": inputs, "outputs": outputs, "seconds": seconds})
        for what in ("parameter", "state"):
            source = {"name": f"{name}.{what}", "op_type": what, "kernel": False, "module": name, **place}
            operations.append({**source, "outputs": [size[what]]})
        reads = [size["output"]]
    return operations
