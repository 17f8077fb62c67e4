"""Policies that list-schedule by one rule of `placekit_scheduling`, and take the best of several tries."""

from __future__ import annotations

from typing import ClassVar

from numpy.random import Generator
from placekit_scheduling import ListScheduler, Rule, b_level, warm_up

from placekit_core import Checkpoint, Placement, ResumablePolicy, State, Task
from placekit_heuristics.best_of import best_of
from placekit_heuristics.list_options import CriticalPathOptions, ListSchedulingOptions

FEW = 64  # most schedules that Python makes if the program is small


class _ListScheduling(ResumablePolicy):
    """The best of `samples` list schedules, with the b-levels of the operations as priorities.

    The first schedule breaks ties by index, the others at random.
    """

    options_class: ClassVar[type[ListSchedulingOptions]] = ListSchedulingOptions
    rule: ClassVar[Rule]

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement; with `samples=1` nothing is evaluated."""
        problem = task.problem
        warm_up(task, [self.rule])
        scheduler, priority = ListScheduler(problem, few=self.options.samples <= FEW), b_level(problem)
        level = scheduler.default_level(self.rule)

        def schedule(i: int) -> Placement:
            seed = None if i == 0 else int(rng.integers(2**62))
            scheduler.reset()
            return scheduler.run(self.rule, level, seed).placement(priority)

        return best_of(task, self.options.samples, schedule, rng, state, checkpoint)


class CriticalPath(_ListScheduling):
    """The ready operation with the longest path to an exit, on the device where it can start earliest.

    Doppler's "Critical path" baseline (best of 50 with random ties), after the b-level of Kwok and Ahmad 1999.
    """

    name = "critical_path"
    options_class = CriticalPathOptions
    rule = "critical_path"


class Etf(_ListScheduling):
    """Earliest task first: of all ready operations and devices, the pair that can start earliest.

    Hwang, Chow, Anger and Lee 1989; ties by the higher static level.
    """

    name = "etf"
    rule = "etf"


class Heft(_ListScheduling):
    """Heterogeneous earliest finish time: by upward rank, onto the device of earliest finish, in a gap if there is one.

    Topcuoglu, Hariri and Wu 2002.
    """

    name = "heft"
    rule = "heft"


class Cpop(_ListScheduling):
    """Critical path on a processor: `heft` by upward plus downward rank, with a critical path on one device.

    Topcuoglu, Hariri and Wu 2002.
    """

    name = "cpop"
    rule = "cpop"


class Peft(_ListScheduling):
    """Predict earliest finish time: by the mean of the optimistic costs, onto the device of least finish plus optimistic cost.

    Arabnejad and Barbosa 2014.
    """

    name = "peft"
    rule = "peft"
