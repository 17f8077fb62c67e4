"""Ways to run a network on several devices that people try first: equal stages, and replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from placekit_layers import sequence

from placekit_core import Baseline, PlacekitError, Placement

if TYPE_CHECKING:
    from placekit_pipeline.pipeline import PipelineSession


def baselines(session: PipelineSession) -> Iterator[Baseline]:
    """`equal_stages`: as many layers on each device, in the order of the machine. `replicas`: the network on each device.

    The devices are the machine's GPUs; without any, all. Neither stands for a token, which no second device makes faster, and
    neither for sessions with replicas of their own.
    """
    problem, o = session.problem, session.options
    gpus = [d for d in range(problem.cluster.size) if problem.device_type(d) == "gpu"]
    devices = gpus or list(range(problem.cluster.size))
    if o.objective == "token" or o.replicas or len(devices) < 2:
        return
    stages = _equal_stages(session, devices)
    if stages is not None:
        yield _measured("equal_stages", session, stages)
    if o.microbatches >= len(devices) and session.schedule_name != "interleaved":
        from placekit_pipeline.pipeline import PipelineSession

        copies = PipelineSession(problem, o.model_copy(update={"replicas": [[d] for d in devices]}))
        yield _measured("replicas", copies, problem.placement(np.full(problem.g, devices[0])))


def _equal_stages(session: PipelineSession, devices: list[int]) -> Placement | None:
    """The blocks of as many layers on each device; None if there are fewer layers than devices."""
    blocks = sequence(session.problem)
    layer = np.flatnonzero(blocks.layer)
    if len(layer) < len(devices):
        return None
    number = np.clip(np.searchsorted(layer, np.arange(len(blocks)), side="right") - 1, 0, None)
    return blocks.placement(np.asarray(devices)[number * len(devices) // len(layer)])


def _measured(name: str, session: PipelineSession, placement: Placement) -> Baseline:
    """The baseline's value. Raises PlacekitError if it has none."""
    found = session.evaluate(placement.batch())
    if found.error[0] is not None:
        raise PlacekitError(f"baseline {name!r} has no value: {found.error[0]}")
    fits = bool(found.fits[0])
    peak = dict(zip(session.problem.cluster.device_names, found.peak_bytes[0].tolist(), strict=True))
    return Baseline(
        policy=name, value_s=float(found.value_s[0]) if fits else None, fits=fits, peak_bytes=peak if fits else {}
    )
