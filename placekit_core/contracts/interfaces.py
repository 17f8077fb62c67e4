"""The contracts. A plugin subclasses one of these classes; its `Component` (hookspecs.py) says where the subclass is.

Every component is built from its options (`cls(options)`) and nothing else, so that another process can build it again.
Components exchange plain data only: numpy arrays and pydantic models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import BaseModel

from placekit_core.contracts.cluster import Cluster
from placekit_core.contracts.costs import Calibration
from placekit_core.contracts.errors import BackendError, ConfigError, ImporterError
from placekit_core.contracts.graph import Graph
from placekit_core.contracts.grouping import Grouping
from placekit_core.contracts.options import LearnableOptions, Options
from placekit_core.contracts.placement import Placement, Placements
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.program import Executable, Program
from placekit_core.contracts.task import Session, Task

State = Mapping[str, Any]  # the content of a checkpoint: nested dicts of arrays, numbers, strings, lists
Checkpoint = Callable[[State], None]  # call it with a state from which the run can continue exactly


class Plugin(ABC):
    """Base of all components: a name and options."""

    name: ClassVar[str]
    options_class: ClassVar[type[BaseModel]] = Options

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        self.options: Any = self.options_class(**values) if options is None else options


class Importer(Plugin):
    """Turns a source of programs into graphs."""

    @abstractmethod
    def load(self) -> list[Program]:
        """The programs: a list of one, or a family. Raises ImporterError."""

    @classmethod
    def convert(cls, source: Any, **about: Any) -> list[Program]:
        """The programs of an object, for importers that list its type in the `objects` of their `Component`.

        `about` holds everything else that the importer needs to know about the object. Raises ImporterError.
        """
        raise ImporterError(f"importer {cls.name!r} takes no objects")

    @classmethod
    def write(cls, program: Program, path: Path) -> None:
        """Write a program to `path` as `load` reads it; needed if the `Component` has `writes`. Raises PlacekitError."""
        raise ImporterError(f"importer {cls.name!r} writes no files")

    @classmethod
    def placed_text(cls, program: Program, devices: Sequence[str]) -> str:
        """A program in the importer's format, with the name of each operation's device. Raises PlacekitError.

        Only importers whose format holds a placement have it.
        """
        raise ImporterError(f"the format of importer {cls.name!r} holds no placements")


class Grouper(Plugin):
    """Partitions the operations of a graph into groups that are placed as one."""

    acyclic: ClassVar[bool] = True
    """Whether the groups of the forward phase form no cycle. In a whole step they may: a group also holds its gradients."""
    requested: ClassVar[bool] = True
    """Whether choosing this grouper is a request: the run notes it if the policy ignores groups."""

    @abstractmethod
    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """The groups; co-located operations stay together."""


class Policy(Plugin):
    """Finds a placement. It reaches backends through `task.evaluate` and `task.proxy` only."""

    level: ClassVar[Literal["group", "operation"]] = "group"
    """`operation`: the policy does its own grouping; each group of its problem is one operation (or one co-located set)."""

    @abstractmethod
    def place(self, task: Task, rng: Generator) -> Placement:
        """A placement of `task.problem`.

        It may evaluate placements on the way (best of 50, annealing); the run keeps the best one evaluated.
        """


class ResumablePolicy(Policy):
    """A policy that can go on where an interrupted run left off."""

    @abstractmethod
    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """A placement of `task.problem`; calls `checkpoint` with its state at points from which it can continue exactly.

        Given such a `state` from an earlier call, it continues from there; `rng` is as it was at that point.
        """


@dataclass(frozen=True, eq=False)
class Rollouts:
    """b episodes of at most T decisions each.

    Attributes:
        placements: [b, g] the placements at the end of the episodes.
        group: [b, T] group that each decision places; -1 after the end of a shorter episode.
        device: [b, T] device that each decision puts its group on.
        log_prob: [b, T] natural logarithm of the probability of each decision.
        entropy: [b, T] entropy of the distribution that each decision was drawn from, nats.
        start: [b, g] placements from which the episodes start, for policies that improve a placement; else None.
        extra: whatever the policy needs to recompute the decisions (other actions, the distribution drawn from).
    """

    placements: Placements
    group: NDArray[np.int32]
    device: NDArray[np.int16]
    log_prob: NDArray[np.float64]
    entropy: NDArray[np.float64]
    start: Placements | None = None
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class LearnablePolicy(Policy):
    """A policy with parameters. It never evaluates: its trainer does, and passes it the weights for its gradients.

    Its options derive from `LearnableOptions`. Some trainers need abilities, classes that a policy subclasses in addition to this
    one: `RecomputesLogProb`, `ReportsKL`, `EstimatesReturns`, `Imitates`, `Teaches`, `ExploresNear`.
    """

    options_class: ClassVar[type[BaseModel]] = LearnableOptions
    free_options: ClassVar[tuple[str, ...]] = ("checkpoint", "threads", "rollouts")
    """Options that may differ from those with which `checkpoint` was trained."""

    @abstractmethod
    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        """Create the parameters for these problems. Compile here, too: the clock of the budget does not run yet."""

    @abstractmethod
    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        """n episodes; `explore` in [0, 1] is the amount of exploration (each policy defines its meaning)."""

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

        It is the gradient of sum(weight[b, t] * log_prob[b, t]) + entropy_weight * sum(entropy) - kl_weight * sum(kl). Only
        policies that report divergences (`ReportsKL`) take another `kl_weight` than 0.
        """

    @abstractmethod
    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        """Add `steps` to the parameters of the same names."""

    @abstractmethod
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The parameters."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the parameters. Raises PlacekitError that names a parameter that is missing or has another shape."""

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement of one episode without exploration. With option `rollouts`, drawn placements are evaluated first."""
        device, priority = self.rollout(task.problem, 1, rng).placements.one(0)
        if (drawn := int(min(self.options.rollouts, task.evaluate.remaining)) - 1) > 0:
            task.evaluate(self.rollout(task.problem, drawn, rng, explore=1.0).placements)
        return task.problem.placement(device, priority)


class Ability(ABC):
    """Something that only some learnable policies can do. A trainer that needs it asks `able` for it."""

    verb: ClassVar[str]
    """Completes `policy X cannot ...`."""


class RecomputesLogProb(Ability):
    """Recomputes the probabilities of earlier decisions, for importance ratios."""

    verb = "recompute the probabilities of its decisions"

    @abstractmethod
    def log_prob(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        """[b, T] log-probability of the same decisions under the current parameters."""


class ReportsKL(Ability):
    """Reports how far its distributions moved away from earlier ones, and has a gradient for it (`kl_weight`)."""

    verb = "report KL divergences"

    @abstractmethod
    def kl(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        """[b, T] KL divergence of the current distribution from that of the rollouts: sum of old log(old / new), nats."""


class EstimatesReturns(Ability):
    """Has a value function: the return that it expects before each decision of an episode. The policy holds its parameters."""

    verb = "estimate returns"

    @abstractmethod
    def values(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        """[b, T] the return expected from each decision on. It may depend on earlier decisions, not on later ones."""

    @abstractmethod
    def value_gradients(
        self, problem: Problem, rollouts: Rollouts, weight: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        """Gradient, by parameter, of sum(weight[b, t] * value[b, t]) over the decisions of the episodes."""


class Imitates(Ability):
    """Learns from decisions of a teacher."""

    verb = "imitate a teacher"

    @abstractmethod
    def imitate(self, problem: Problem, teacher: Rollouts, rng: Generator) -> tuple[float, dict[str, NDArray[Any]]]:
        """Loss (nats per decision) and gradient to be ascended, towards the decisions of `teacher`."""


class Teaches(Imitates):
    """Has a teacher of its own to imitate."""

    verb = "teach itself"

    @abstractmethod
    def teach(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        """n episodes for `imitate`, the policy's own or others, with the teacher's decision in each state."""


class ExploresNear(Ability):
    """Explores around a placement."""

    verb = "explore near a placement"

    @abstractmethod
    def rollout_near(self, problem: Problem, placement: Placement, n: int, rng: Generator, explore: float) -> Rollouts:
        """n episodes that draw about the share `explore` of their decisions and copy the others from `placement`.

        Only drawn decisions have gradients.
        """


A = TypeVar("A", bound=Ability)


def able(policy: LearnablePolicy, ability: type[A], hint: str) -> A:
    """Return `policy` if it has `ability`. Raises ConfigError with `hint` otherwise."""
    found: object = policy
    if not isinstance(found, ability):
        raise ConfigError(f"policy {policy.name!r} cannot {ability.verb}", hint)
    return found


class Trainer(Plugin):
    """Improves a learnable policy by the values that backends give its placements."""

    @abstractmethod
    def fit(
        self,
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        rng: Generator,
        state: State | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Train `policy` on all `tasks` until an evaluator ends it by BudgetExhausted; never return earlier.

        Call `checkpoint` with the trainer's state at points where everything (policy, optimizer, generators, baselines,
        evaluators) is consistent; the run adds the states of policy, generators and evaluators.
        """


class Backend(Plugin):
    """Evaluates placements: by simulation, or by running the program."""

    objective: str = "makespan"
    """The quantity to minimize; it may depend on the options. Any name is fine, such as `energy`.

    placekit knows `makespan` (one step from its beginning to its end), `max_load` (the busiest device of a pipeline),
    `blocking_latency` (one sample through blocking calls), `step` (a step of several micro-batches), `throughput` (one
    micro-batch of a pipeline in its steady state) and `token` (one micro-batch through all stages): see docs/pipelines.md.
    """
    unit: str = "s"
    """The unit of its values: `s`, or the unit of an objective other than time, such as `J` or `$`.

    Fields called `value_s` hold values in this unit; times in schedules are always in seconds.
    """
    simulated: bool
    """False for a backend that measures."""
    deterministic: bool
    """Whether equal placements have equal values; then each is evaluated once. Repeated measurements return `spread_s`."""
    parallel: bool = False
    """Whether several processes may call `evaluate` at once without changing the values."""

    @property
    def offloads(self) -> bool:
        """Whether parameters and inputs may be stored elsewhere, and copied only while a device reads them (`Session.prefetch`).

        In the problems of such a backend they are in groups of their own (`Grouping.sources_apart`).
        """
        return False

    def devices(self) -> Cluster | None:
        """The machine that it detects; None for simulators."""
        return None

    def hardware(self) -> str:
        """The hardware that it measures on, as text: processor or GPUs, and versions that matter; empty for simulators."""
        return ""

    def others(self) -> str:
        """How much other programs use the devices that it measures on, as text; empty if they do not, or if unknown.

        A run that measures asks once, before `open`, and puts the answer into a note.
        """
        return ""

    @abstractmethod
    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        """Get ready to evaluate placements of `problem`. Raises BackendError if it cannot."""

    def calibrate(self, programs: Sequence[Program], cluster: Cluster | None = None, *, repeats: int) -> Calibration:
        """Measure the operations of `programs`, launches and links on the devices of `cluster` (or of `devices()`).

        Every figure is a median of `repeats` samples. Operations with equal signatures are measured once. Raises
        BackendError: a simulator measures nothing.
        """
        raise BackendError(
            f"backend {self.name!r} measures nothing", "choose a backend that measures; `placekit plugins` lists them"
        )
