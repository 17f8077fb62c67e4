"""Backend `pipeline`: stages over micro-batches, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_layers.following import leaders
from placekit_scheduling import ROUNDING, Kernel, critical_path_bound
from placekit_scheduling.fields import Field
from placekit_scheduling.loads import Loads
from pydantic import BaseModel

from placekit_core import Backend, BackendError, Baseline, Executable, Placement, Problem, Schedule, Session
from placekit_pipeline import PipelineOptions
from placekit_pipeline.bounds import divided_load_bound, load_bound, with_seconds
from placekit_pipeline.cycles import cycle
from placekit_pipeline.loads import pipeline_loads
from placekit_pipeline.nets import AGAIN, AHEAD, BACKWARD, grid, held_channels, nets_of, on_grid, pointer
from placekit_pipeline.pipeline_sums import FIELDS, PAIRS
from placekit_pipeline.recording import Run, schedule_of
from placekit_pipeline.replicas import BUCKET, REPLICAS, Replicas
from placekit_pipeline.session import KernelSession
from placekit_pipeline.stages import Stages, forward_order

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble", "inference")
OBJECTIVES = ("step", "throughput", "token")
MAX_CHUNKS = 8  # of a device, under `interleaved`
MAX_STAGES = 256
_ROOM = 2**26  # entries of working space


class Pipeline(Backend):
    """Each device runs one stage: the operations placed on it, for one micro-batch after the other.

    The program is one micro-batch; a step has `microbatches` of them. The package's README has the rules in full. A placement
    whose stages wait for each other has no value.
    """

    name = "pipeline"
    options_class = PipelineOptions
    simulated = True
    deterministic = True
    parallel = True

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        self.objective = self.options.objective

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        return PipelineSession(problem, self.options)


class PipelineSession(KernelSession):
    """One problem under one schedule."""

    def __init__(self, problem: Problem, options: PipelineOptions) -> None:
        super().__init__(problem, options.threads)
        self.options = options
        self.replicas = Replicas.of(self.problem.cluster, options.replicas, options.shares, options.microbatches)
        if options.objective == "step":
            self.repeats = options.microbatches
        graph = self.problem.graph
        trains = bool((graph.kernel & (graph.phase == BACKWARD)).any())
        chosen = ("1f1b" if trains else "inference") if options.schedule == "auto" else options.schedule
        self.schedule_name = chosen
        self.stages = Stages.of(
            self.problem, chosen != "inference", options.checkpointing == "block" and trains, chosen == "zero_bubble"
        )
        self.chunks = MAX_CHUNKS if chosen == "interleaved" else 1
        if self.chunks > 1 and len(self.replicas) > 1:
            raise BackendError(
                f"schedule 'interleaved' runs one row of {REPLICAS}, not {len(self.replicas)}",
                "use backend.schedule=1f1b or zero_bubble",
            )
        self._check_size()

    def load(self) -> tuple[Any, Sequence[Field]]:
        from placekit_pipeline.pipeline_kernel import pipeline

        return pipeline, FIELDS

    def _check_size(self) -> None:
        stages = self.problem.cluster.size * self.chunks
        if stages > MAX_STAGES or stages * self.options.microbatches > _ROOM // 8:
            raise BackendError(
                f"{self.problem.cluster.size} devices with up to {self.chunks} stages each and {self.options.microbatches}"
                f" micro-batches are too many for backend 'pipeline' (at most {MAX_STAGES} stages, {_ROOM // 8} tasks)",
                "use fewer devices or micro-batches",
            )

    def build(self) -> Kernel:
        return self._kernel(record=False)

    @cached_property
    def shards(self) -> bool:
        """Whether each member of a ring keeps and updates only its part of the optimiser's state."""
        return self.options.shard_optimizer and len(self.replicas) > 1 and self.schedule_name != "inference"

    def _kernel(self, record: bool) -> Kernel:
        problem, cluster, stages = self.problem, self.problem.cluster, self.stages
        size, microbatches = cluster.size, self.options.microbatches
        count = size * self.chunks
        nets = nets_of(problem, stages.phase)
        group_ptr, group_net = nets.of_groups(problem.g)
        holder_ptr, group_store = stages.stores.of_groups(problem.g)
        group_s = stages.group_s()
        step = grid(float(group_s.max(axis=1).sum()))
        tied, before_ptr, before, leader = self._levels()
        rows, columns = len(self.replicas), self.replicas.tables(count)
        gradient_bytes = stages.gradient_bytes
        averaged = rows * (int(gradient_bytes.sum()) // BUCKET + size) if rows > 1 else 0  # messages of rings
        routes = cluster.routes
        numbers = {
            "g": problem.g, "size": size, "stages": count, "chunks": self.chunks, "nets": len(nets),
            "stores": len(stages.stores.bytes_), "channels": len(routes.channels),
            "sets": len(before_ptr) - 1,
            "microbatches": microbatches, "schedule": SCHEDULES.index(self.schedule_name),
            "objective": OBJECTIVES.index(self.options.objective), "record": record, "rows": rows,
            "shared": self.replicas.shared, "overlap": self.options.overlap, "shard": self.shards,
        }  # fmt: skip
        held = self.held()
        arrays = {
            "kind": nets.kind, "producer": nets.producer, "ptr": nets.ptr, "reader": nets.reader, "late": nets.late,
            "group_ptr": group_ptr, "group_net": group_net, "store_once": stages.stores.once,
            "store_ptr": stages.stores.ptr, "holder": stages.stores.holder, "holder_ptr": holder_ptr,
            "group_store": group_store, "works": stages.works, "held_ptr": pointer(held),
            "held": np.concatenate(held), "tied": tied, "leader": leader,
            "before_ptr": before_ptr, "before": before, "group_s": on_grid(group_s, step),
            "group_bytes": problem.group_persistent_bytes, "work_bytes": stages.work_bytes, "bytes_": nets.bytes_,
            "store_bytes": stages.stores.bytes_, "latency_s": routes.latency_s,
            "s_per_byte": routes.s_per_byte, "lead": self._lead(), "gradient_bytes": gradient_bytes,
            "state_bytes": stages.state_bytes, **columns,
        }  # fmt: skip
        sizes = {
            "one": 1, "g": problem.g, "counts": len(nets) * count, "store_counts": len(stages.stores.bytes_) * count,
            "stages": count, "size": size, "pairs": PAIRS * count * count, "parts": 4 * count,
            "levels": count * size if self.chunks > 1 else 0, "sets": max(len(before_ptr) - 1, 0), "tasks": count * microbatches,
            "events": 2 * count * microbatches + 2 * size + count + 8, "channels": len(routes.channels),
            "rows": rows, "members": len(columns["member"]), "batches": microbatches,
            "recorded_counts": 2 if record else 0,
            "recorded_tasks": 3 * (3 * count * microbatches + size) if record else 0,
            "recorded_messages": 4 * (min(PAIRS * count * count, len(nets.reader)) * microbatches + averaged) if record else 0,
        }  # fmt: skip
        return self.packed(self.function, self.fields, numbers, arrays, sizes)

    def _lead(self) -> NDArray[np.int64]:
        """[g, D] the leader of the column that each device means; -1 if none, or if a replica may not run the group."""
        means = self.replicas.lead(np.arange(self.problem.cluster.size))
        lead = np.tile(means, (self.problem.g, 1))
        for leader, members in self.replicas.members.items() if len(self.replicas) > 1 else ():
            lead[np.ix_(~self.problem.allowed[:, members].all(axis=1), means == leader)] = -1
        return lead

    def held(self) -> list[NDArray[np.int64]]:
        """The channels that each route occupies."""
        return held_channels(self.problem.cluster)

    def loads(self) -> Loads | None:
        """The loads of throughput and steps, for policies that minimise them; a token's seconds are not a load.

        None with replicas: a group then loads several devices.
        """
        o = self.options
        if o.objective == "token" or o.replicas:
            return None
        nets, backward = nets_of(self.problem, self.stages.phase), self.schedule_name != "inference"
        steps = o.microbatches if o.objective == "step" else 0
        return pipeline_loads(self.stages, nets, self.held(), backward, self.chunks, steps)

    def _levels(self) -> tuple[NDArray[np.int64], ...]:
        """The arrays from which `interleaved` forms chunks; empty for other schedules."""
        if self.chunks == 1:
            none = np.zeros(0, np.int64)
            return none, none, none, none
        return *forward_order(self.problem, self.stages.phase), leaders(self.problem)

    def reason(self, device: NDArray[np.int16]) -> str:
        """Why the placement `device` [g], whose evaluation gave infinity, has no value: the stages that wait for each other."""
        problem, kernel, schedule = self.problem, self.kernel(), self.schedule_name
        names, size = problem.cluster.device_names, problem.cluster.size
        lead = self.replicas.lead(device)
        if (lead < 0).any():
            return self.replicas.why_not(int(device[lead < 0][0]), names)
        barred = np.flatnonzero(self._lead()[np.arange(problem.g), device] < 0)
        if len(barred):
            members = ", ".join(names[d] for d in self.replicas.members[int(lead[barred[0]])])
            return (
                f"group {problem.grouping.name(barred[0])!r} may not run on all of {members}, the replicas of a stage"
            )
        ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
        home = np.require(device, np.int16, ["C", "W"])
        kernel.function(home, np.zeros(0, np.float32), kernel.ints, kernel.floats, ints, floats, np.empty(size))
        at = {field.name: int(kernel.ints[i]) for i, field in enumerate(FIELDS)}

        def messages(kind: int) -> set[tuple[int, int]]:
            """Pairs (sender, receiver) of stages with messages of this kind."""
            stages = at["stages"]
            table = ints[at["messages"] + kind * stages * stages :][: stages * stages].reshape(stages, stages)
            return {(int(a), int(b)) for a, b in np.argwhere(table > 0)}

        loop = cycle(messages(AHEAD))
        if loop:
            chain = " -> ".join(names[s % size] for s in loop)
            if self.chunks > 1:
                return (
                    f"stages wait for each other, or a device has more than {self.chunks} chunks (consecutive parts of the"
                    f" network): {chain}"
                )
            whole = schedule == "inference" and bool((problem.graph.phase == BACKWARD).any())
            note = " (inference runs the whole program in one pass, its backward phase too)" if whole else ""
            return f"stages wait for each other: {chain}{note}"
        loop = cycle({(a % size, b % size) for a, b in messages(AGAIN) if a % size != b % size})
        if loop and self.options.objective == "step":
            return "updates wait for each other: " + " -> ".join(names[d] for d in loop)
        return (
            "tasks wait for each other: gradients do not flow back the way that activations came, or schedule"
            f" {schedule!r} runs other tasks first"
        )

    @cached_property
    def _bound_s(self) -> float | None:
        """See `lower_bound`."""
        stages, m = self.stages, self.options.microbatches
        token = self.options.objective == "token"
        batch = (stages.part == 0) if token else (stages.part >= 0) & (stages.part < 3)
        path = critical_path_bound(with_seconds(self.problem, batch.astype(np.float64))) * (1 - ROUNDING)
        if token:
            return path
        each = batch.astype(np.float64) + stages.repeats
        if self.options.objective == "throughput":
            return self._work_bound(each)
        # a device may update another fraction of a group than that of its micro-batches, if updates are divided, too
        return max(self._work_bound(m * each + (stages.part == 3) * (not self.shards)), path)

    def _work_bound(self, times: NDArray[np.float64]) -> float:
        """The least load of the busiest device if operation v runs `times[v]` times."""
        problem = with_seconds(self.problem, times)
        alone = load_bound(problem) if len(self.replicas) == 1 else 0.0
        if not self.options.replicas:
            return alone
        return max(alone, divided_load_bound(problem, sorted({d for row in self.replicas.rows for d in row})))

    def baselines(self) -> list[Baseline]:
        """`equal_stages`: the same number of layers on each device, in the machine's order; `replicas`: the network on each.

        The devices are the GPUs that may run everything; without any, all such devices. A token has neither: no second
        device makes it faster. A session with replicas compares with the network on one device instead.
        """
        problem, o, found = self.problem, self.options, list[Baseline]()
        able = np.flatnonzero(problem.allowed.all(axis=0)).tolist()
        devices = [d for d in able if problem.device_type(d) == "gpu"] or able
        if o.objective == "token" or len(devices) < 2:
            return found
        one = problem.placement(np.full(problem.g, devices[int(problem.group_s.sum(axis=0)[devices].argmin())]))
        if o.replicas:
            alone = o.model_copy(update={"replicas": [], "shares": None})
            return _measured("one_device", PipelineSession(problem, alone), one)
        stages = equal_stages(problem, devices)
        if stages is not None:
            found += _measured("equal_stages", self, stages)
        if o.microbatches >= len(devices) and self.chunks == 1:
            copies = o.model_copy(update={"replicas": [[d] for d in devices]})
            found += _measured(
                "replicas", PipelineSession(problem, copies), problem.placement(np.full(problem.g, devices[0]))
            )
        return found

    def lower_bound(self) -> float | None:
        """Of a step: the work of all micro-batches over all devices, and one micro-batch's longest path, as for makespans.

        Of throughput: the work of one micro-batch. Of a token: the longest path of its forward pass.
        """
        return self._bound_s

    def schedule(self, placement: Placement) -> Schedule:
        """The events of a step: all tasks of all micro-batches, and the operations of the first micro-batch.

        Raises BackendError if the placement has no value.
        """
        kernel = self._kernel(record=True)
        problem = self.problem
        ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
        device = np.require(placement.device, np.int16, ["C", "W"])
        peak = np.empty(problem.cluster.size)
        value_s = self.function(device, np.zeros(0, np.float32), kernel.ints, kernel.floats, ints, floats, peak)
        if np.isinf(value_s):
            raise BackendError(f"this placement has no schedule: {self.reason(placement.device)}")
        run = Run.read(FIELDS, kernel, ints, floats, self.chunks)
        return schedule_of(self.stages, self.replicas, placement.device, run, value_s)


def equal_stages(problem: Problem, devices: Sequence[int]) -> Placement | None:
    """The blocks of equally many layers on each device; None if there are fewer layers than devices."""
    blocks = sequence(problem)
    layer = np.flatnonzero(blocks.layer)
    if len(layer) < len(devices):
        return None
    number = np.clip(np.searchsorted(layer, np.arange(len(blocks)), side="right") - 1, 0, None)
    return blocks.placement(np.asarray(devices)[number * len(devices) // len(layer)])


def _measured(name: str, session: PipelineSession, placement: Placement) -> list[Baseline]:
    """The baseline of a placement; empty if its stages wait for each other."""
    found = session.evaluate(placement.batch())
    if found.error[0] is not None:
        return []
    if not found.fits[0]:
        return [Baseline(policy=name, value_s=None, fits=False)]
    peak = dict(zip(session.problem.cluster.device_names, found.peak_bytes[0].tolist(), strict=True))
    return [Baseline(policy=name, value_s=float(found.value_s[0]), fits=True, peak_bytes=peak)]
