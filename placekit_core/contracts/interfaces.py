"""The contracts. A plugin subclasses one of these; `Component` in hookspecs.py says where the class is.

Every component is built from its options (`cls(options)`) and nothing else, so that another process can build it again.
Plain data crosses every boundary: numpy arrays and pydantic models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from placekit_core.contracts.calibration import Calibration
from placekit_core.contracts.cluster import Cluster
from placekit_core.contracts.errors import BackendError, ImporterError, PlacekitError
from placekit_core.contracts.graph import Graph
from placekit_core.contracts.grouping import Grouping
from placekit_core.contracts.placement import Placement, Placements
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.program import Executable, Program
from placekit_core.contracts.task import Session, Task

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
    def place(self, task: Task, rng: Generator) -> Placement:
        """A placement of `task.problem`.

        It may evaluate placements on the way (best of 50, annealing); the run keeps the best that it saw.
        """


class ResumablePolicy(Policy):
    """A policy that can go on where an interrupted run left off."""

    @abstractmethod
    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """A placement of `task.problem`; calls `checkpoint` with its state at points from which it can continue exactly.

        With `state`, which an earlier call handed to `checkpoint`, it continues from there; `rng` is as it was then.
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

    def place(self, task: Task, rng: Generator) -> Placement:
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
        raise BackendError(
            f"backend {self.name!r} measures nothing", "choose a backend that measures; `placekit plugins` lists them"
        )
