"""Small problems and components with a known optimum, for tests of policies and trainers. Plain numpy.

The machine of `FakeBackend` runs one operation at a time, and transfers take no time. The value of a placement is the sum of
the seconds of its groups on their devices, so the optimum is known: every group on its fastest device.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling import Kernel
from pydantic import Field

from placekit_core import (
    Backend,
    Checkpoint,
    Cluster,
    CostTable,
    Executable,
    Graph,
    GraphBuilder,
    Grouping,
    Imitates,
    LearnableOptions,
    LearnablePolicy,
    Ledger,
    Measurements,
    Options,
    PlacekitError,
    Placement,
    Placements,
    Problem,
    RecomputesLogProb,
    ReportsKL,
    Rollouts,
    Schedule,
    Session,
    State,
    Task,
    Trainer,
)
from placekit_testing.observed import Patient


def gpus(count: int = 2, cpus: int = 0, memory_bytes: int = 2**30) -> Cluster:
    """GPUs of 1 TFLOP/s and `memory_bytes`, CPUs of a tenth of that with 1 GiB, all linked to one hub at 1 GB/s."""
    full = {"compute": 1.0, "memory": 1.0}
    gpu = {
        "flops_per_s": {"float32": 1e12},
        "memory_bytes": memory_bytes,
        "memory_bytes_per_s": 1e15,
        "efficiency": {"other": full},
    }
    cpu = {**gpu, "type": "cpu", "flops_per_s": {"float32": 1e11}, "memory_bytes": 2**30}
    counts = {kind: n for kind, n in (("gpu", count), ("cpu", cpus)) if n}
    return Cluster.parse(
        {
            "name": f"fake{count}+{cpus}",
            "kinds": {kind: {"gpu": gpu, "cpu": cpu}[kind] for kind in counts},
            "devices": [{"kind": kind, "count": n} for kind, n in counts.items()],
            "links": [{"a": "*", "b": "hub", "bytes_per_s": 1e9}] if count + cpus > 1 else [],
        }
    )


def diamond_graph() -> Graph:
    """A weight and an input, then a -> (b, c) -> d; b and c can run side by side."""
    b = GraphBuilder("diamond")
    w = b.source("w", 4_000_000)
    x = b.source("x", 1_000_000, op_type="input")
    [a] = b.add("a", inputs=[x], outputs=[1_000_000], flops=2e9)
    [left] = b.add("b", inputs=[a, w], outputs=[1_000_000], flops=8e9)
    [right] = b.add("c", inputs=[a], outputs=[1_000_000], flops=8e9)
    b.add("d", inputs=[left, right], outputs=[1_000_000], flops=2e9)
    return b.build()


def chain_graph(n: int, seed: int = 0) -> Graph:
    """A chain of n operations of random length."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"chain{n}")
    t = b.source("x", 1000, op_type="input")
    for i in range(n):
        [t] = b.add(f"op{i}", inputs=[t], outputs=[1000], flops=float(rng.integers(1, 10)) * 1e9)
    return b.build()


def independent_graph(n: int, persistent_bytes: int = 0) -> Graph:
    """n operations of equal length that exchange nothing."""
    b = GraphBuilder(f"independent{n}")
    for i in range(n):
        b.add(f"op{i}", outputs=[1000], flops=1e9, persistent_bytes=persistent_bytes)
    return b.build()


def diamond(devices: int = 2) -> Problem:
    """The diamond on equal GPUs."""
    return Problem.of(diamond_graph(), gpus(devices))


def chain(n: int = 12, devices: int = 2) -> Problem:
    """A chain of n operations on equal GPUs."""
    b = GraphBuilder(f"chain{n}")
    t = b.source("x", 1000, op_type="input")
    for i in range(n):
        [t] = b.add(f"op{i}", inputs=[t], outputs=[1000], flops=float(1 + i % 5) * 1e9)
    return Problem.of(b.build(), gpus(devices))


def independent(n: int = 6, devices: int = 2) -> Problem:
    """n operations without edges on equal GPUs."""
    return Problem.of(independent_graph(n), gpus(devices))


def sources_only() -> Problem:
    """Three parameters that nothing reads: no kernel, no edge."""
    b = GraphBuilder("sources")
    for i in range(3):
        b.source(f"w{i}", 1000)
    return Problem.of(b.build(), gpus(2))


def mixed() -> Problem:
    """Twelve operations in a chain on two GPUs and a CPU; a third may run on the CPU only, a third on GPUs only."""
    b = GraphBuilder("mixed")
    t = b.source("x", 1000, op_type="input")
    for i in range(12):
        [t] = b.add(f"op{i}", inputs=[t], outputs=[1000], flops=1e9, allowed=("cpu", "gpu", "")[i % 3])
    return Problem.of(b.build(), gpus(2, cpus=1))


def tight() -> Problem:
    """Six operations of 30 bytes on three GPUs of 70: only two on each device fit."""
    return Problem.of(independent_graph(6, persistent_bytes=30), gpus(3, memory_bytes=70))


def grouped() -> Problem:
    """The diamond with the weight and its reader co-located, and the other operations in two groups: g = 3, n = 6."""
    graph = diamond_graph()
    tied = graph.replace(colocate=np.array([0, -1, -1, 0, -1, -1], np.int32))
    return Problem.of(tied, gpus(2), Grouping.of(np.array([0, 1, 1, 0, 2, 2])))


def unequal(n: int = 8, devices: int = 3) -> Problem:
    """n independent operations on devices of different kinds; each operation has one fast device."""
    kind = {"flops_per_s": {"float32": 1e12}, "memory_bytes": 2**30, "memory_bytes_per_s": 1e15}
    names = [f"gpu{d}" for d in range(devices)]
    cluster = Cluster.parse(
        {
            "name": f"unequal{devices}",
            "kinds": dict.fromkeys(names, kind),
            "devices": [{"kind": name} for name in names],
            "links": [{"a": "*", "b": "hub", "bytes_per_s": 1e9}] if devices > 1 else [],
        }
    )
    fast = np.random.default_rng(n).integers(0, devices, n)
    op_s = np.where(fast[:, None] == np.arange(devices), 1.0, 3.0)
    costs = CostTable(cluster.kind_names, op_s, np.zeros(op_s.shape, np.bool_))
    return Problem.of(independent_graph(n), cluster, None, costs)


class FakeOptions(Options):
    """Options of the fake backend."""

    failing: float = Field(0.0, ge=0, le=1, description="share of placements that fail, by an error or by not fitting")
    compiled: bool = Field(False, description="offer a compiled evaluation, too; failing placements then do not fit")


class FakeSession(Session):
    """One problem on the fake backend."""

    def __init__(self, problem: Problem, failing: float = 0.0, compiled: bool = False) -> None:
        self.problem, self.failing, self.compiled = problem, failing, compiled
        self.asked = 0  # number of placements given to `evaluate`, by any caller
        self.seen: set[bytes] = set()  # the devices of each of them
        self._kernel: Kernel | None = None
        graph = problem.graph
        read = np.isin(np.arange(graph.t), graph.input_tensor)
        written = np.bincount(graph.tensor_producer, graph.owned_bytes * read, minlength=graph.n)
        self.largest_bytes = np.zeros(problem.g)
        np.maximum.at(self.largest_bytes, problem.grouping.group_of, written)

    @property
    def evaluated(self) -> int:
        """Number of placements evaluated, by `evaluate` or through the kernel."""
        return self.asked + (0 if self._kernel is None else int(self._kernel.ints[0]))

    @property
    def gave_kernel(self) -> bool:
        """Whether somebody asked for the compiled evaluation, and got it."""
        return self._kernel is not None

    def evaluate(self, placements: Placements) -> Measurements:
        """The sum of the groups' seconds; a share `failing` of the placements fails.

        Peak memory is the persistent bytes plus the largest outputs of one kernel that are read.
        """
        p, device = self.problem, placements.device
        self.asked += len(device)
        self.seen |= {row.tobytes() for row in device}
        peak = np.zeros((len(device), p.cluster.size))
        np.add.at(peak, (np.arange(len(device))[:, None], device), p.group_persistent_bytes)
        largest = np.zeros(peak.shape)
        np.maximum.at(largest, (np.arange(len(device))[:, None], device), self.largest_bytes)
        peak += largest
        checksum = np.asarray([zlib.crc32(row.tobytes()) for row in device], np.int64)
        bad = checksum < self.failing * 2**32
        broken = bad & (checksum % 2 == 0) & (not self.compiled)
        peak[bad & ~broken] += p.cluster.memory_bytes + 1.0
        error = tuple("the fake failed" if b else None for b in broken)
        fits = ~broken & np.asarray((peak <= p.cluster.memory_bytes).all(axis=1))
        return Measurements(np.where(broken, np.nan, self._value_s(device)), peak, fits, error)

    def kernel(self) -> Kernel | None:
        """The compiled evaluation, if the options ask for one."""
        if self.compiled and self._kernel is None:
            from placekit_testing.fake_kernel import kernel_of

            self._kernel = kernel_of(self.problem, self.largest_bytes, self.failing)
        return self._kernel

    def loads(self) -> Any:
        """The sum of each device's groups, whose largest is never above the value: for policies that solve for loads."""
        from placekit_scheduling.loads import Loads

        p = self.problem
        bytes_ = p.group_persistent_bytes.astype(np.float64)
        return Loads(p.group_s, (), (), (), bytes_, self.largest_bytes, ())

    def _value_s(self, device: NDArray[np.int16]) -> NDArray[np.float64]:
        """[b] seconds for devices [b, g], added up in the order of the groups, as in the kernel."""
        total = np.zeros(len(device))
        for group, column in enumerate(device.T):
            total += self.problem.group_s[group, column]
        return total

    def schedule(self, placement: Placement) -> Schedule:
        """The operations one after another, in topological order; transfers take no time."""
        p, graph = self.problem, self.problem.graph
        device, order, end = p.expand(placement.device), graph.topological_order, np.zeros(graph.n)
        seconds = p.op_s[np.arange(graph.n), device]
        end[order] = np.cumsum(seconds[order])
        source, target = device[graph.tensor_producer[graph.input_tensor]], device[graph.edge_op]
        sent = np.unique(np.stack([graph.input_tensor, target], axis=1)[source != target], axis=0)
        tensor, to = sent[:, 0].astype(np.int32), sent[:, 1].astype(np.int16)
        producer = graph.tensor_producer[tensor]
        [value_s] = self._value_s(placement.device[None])
        return Schedule(
            device, np.zeros(graph.n, np.int32), end - seconds, end, tensor, device[producer], to, end[producer],
            end[producer], float(value_s),
        )  # fmt: skip

    def optimum(self) -> NDArray[np.int16]:
        """[g] the fastest allowed device of each group; the optimum if everything fits."""
        fastest = np.where(self.problem.allowed, self.problem.group_s, np.inf).argmin(axis=1)
        return np.asarray(fastest, np.int16)

    def lower_bound(self) -> float:
        """The value of the optimum."""
        return float(self._value_s(self.optimum()[None])[0])


class FakeBackend(Backend):
    """A simulator of a machine that runs one operation at a time; exact and deterministic."""

    name = "fake"
    options_class = FakeOptions
    objective = "blocking_latency"
    simulated = True
    deterministic = True

    def open(self, problem: Problem, executable: Executable | None = None) -> FakeSession:
        """A session, ready at once."""
        return FakeSession(problem, self.options.failing, self.options.compiled)


def fake_task(problem: Problem, budget: int | Ledger = 200, failing: float = 0.0, compiled: bool = False) -> Task:
    """A task on `FakeBackend`; `budget` is a number of evaluations, or a ledger to share with other tasks.

    Its evaluator fails the test if it is called again and again after the end of the budget.
    """
    ledger = Ledger(budget) if isinstance(budget, int) else budget
    return Task(problem, Patient(problem, FakeBackend(failing=failing, compiled=compiled).open(problem), ledger))


def session_of(task: Task) -> FakeSession:
    """The session behind a `fake_task`."""
    assert isinstance(task.evaluate.session, FakeSession)
    return task.evaluate.session


class FakeLearnable(LearnablePolicy, RecomputesLogProb, ReportsKL, Imitates):
    """An independent softmax over the allowed devices for each group: the smallest policy that passes the contract.

    Parameters: `logits`, sized for the most groups and devices among the problems that it is built for; group i has row i.
    With `explore` 0 it takes the most likely devices, else it draws them.
    """

    name = "fake_learnable"
    options_class = LearnableOptions
    logits: NDArray[np.float64]

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        shape = max(p.g for p in problems), max(p.cluster.size for p in problems)
        self.logits = 0.01 * rng.standard_normal(shape)

    def probability(self, problem: Problem) -> NDArray[np.float64]:
        """[g, D] probability of each device for each group."""
        g, size = problem.allowed.shape
        if g > len(self.logits) or size > self.logits.shape[1]:
            raise PlacekitError(
                f"policy {self.name!r} was built for {self.logits.shape} groups and devices, not for {(g, size)}"
            )
        z = np.where(problem.allowed, self.logits[:g, :size], -np.inf)
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        p, g = self.probability(problem), problem.g
        last = problem.cluster.size - 1 - problem.allowed[:, ::-1].argmax(axis=1)  # sums may end just below 1
        draw = np.minimum((rng.random((n, g, 1)) > p.cumsum(axis=1)).sum(axis=2), last)
        if explore == 0.0:
            draw = np.broadcast_to(p.argmax(axis=1), (n, g))
        group = np.ascontiguousarray(np.broadcast_to(np.arange(g, dtype=np.int32), (n, g)))
        return Rollouts(
            Placements.of(draw),
            group,
            draw.astype(np.int16),
            np.log(p[group, draw]),
            np.tile(_entropy(p), (n, 1)),
            extra={"probability": np.tile(p, (n, 1, 1))},
        )

    def gradients(
        self,
        problem: Problem,
        rollouts: Rollouts,
        weight: NDArray[np.float64],
        entropy_weight: float = 0.0,
        kl_weight: float = 0.0,
    ) -> dict[str, NDArray[Any]]:
        p = self.probability(problem)
        chosen = np.eye(problem.cluster.size)[rollouts.device]
        total = (weight[:, :, None] * (chosen - p)).sum(axis=0)
        total += entropy_weight * len(chosen) * -p * (_log(p) + _entropy(p)[:, None])
        if kl_weight:
            total -= kl_weight * (p - rollouts.extra["probability"]).sum(axis=0)
        return self._padded(total)

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        self.logits = self.logits + steps["logits"]

    def log_prob(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):  # a decision that is not allowed has probability 0
            return np.asarray(np.log(self.probability(problem)[rollouts.group, rollouts.device]))

    def kl(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        p = self.probability(problem)
        old = rollouts.extra["probability"]
        return np.asarray((old * (_log(old) - _log(p))).sum(axis=2))

    def imitate(self, problem: Problem, teacher: Rollouts, rng: Generator) -> tuple[float, dict[str, NDArray[Any]]]:
        log_prob = self.log_prob(problem, teacher)
        return -float(log_prob.mean()), self.gradients(problem, teacher, np.full(log_prob.shape, 1 / log_prob.size))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"logits": self.logits}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        if "logits" not in state:
            raise PlacekitError(f"the parameters of policy {self.name!r} lack 'logits'")
        new = np.array(state["logits"], np.float64)
        if new.shape != self.logits.shape:
            raise PlacekitError(f"parameter 'logits' of policy {self.name!r} is {self.logits.shape}, not {new.shape}")
        self.logits = new

    def _padded(self, step: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        full = np.zeros_like(self.logits)
        full[: step.shape[0], : step.shape[1]] = step
        return {"logits": full}


def _log(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """log p, or 0 if p is 0, where the terms p log p vanish."""
    return np.log(np.where(p > 0, p, 1.0))


def _entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-(p * _log(p)).sum(axis=1))


class FakeTrainerOptions(Options):
    """Options of the fake trainer."""

    episodes: int = Field(8, ge=2, description="episodes per update")
    rate: float = Field(1.0, gt=0, description="step along the gradient")


class FakeTrainer(Trainer):
    """REINFORCE (Williams 1992) on one task after another, with the batch's normalized scores as advantages."""

    name = "fake_trainer"
    options_class = FakeTrainerOptions

    def fit(
        self,
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        rng: Generator,
        state: State | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Train until the budget ends."""
        updates = 0 if state is None else int(state["updates"])
        while True:
            task = tasks[updates % len(tasks)]
            r = policy.rollout(task.problem, self.options.episodes, rng, explore=1.0)
            score = task.evaluate.scores(task.evaluate(r.placements))
            advantage = (score.mean() - score) / (score.std() + 1e-12)
            weight = np.repeat(advantage[:, None], r.group.shape[1], axis=1)
            steps = policy.gradients(task.problem, r, weight)
            policy.apply({name: self.options.rate * step for name, step in steps.items()})
            updates += 1
            if checkpoint is not None:
                checkpoint({"updates": updates})
