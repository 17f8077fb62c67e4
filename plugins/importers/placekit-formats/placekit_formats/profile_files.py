"""The files of importer `profile`: placekit's CSV, and the JSON of Sailor and Metis, which README.md describes."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placekit_core import MAX_SECONDS, parse_json, parse_text
from placekit_formats import ProfileOptions
from placekit_formats.reading import MAX_BYTES, mistake, read_file

SIZES = ("parameter", "gradient", "state", "output", "saved")
KINDS = "importer.kinds={KIND: NAME, ...} reads only the kinds that it names"
METIS = re.compile(r"DeviceType\.(\w+?)_tp(\d+)_bs(\d+)\.json", re.ASCII)
SAILOR, SAILOR_SIZES = "profile.json", "llm_info.json"
ADAM = 2  # bytes of Adam's state for each byte of parameters
FORWARD = 1 / 3  # of a layer's seconds, where only the sum is known: the backward pass has two products for one
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=MAX_BYTES)]
Name = Annotated[str, Field(pattern=r"^[!-~]+$")]
Cells = dict[str, Any]
"""The values of a row before they are checked."""


class Row(BaseModel):
    """One layer on one kind of device; the fields are the columns of the CSV, which docs/formats.md describes."""

    model_config = ConfigDict(extra="forbid")

    layer: Name
    kind: Name
    microbatch: int = Field(ge=1)
    degree: int = Field(1, ge=1)
    forward_s: Seconds
    backward_s: Seconds
    update_s: Seconds
    parameter_bytes: Bytes
    gradient_bytes: Bytes
    state_bytes: Bytes
    output_bytes: Bytes
    saved_bytes: Bytes


def read_rows(options: ProfileOptions) -> list[Row]:
    """The rows of a profile, with the machine's names of kinds. Raises ImporterError that names the file."""
    path, kinds, rows = Path(options.path), options.kinds, list[Row]()
    known = dict[str, None]()
    for file in _files(path):
        kind = _kind(file)
        known |= dict.fromkeys([kind] if kind else [])
        if not (kind and kinds and kind not in kinds):  # rows of unwanted kinds may be wrong
            rows += read_file(str(file), "profile", partial(_rows, file=file, options=options))
    known |= dict.fromkeys(row.kind for row in rows)
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise mistake(
            options.path, f"it has no kind {unknown[0]!r}", f"importer.kinds names some of: {', '.join(known)}"
        )
    return [row.model_copy(update={"kind": kinds[row.kind]}) for row in rows if row.kind in kinds] if kinds else rows


def _files(path: Path) -> list[Path]:
    """The file itself, or the profiles in a folder. Raises ImporterError if it has none."""
    if not path.is_dir():
        return [path]
    found = profiles_in(path)
    if not found:
        names = f"*.csv, KIND/{SAILOR} (Sailor) or DeviceType.KIND_tpN_bsM.json (Metis)"
        raise mistake(
            str(path), "no profile is in this folder", f"a profile is {names}; docs/formats.md describes them"
        )
    return found


def profiles_in(folder: Path) -> list[Path]:
    """The files in a folder that have the name of a profile."""
    return sorted([*folder.glob("*.csv"), *folder.glob(f"*/{SAILOR}"), *folder.glob("DeviceType.*.json")])


def _kind(file: Path) -> str:
    """The kind of device in the name of a file; empty for a CSV, which may have several kinds."""
    metis = METIS.fullmatch(file.name)
    return metis[1] if metis else file.resolve().parent.name if file.name == SAILOR else ""


def _rows(data: bytes, file: Path, options: ProfileOptions) -> list[Row]:
    """The rows of a file. Raises ValueError that names the place."""
    if METIS.fullmatch(file.name):
        found = _metis(parse_json(data), file, options)
    else:
        found = _sailor(parse_json(data), file) if file.name == SAILOR else _csv(data)
    try:
        rows = [_row(where, {"kind": _kind(file), **cells}) for where, cells in found]
    except (LookupError, TypeError, AttributeError, ArithmeticError, csv.Error) as e:
        raise ValueError(f"it does not have the form of the format: {type(e).__name__} {e}") from None
    if not rows:
        raise ValueError("it has no layers")
    return rows


def _row(where: str, cells: Cells) -> Row:
    """The row with these values. Raises ValueError that names the first wrong one."""
    try:
        return Row.model_validate(cells)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        raise ValueError(f"{where}: {first['loc'][0]}: {first['msg']} (got {first['input']!r:.60})") from None


def _csv(data: bytes) -> Iterator[tuple[str, Cells]]:
    """The lines of placekit's CSV."""
    reader = csv.DictReader(io.StringIO(parse_text(data), newline=""))
    for cells in reader:
        yield f"line {reader.line_num}", cells


def _sailor(profile: Any, file: Path) -> Iterator[tuple[str, Cells]]:
    """The layers of Sailor's profile of one kind: seconds by micro-batch, degree and layer, `[forward, backward, update]`.

    The bytes are in `llm_info.json`, for one row of the batch, in the profile's folder or up to four above it. The update's
    seconds fit a model of the first three layers and the last one: Adam's traffic for them, 28 bytes per parameter, at 80 to 84%
    of the data sheets' bandwidth of A100, V100 and RTX 3090. So each layer takes the share of its parameters.
    """
    folders = file.resolve().parents[:5]
    path = next((folder / SAILOR_SIZES for folder in folders if (folder / SAILOR_SIZES).is_file()), None)
    if path is None:
        raise mistake(str(file), f"there is no {SAILOR_SIZES}", f"put it into one of: {', '.join(map(str, folders))}")
    models = read_file(str(path), "profile", parse_json)
    for microbatch, degrees in profile.items():
        for degree, layers in degrees.items():
            sizes = models.get(folders[1].name, {}).get(degree)
            if sizes is None:
                raise mistake(str(path), f"it has nothing for {folders[1].name!r} and degree {degree}")
            if layers.keys() != sizes.keys():
                problem = f"it has {len(layers)} layers, but {SAILOR_SIZES} has {len(sizes)} for this model"
                raise mistake(str(file), problem, KINDS)
            order = sorted(layers, key=int)
            measured = sum(sizes[layer]["params_bytes"] for layer in {*order[:3], *order[-1:]})
            for layer in order:
                size, (forward_s, backward_s, update_s) = sizes[layer], layers[layer]
                parameter = size["params_bytes"]
                yield f"micro-batch {microbatch}, degree {degree}, layer {layer}", {
                    "layer": layer, "microbatch": microbatch, "degree": degree, "forward_s": forward_s,
                    "backward_s": backward_s, "update_s": update_s * parameter / measured,
                    "parameter_bytes": parameter, "gradient_bytes": parameter, "state_bytes": ADAM * parameter,
                    "output_bytes": int(microbatch) * size["act_output_bytes"],
                    "saved_bytes": int(microbatch) * size["act_mem_bytes"],
                }  # fmt: skip


def _metis(data: Any, file: Path, options: ProfileOptions) -> Iterator[tuple[str, Cells]]:
    """The layers of a file of Metis, which is for one kind, degree and micro-batch.

    Parameters are of the whole layer, and each device of a group has its share (`activation_parameter.py` of Metis); memory is of
    one device. The rest of the step's time is the loss (Metis' README), so it counts for the last layer.
    """
    if not options.output_bytes:
        hint = "importer.output_bytes=N; for a transformer, sequence length x hidden size x bytes per number"
        raise mistake(str(file), "Metis' files lack the bytes that a layer sends to the next", hint)
    name = METIS.fullmatch(file.name)
    assert name is not None
    seconds, microbatch = data["execution_time"], int(name[3])
    parameters, ms = data["model"]["parameters"]["parameters_per_layer_bytes"], seconds["layer_compute_total_ms"]
    ms = [*ms[:-1], ms[-1] + max(seconds["forward_backward_time_ms"] - sum(ms), 0)]
    memory_mb = data["execution_memory"]["layer_memory_total_mb"]
    if not len(parameters) == len(ms) == len(memory_mb):
        counts = f"{len(parameters)} values for parameters, {len(ms)} for times, {len(memory_mb)} for memory"
        raise ValueError(f"its lists differ in length: {counts}")
    for i, whole in enumerate(parameters):
        parameter = whole // int(name[2])
        yield f"layer {i}", {
            "layer": str(i), "microbatch": microbatch, "degree": name[2], "forward_s": ms[i] / 1e3 * FORWARD,
            "backward_s": ms[i] / 1e3 * (1 - FORWARD),
            "update_s": seconds["optimizer_time_ms"] / 1e3 * whole / sum(parameters),
            "parameter_bytes": parameter, "gradient_bytes": parameter, "state_bytes": ADAM * parameter,
            "output_bytes": microbatch * options.output_bytes,
            "saved_bytes": max(int(memory_mb[i] * 2**20) - (2 + ADAM) * parameter, 0),
        }  # fmt: skip
