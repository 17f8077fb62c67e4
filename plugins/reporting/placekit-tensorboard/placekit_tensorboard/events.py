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

from placekit_core import ProgramSummary

FOLDER = "tensorboard"


class EventFile:
    """One event file in the folder of a program.

    Its first event, at `step`, makes TensorBoard forget later steps of an older file: those of a run that was killed.
    """

    def __init__(self, directory: Path, step: int) -> None:
        self._writer = EventFileWriter(str(directory / FOLDER))
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(session_log=start, step=step, wall_time=time.time()))

    def add_row(self, row: Mapping[str, float]) -> None:
        """One row of the history, at step `evaluations`: its values, and the trainer's own, such as `loss`."""
        values = {name: value for name, value in row.items() if name != "evaluations"}
        self._add(_scalars(values), int(row["evaluations"]))

    def flush(self) -> None:
        """Write the waiting events to disk."""
        self._writer.flush()

    def finish(self, summary: ProgramSummary, config: Mapping[str, Any]) -> None:
        """Totals at the last step, the configuration as text; closes the file."""
        totals = {"result/value_s": summary.value_s, "result/bound_s": summary.bound_s, "result/gap": summary.gap}
        peaks = {f"peak_bytes/{device}": value for device, value in summary.peak_bytes.items()}
        described = "    " + json.dumps(config, indent=1).replace("\n", "\n    ")  # Markdown shows it as code
        self._add(_scalars({**totals, **peaks}), summary.evaluations)
        self._add(_text("config", described), summary.evaluations)
        self._writer.close()

    def _add(self, summary: Summary, step: int) -> None:
        self._writer.add_event(Event(summary=summary, step=step, wall_time=time.time()))


def _scalars(values: Mapping[str, float | None]) -> Summary:
    """The values that are numbers."""
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
