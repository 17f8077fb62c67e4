"""Writes event files with the classes of `tensorboard` itself; neither torch nor tensorflow is needed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from placekit_core.results import ProgramSummary

FOLDER = "tensorboard"
_open: dict[Path, EventFileWriter] = {}


def _writer(directory: Path, step: int) -> EventFileWriter:
    """The writer of a program's folder. Its first event makes TensorBoard forget later steps of a run that was killed."""
    folder = directory / FOLDER
    if folder not in _open:
        _open[folder] = EventFileWriter(str(folder))
        start = SessionLog(status=SessionLog.START)
        _open[folder].add_event(Event(session_log=start, step=step, wall_time=time.time()))
    return _open[folder]


def _scalars(values: Mapping[str, float | None]) -> Summary:
    """Those of the values that are numbers."""
    finite = {name: v for name, v in values.items() if v is not None and math.isfinite(v)}
    return Summary(value=[Summary.Value(tag=name, simple_value=v) for name, v in finite.items()])


def _text(tag: str, text: str) -> Summary:
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(
        dtype=DT_STRING,
        string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)])


def write_row(directory: Path, row: Mapping[str, float]) -> None:
    """One row of the history, at step `evaluations`; seconds."""
    step = int(row["evaluations"])
    values = {name: row[name] for name in ("best_s", "value_s", "mean_s", "seconds")}
    _writer(directory, step).add_event(Event(summary=_scalars(values), step=step, wall_time=time.time()))


def flush(run_dir: Path) -> None:
    """Write to disk what waits in the files below `run_dir`."""
    for folder, writer in _open.items():
        if folder.is_relative_to(run_dir):
            writer.flush()


def finish(directory: Path, summary: ProgramSummary, config: Mapping[str, Any]) -> None:
    """Totals at the last step, the configuration as text; closes the file."""
    step = summary.evaluations
    writer = _writer(directory, step)
    totals = {"result/value_s": summary.value_s, "result/bound_s": summary.bound_s, "result/gap": summary.gap}
    peaks = {f"peak_bytes/{device}": value for device, value in summary.peak_bytes.items()}
    described = "    " + json.dumps(config, indent=1).replace("\n", "\n    ")  # Markdown shows it as code
    for written in (_scalars({**totals, **peaks}), _text("config", described)):
        writer.add_event(Event(summary=written, step=step, wall_time=time.time()))
    _open.pop(directory / FOLDER).close()
