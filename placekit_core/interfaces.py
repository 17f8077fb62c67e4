"""The contracts. A plugin subclasses one of these; `Component` in hookspecs.py says where the class is.

Every component is built from its options (`cls(options)`) and nothing else, so that another process can build it again.
Plain data crosses every boundary: numpy arrays and pydantic models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from placekit_core.calibration import Calibration
from placekit_core.cluster import Cluster
from placekit_core.errors import BackendError, ImporterError, PlacekitError
from placekit_core.graph import Graph
from placekit_core.grouping import Grouping
from placekit_core.measurement import Kernel, Measurements, Schedule
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Problem, Program, Task

State = Mapping[str, Any]  # nested dicts of arrays, numbers, strings, lists: what a checkpoint holds
Checkpoint = Callable[[State], None]  # call it at points from which the state continues exactly


class Options(BaseModel):
    """Base of a component's options: unknown names are refused, and the defaults here are the only defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LearnableOptions(Options):
    """Base of the options of learnable policies."""

    checkpoint: str | None = Field(
        None,
        description="run directory whose trained policy to start from (`policy.safetensors`), or `pkg://PACKAGE/FOLDER`:"
        " one that a package ships; null: untrained",
    )


class Plugin(ABC):
    """What all components share: a name and options."""

    name: ClassVar[str]
    options_class: ClassVar[type[BaseModel]] = Options

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        self.options: Any = self.options_class(**values) if options is None else options


class Executable(Protocol):
    """How to run a program for real; the core never imports torch for it.

    Values are tensors of whatever library the importer uses, addressed by the tensor numbers of the graph. What must be
    kept are the values of base tensors: one in `views` is redone from its base wherever the base is. A device without the
    base receives just the view; copies between devices keep strides, or the last bits of results may change.
    """

    @property
    def recipe(self) -> Mapping[str, Any]:
        """`{"importer": name, "options": {...}}`, from which another process rebuilds it; empty if none can."""
        ...

    def initial(self, seed: int | None = None) -> dict[int, Any]:
        """Values of all sources (parameters, buffers, optimiser state, example inputs), without views; own copies.

        None: the seed of the importer's options.
        """
        ...

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, Any]]:
        """`run(values, step=0)`, which runs kernels `ops`, in this order, on `device` (of the library; None: the CPU).

        `values` has the tensors that the operations read and do not produce; of a tensor in `views`, itself or its base.
        It returns the tensors that they produce, without views; with `keep`, only those of them, and others are dropped
        after their last use. Random operations are seeded by (`step`, operation). One function is not for two threads.
        """
        ...

    @property
    def views(self) -> Mapping[int, int]:
        """Tensors that are views, with the tensor of which each is one (itself no view)."""
        ...

    def view(self, tensor: int) -> Callable[[Any], Any]:
        """The function from the value of `views[tensor]` to that of `tensor`, which shares its memory."""
        ...

    @property
    def updates(self) -> Mapping[int, int]:
        """New value for old: tensor that replaces a source's tensor at the end of the step, by the source's tensor."""
        ...

    @property
    def results(self) -> Mapping[str, int]:
        """What the step computes (`loss`, `output.0`, ...): the tensor that each is made of, to be kept for `result`."""
        ...

    def result(self, name: str, values: Mapping[int, Any]) -> Any:
        """The result `name`, from values that hold tensor `results[name]` or its base."""
        ...

    @property
    def random_ops(self) -> frozenset[int]:
        """Operations that draw random numbers: seeded by (step, operation), whatever the placement."""
        ...


class Importer(Plugin):
    """Turns a source of programs into graphs."""

    @abstractmethod
    def load(self) -> list[Program]:
        """The programs: a list of one, or a family. Raises ImporterError."""

    @classmethod
    def convert(cls, source: Any, **about: Any) -> list[Program]:
        """The programs of an object, for importers whose component names its type in `objects`.

        `about` is what else the importer needs to know of it. Raises ImporterError.
        """
        raise ImporterError(f"importer {cls.name!r} takes no objects")

    @classmethod
    def write(cls, program: Program, path: Path) -> None:
        """Write a program to `path` as `load` reads it, for importers whose component says `writes`. Raises PlacekitError."""
        raise ImporterError(f"importer {cls.name!r} writes no files")

    def export(self, placement: Placement, problem: Problem, path: Path) -> Path:
        """Write a placement in the source's own format, for formats that can hold one. Raises ImporterError."""
        raise ImporterError(f"importer {self.name!r} has no format that holds a placement", "use `placement.json`")


class Grouper(Plugin):
    """Partitions the operations of a graph into groups that are placed as one."""

    acyclic: ClassVar[bool] = True
    """The forward phase of the graph of groups has no cycle (the whole one may: a group holds its gradients)."""

    @abstractmethod
    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """The groups. Keeps co-located operations together."""


class Policy(Plugin):
    """Finds a placement. It reaches backends through `task.evaluate` and `task.proxy` only."""

    level: ClassVar[Literal["group", "operation"]] = "group"
    """`operation`: the policy groups by itself, and gets a problem whose groups are single (co-located) operations."""

    @abstractmethod
    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """A placement of `task.problem`.

        May evaluate placements on the way (best of 50, annealing); the run keeps the best that it saw. Continues exactly
        from `state` if given (what an earlier call handed to `checkpoint`), with `rng` as it was then.
        """


@dataclass(frozen=True, eq=False)
class Rollouts:
    """b episodes of at most T decisions each.

    Attributes:
        placements: [b, g] where the episodes end.
        group: [b, T] group that each decision is about; -1 after the end of a shorter episode.
        device: [b, T] device that it puts the group on.
        log_prob: [b, T] natural logarithm of the probability of each decision.
        entropy: [b, T] entropy of the distribution that it was drawn from, nats.
        start: [b, g] placements that episodes which improve one start from, or None.
        extra: whatever the policy needs to recompute the decisions (other actions, the distribution drawn from).
    """

    placements: Placements
    group: NDArray[np.int32]
    device: NDArray[np.int16]
    log_prob: NDArray[np.float64]
    entropy: NDArray[np.float64]
    start: Placements | None = None
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def intermediate(self) -> Placements:
        """[b * (T + 1), g] placements after 0..T decisions of each episode, row b * (T + 1) + t. Needs `start`."""
        if self.start is None:
            raise PlacekitError("these rollouts build a placement from nothing: they have no intermediate placements")
        b, steps = self.group.shape
        device = np.repeat(self.start.device[:, None, :], steps + 1, axis=1)
        rows = np.arange(b)
        for t in range(steps):
            active = self.group[:, t] >= 0
            device[rows[active], t + 1 :, self.group[active, t]] = self.device[active, t][:, None]
        return Placements.of(device.reshape(b * (steps + 1), -1))


class LearnablePolicy(Policy):
    """A policy with parameters. It never evaluates: its trainer does, and hands it weights for its gradients.

    Its options derive from `LearnableOptions`.
    """

    free_options: ClassVar[tuple[str, ...]] = ("checkpoint", "threads")
    """Options that may differ from those that the parameters of `checkpoint` were trained with."""

    @abstractmethod
    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        """Size and initialise the parameters for these problems; compile what will be needed: no budget's clock runs yet."""

    @abstractmethod
    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        """n episodes; `explore` in [0, 1] is the schedule's exploration (the policy says of what)."""

    def rollout_near(self, problem: Problem, placement: Placement, n: int, rng: Generator, explore: float) -> Rollouts:
        """n episodes in which about the share `explore` of the decisions are drawn, and the others are those of `placement`.

        Only the drawn ones have gradients.
        """
        raise PlacekitError(
            f"policy {self.name!r} has no episodes near a placement", "use a trainer that asks for none"
        )

    @abstractmethod
    def gradients(
        self,
        problem: Problem,
        rollouts: Rollouts,
        weight: NDArray[np.float64],
        entropy_weight: float = 0.0,
        kl_weight: float = 0.0,
    ) -> dict[str, NDArray[Any]]:
        """Gradient, by parameter, to be ascended.

        It is that of sum(weight[b, t] * log_prob[b, t]) + entropy_weight * sum(entropy) - kl_weight * sum(kl); a policy
        without `kl` raises PlacekitError for another `kl_weight` than 0.
        """

    @abstractmethod
    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        """Add `steps` to the parameters of the same names."""

    def log_prob(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        """[b, t] log-probability of the same decisions under the current parameters: what importance ratios need."""
        raise PlacekitError(
            f"policy {self.name!r} does not recompute log-probabilities", "use a trainer that needs none"
        )

    def kl(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        """[b, t] KL divergence of the current distribution from the one drawn from, sum of old log(old / new), nats."""
        raise PlacekitError(f"policy {self.name!r} does not report KL divergences", "use a trainer that needs none")

    def imitate(self, problem: Problem, teacher: Rollouts, rng: Generator) -> tuple[float, dict[str, NDArray[Any]]]:
        """Loss (nats per decision) and gradient to be ascended, towards the decisions of `teacher`."""
        raise PlacekitError(
            f"policy {self.name!r} cannot imitate a teacher", "use a trainer without a supervised stage"
        )

    def teach(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        """n episodes for `imitate`: its own, or others, with what its teacher would decide in their states."""
        raise PlacekitError(f"policy {self.name!r} has no teacher", "use a trainer without a supervised stage")

    @abstractmethod
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The parameters."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the parameters. Raises PlacekitError that names what is missing or of another shape."""

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The placement of one episode without exploration."""
        device, priority = self.rollout(task.problem, 1, rng).placements.one(0)
        return task.problem.placement(device, priority)


class Trainer(Plugin):
    """Improves a learnable policy by what backends say of its placements."""

    @abstractmethod
    def fit(
        self,
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        rng: Generator,
        state: State | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Train `policy` on `tasks`, all of them, until an evaluator ends it by BudgetExhausted; it returns no earlier.

        `checkpoint` is called with the trainer's state where everything (policy, optimiser, generators, baselines,
        evaluators) is consistent; the run adds the policy, the generators and the evaluators.
        """


class Session(ABC):
    """One problem, opened on a backend."""

    @abstractmethod
    def evaluate(self, placements: Placements) -> Measurements:
        """Measure a batch. What does not fit, or fails, is a value of the measurement, not an exception."""

    @abstractmethod
    def schedule(self, placement: Placement) -> Schedule:
        """The timed events of one run."""

    def lower_bound(self) -> float | None:
        """A value that no placement can beat, proven for this objective, in seconds; None where nothing is proven."""
        return None

    def kernel(self) -> Kernel | None:
        """A numba-callable evaluation for compiled searches, or None."""
        return None

    def close(self) -> None:
        """Give back what the session holds."""
        return None


class Backend(Plugin):
    """Says how good placements are."""

    objective: ClassVar[Literal["makespan", "max_load", "blocking_latency"]] = "makespan"
    simulated: ClassVar[bool]
    deterministic: ClassVar[bool]
    parallel: ClassVar[bool] = False
    """`evaluate` may be called from several processes at once without changing the values."""

    def devices(self) -> Cluster | None:
        """The machine that it can see; None for simulators."""
        return None

    def hardware(self) -> str:
        """What it measures on, for people: processor or GPUs, and the versions that decide; empty for simulators."""
        return ""

    @abstractmethod
    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        """Get ready to evaluate placements of `problem`. Raises BackendError if it cannot."""

    def calibrate(self, programs: Sequence[Program], cluster: Cluster | None = None, repeats: int = 9) -> Calibration:
        """Measure what the operations of `programs`, launches and links take on the devices of `cluster` (or `devices()`).

        Every figure is a median of `repeats` samples. Operations with equal signatures are measured once. Raises
        BackendError: a simulator measures nothing.
        """
        raise BackendError(f"backend {self.name!r} measures nothing", "use backend=cpu or backend=cuda")
