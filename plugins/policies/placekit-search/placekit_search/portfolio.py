"""Policy `portfolio`: tries every heuristic, then spends the budget on the most promising searches."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_layers.following import followers
from placekit_layers.splits import even_splits, layer_groups
from placekit_scheduling import b_level, group_priority, warm_up
from pydantic import BaseModel

from placekit_core import (
    LEAST_GAIN,
    Best,
    Checkpoint,
    LearnablePolicy,
    NotApplicable,
    Placement,
    Placements,
    Policy,
    ResumablePolicy,
    State,
    Task,
    report_progress,
    units,
    usable_cores,
)
from placekit_search.coarsening import LARGE, coarsen, movable
from placekit_search.contiguity import LEAST, contiguous_near
from placekit_search.fewer_devices import on_fewer_devices
from placekit_search.local_search import (
    FIRST,
    TEMPERATURE_END,
    LocalSearch,
    SearchContext,
    excess,
    penalised,
    rank,
    walk_all,
)
from placekit_search.memory_starts import cut, repaired, too_large
from placekit_search.move_kinds import PORTFOLIO, applicable
from placekit_search.named_policies import build_starts, load_trained
from placekit_search.neighbourhood import Neighbourhood, neighbourhood
from placekit_search.options import PortfolioOptions
from placekit_search.roles import LEAST_ROLES, role_chains, roles
from placekit_search.starts import (
    LEVELLED,
    Start,
    coarse_schedules,
    distinct,
    is_late,
    is_makespan,
    levelled,
    list_schedules,
    simplest,
)
from placekit_search.streaming import streamed
from placekit_search.walk import BEST, FITS, PRICE

if TYPE_CHECKING:
    from placekit_search.multilevel import Multilevel

LEVEL_STEP = 3  # chains of a large problem move units of every third level: each neighbourhood takes seconds to make
SPREAD_SHARE = 0.5  # share of the seconds after which no more starts of a large problem begin
MOST_FOR_OTHERS = 200_000  # groups; on a larger problem, other policies take minutes for one start
MULTILEVEL, SLOWEST_OTHER = 10, 40  # seconds of `Multilevel`, and of the slowest other policy, in first evaluations
LAUNCHING = 0.1  # share of a step: if the host launches until its last tenth, a gain of a tenth is not worth a device
WIDEST = 0.25  # largest error band to allow: most errors are common to two placements of one program
START_SHARE = 0.2  # share of the budget that finding starts may use
AGAIN_SHARE = 0.05  # share of the seconds after which no policy runs a second time: a search gains more
MIN_TRIES = 3  # how often policies with samples run if the budget is small and START_SHARE allows it
MOST_CUTS = 128  # starts by cuts for tight memory, ...
CUT_OPERATIONS = 2_000_000  # ... and operations in all of them
SAMPLED = 80_000  # operations in all samples of one start: large graphs get fewer samples
COARSE_SHARE = 0.5  # share of the progress in which a chain from a coarse start moves units of several groups
CONTIGUOUS_SHARE = 0.02  # share of the budget for the best contiguous split of layers, ...
MOST_CONTIGUOUS = 200  # ... and the most evaluations for it
CHAINS = 64  # most chains in the first round
TRIES = 50  # most runs of a policy with samples, each with other random numbers
TEMPERATURE_START = 0.001  # first temperature, as a fraction of the start's value
HEATS = (1.0, 8.0)  # factors of the first temperature, in turn: if few moves are nearly neutral, a cold chain is stuck
REHEAT = 0.7  # factor of the first temperature from round to round


class Portfolio(ResumablePolicy):
    """Runs many heuristics, then local searches from the best placements; the worse half of the searches ends after each round.

    Starts are list schedules, a list schedule of whole units for every level of a multilevel coarsening, and the policies of
    option `starts`, as long as all this takes less than a fifth of the budget. If a start that does not fit in memory is faster
    than all that fit, there are more (`cut`, `repaired`). Then a chain of annealing (see `annealing`) runs from each of the best
    starts. After each of several rounds of equal budget the worse half of the chains ends (successive halving: Jamieson and
    Talwalkar 2016). In every round the temperature falls from 0.7 of the first temperature of the round before; every second
    chain begins hotter. A chain from a coarse start moves units of that level first, then units of finer and finer levels, and
    single groups in the second half.

    Problems of more than `LARGE` groups start from `Multilevel` instead of coarse list schedules. It moves units without a
    simulation, so moves are not evaluations. Each of its starts is evaluated once; making one takes as long as 5 to 20
    evaluations.

    With a budget of evaluations, the same seed gives the same result to the last bit, on any number of threads.
    """

    name = "portfolio"
    options_class = PortfolioOptions

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        self.others = build_starts(self.options.starts, self.name)

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement visited. Resumes exactly from `state`."""
        threads = self.options.threads or usable_cores()
        warm_up(task)
        first = simplest(task) if state is None else None
        race = _Race(task, self.options, self.others, threads, task.evaluate.ledger.seconds if first else 0.0)
        if state is None:
            load_trained(self.others, task)
            race.begin(rng, first)
        else:
            race.restore(state)
        with ThreadPoolExecutor(threads, "placekit-search") as pool:
            while task.evaluate.remaining > race.reserve and not race.late and race.can_move:
                if checkpoint is not None:
                    checkpoint(race.state())
                race.step(pool)
        placement = race.contiguous() or race.placement()
        return self._simpler(task, race.fastest or task.evaluate.best) or placement

    def _simpler(self, task: Task, fastest: Best | None) -> Placement | None:
        """A placement on fewer devices that is hardly slower than the fastest one; None without one. Notes both values."""
        evaluate, within = task.evaluate, self.options.simpler_within
        if not within or not task.problem.cluster.hosts or task.measures or evaluate.best is None or fastest is None:
            return None
        used = np.unique(task.problem.expand(evaluate.best.placement.device)[task.problem.graph.kernel])
        known = task.error_band(used.tolist())
        band = 0.0 if known is None or known.error is None else min(known.error, WIDEST)
        last_s = task.problem.launched_s(task.problem.expand(evaluate.best.placement.device)).max(initial=0.0)
        within = max(within, band, LAUNCHING if last_s >= fastest.value_s * (1 - LAUNCHING) else 0.0)
        found = on_fewer_devices(task, fastest.value_s * (1 + within))
        if found is None or not evaluate.prefer(found, within):
            return None
        more = evaluate.best.value_s / fastest.value_s - 1
        if more < LEAST_GAIN:
            return found
        why = "within the error of such predictions" if more <= band else "hardly more"
        evaluate.note(
            f"{units.seconds(evaluate.best.value_s)} on fewer devices is {more:.1%} more than the fastest placement found,"
            f" {units.seconds(fastest.value_s)}: {why} (policy.simpler_within=0 keeps the fastest)"
        )
        return found


class _Race:
    """Chains that run in rounds; the worse half ends after each round.

    Attributes:
        chains: the remaining chains; `level`: [chains] level of units that each starts from, 0 for single groups;
            `heat`: [chains] factor of its first temperature.
        rounds: the number of rounds; `round`: index of the current one.
        first, began: progress and evaluations when the chains began.
        reserve, end: evaluations kept for contiguous placements after the rounds; progress at which the rounds end.
        fastest: the best placement before `contiguous` preferred another; None if it did not.
        multilevel: starts of a large problem; None for others, and if the seconds are too few for it.
        first_s: seconds that the first evaluation took, to see what else is worth its time; 0 if they are not limited.
    """

    fastest: Best | None = None

    def __init__(
        self, task: Task, options: PortfolioOptions, others: Mapping[str, Policy], threads: int, first_s: float = 0.0
    ) -> None:
        self.task, self.options, self.others, self.threads, self.first_s = task, options, others, threads, first_s
        self.makespan = is_makespan(task)
        self.multilevel: Multilevel | None = None
        self.finest: NDArray[np.int64] | None = None  # single groups
        if not self.makespan:
            self.finest, levels = followers(task.problem), [sequence(task.problem).of_group]
        elif task.problem.g > LARGE:
            self.finest, levels = self._coarsen_large()
        else:
            levels = coarsen(task.problem)
        self.levels = [of for of in levels if movable(task.problem, of)]  # elsewhere there is nothing to move
        self.ordered = self.makespan and task.evaluate.session.priorities
        self.context = SearchContext(task, applicable(PORTFOLIO, self.makespan, self.ordered))
        self.hoods: dict[int, Neighbourhood] = {}
        self.chains: list[LocalSearch] = []
        self.level: list[int] = []
        self.rounds = 1
        self.round = 0
        self.heat: list[float] = []
        self.first, self.began = 0.0, 0
        within = options.contiguous_within if self.makespan and self.context.kernel is not None else 0.0
        self.layers = layer_groups(task.problem) if within else None
        limit = task.evaluate.ledger.limit
        self.reserve = 0
        if self.layers is not None and limit is not None:
            self.reserve = int(min(limit * CONTIGUOUS_SHARE, MOST_CONTIGUOUS))
        timed = self.layers is not None and task.evaluate.ledger.limit_s is not None
        self.end = 1 - max(self.reserve / limit if limit else 0.0, CONTIGUOUS_SHARE if timed else 0.0)

    def _coarsen_large(self) -> tuple[NDArray[np.int64] | None, list[NDArray[np.int64]]]:
        """The units that the chains of a large problem move last, and those of coarser levels, the finest first."""
        if not self._has_time_for(MULTILEVEL):
            return None, []
        with self.task.evaluate.ledger.paused():
            from placekit_search.multilevel import Multilevel, warm_up_levels

            warm_up_levels()
        self.multilevel = Multilevel(self.task.problem)
        few = [of for of in self.multilevel.levels if of.max() < LARGE]
        return (few[0] if few else None), few[LEVEL_STEP::LEVEL_STEP]

    def _has_time_for(self, evaluations: float) -> bool:
        """Whether work that takes as long as this many first evaluations fits into the budget of seconds."""
        ledger = self.task.evaluate.ledger
        return ledger.limit_s is None or self.first_s * evaluations < ledger.limit_s - ledger.seconds

    def state(self) -> dict[str, Any]:
        return {
            "chains": [c.state() for c in self.chains], "level": np.asarray(self.level), "rounds": self.rounds,
            "round": self.round, "first": self.first, "began": self.began, "heat": np.asarray(self.heat),
        }  # fmt: skip

    def restore(self, state: State) -> None:
        self.chains = [LocalSearch(self.context, s) for s in state["chains"]]
        self.level = np.asarray(state["level"]).tolist()
        self.heat, self.began = np.asarray(state["heat"]).tolist(), int(state["began"])
        self.rounds, self.round, self.first = int(state["rounds"]), int(state["round"]), float(state["first"])

    def begin(self, rng: Generator, first: Placements | None) -> None:
        """Evaluate the starts, and begin a chain at each of the best. `first` is a start that is already evaluated."""
        starts = self._starts(rng, first)
        count = 2 ** int(np.log2(np.clip(self._affordable_chains(), 1, CHAINS)))
        random = rng.integers(0, 2**64, count, np.uint64)
        price_s = PRICE * min(s.value_s for s in starts)  # the same for all, so that chains can be compared
        for i in range(count):
            s = starts[i % len(starts)]
            begun = LocalSearch.begin(s.device, s.priority, s.value_s, s.over, price_s, random[i : i + 1])
            self.chains.append(LocalSearch(self.context, begun))
            self.level.append(s.level)
            self.heat.append(HEATS[i % len(HEATS)] if count > 1 else HEATS[0])
        self.rounds = int(np.log2(count)) + 1
        self.first, self.began = self.task.evaluate.progress, self.task.evaluate.ledger.evaluations

    def _affordable_chains(self) -> float:
        """The number of chains of `evaluations_per_chain` that the budget allows; if seconds are limited, an estimate.

        Without a compiled evaluation, none is timed: a budget of seconds alone then allows one chain.
        """
        ledger, left = self.task.evaluate.ledger, self.task.evaluate.remaining
        if ledger.limit_s is not None and self.context.kernel is not None:
            began = time.perf_counter()
            self.task.evaluate.session.evaluate(self._simplest)
            each_s = time.perf_counter() - began
            left = min(left, (ledger.limit_s - ledger.seconds) / each_s * self.threads)
        return 0.0 if math.isinf(left) else left / self.options.evaluations_per_chain

    @cached_property
    def _simplest(self) -> Placements:
        """Every group on the first device that it may run on: a placement to time an evaluation with."""
        return Placements.of(self.task.problem.allowed.argmax(axis=1).astype(np.int16))

    def _starts(self, rng: Generator, first: Placements | None) -> list[Start]:
        """Starts with different devices, the best first; `first` is one of them."""
        task, problem, given = self.task, self.task.problem, copy.deepcopy(rng)
        size = int(np.clip(task.evaluate.remaining / 40, 1, 16))
        spread = self._spreads(size, rng)
        found = list[tuple[Placements, list[int]]]()
        if not spread or (task.evaluate.remaining > 0 and not self._starts_late()):
            fine = list_schedules(problem, min(size, self._samples(16)), rng, self._starts_late)
            found.append((fine, [0] * len(fine)))
        if not self.makespan:
            some = Placements.of(even_splits(sequence(problem), size))
            found = [(some, [len(self.levels)] * len(some)), *found]
        elif self.levels and size > 1 and self.multilevel is None:
            levels = list(range(len(self.levels), 0, -1))[: size // 2]
            found.append((coarse_schedules(problem, [self.levels[i - 1] for i in levels], self._starts_late), levels))
        if first is not None:
            found.append((first, [0]))
        # the user named these, so they always run
        trained = [p for p in self.others.values() if isinstance(p, LearnablePolicy)]
        found[:0] = [(p.place(task, copy.deepcopy(given)).batch(), [0]) for p in trained]
        prefetch = task.evaluate.session.prefetch
        if prefetch is not None:
            some = streamed(problem, prefetch, size)
            found.append((some, [0] * len(some)))
        most = task.evaluate.evaluations + START_SHARE * task.evaluate.remaining
        coarse = 0 if self.makespan else len(self.levels)
        budget = most - sum(len(b) for b, _ in found)
        if problem.g <= LARGE or (problem.g <= MOST_FOR_OTHERS and self._has_time_for(SLOWEST_OTHER)):
            found += [(p.batch(), [coarse]) for p in self._placements_of_others(budget, given, rng)]
        rows = spread + self._measure(found)
        if self.makespan:
            rows += self._memory_starts(rows, most)
        quick = self.context.kernel is not None or task.evaluate.ledger.limit_s is None  # else this takes too long
        if self.ordered and quick and not self._starts_late():
            rows += self._measure([levelled(task, self.context.flow, rows, self._samples(LEVELLED))])
        if not (spread and self._starts_late()):
            rows += self._role_starts(rng)
        price_s = PRICE * min(s.value_s for s in rows)
        return distinct(sorted(rows, key=lambda s: (s.over > 0, penalised(s.value_s, s.over, price_s))))

    def _spreads(self, size: int, rng: Generator) -> list[Start]:
        """At most `size` starts of a large problem: one, and more until half of the seconds are used.

        After one that does not fit, less memory is filled.
        """
        if self.multilevel is None:
            return []
        from placekit_search.multilevel import PRICES, ROOM

        found: list[Start] = []
        room = self.task.problem.cluster.memory_bytes.astype(np.float64)
        priority = group_priority(self.task.problem, b_level(self.task.problem))
        for i, seed in enumerate(rng.integers(0, 2**64, size, np.uint64)):
            report_progress(f"starts: {i} spreads of units")
            device = self.multilevel.spread(seed, PRICES[i % len(PRICES)], room)
            found += self._measure([(Placements.of(device, priority), [len(self.levels)])])
            room *= ROOM if found[-1].over > 0 else 1.0
            if is_late(self.task, SPREAD_SHARE):
                break
        return found

    def _measure(self, found: list[tuple[Placements, list[int]]]) -> list[Start]:
        """Measure batches, each given with the levels of its placements (see `Start`)."""
        rows: list[Start] = []
        for batch, levels in found:
            if not len(batch):
                continue
            value, over = excess(self.task.evaluate(batch), self.task)
            for i in range(len(batch)):
                device, priority = batch.one(i)
                order = priority if self.makespan else None
                rows.append(Start(float(value[i]), float(over[i]), device, order, levels[i]))
        return rows

    def _memory_starts(self, rows: list[Start], most: float) -> list[Start]:
        """More starts for tight memory, up to `most` evaluations of the task."""
        evaluate = self.task.evaluate
        if not too_large(rows) or evaluate.evaluations >= most or self._starts_late():
            return []
        count = min((most - evaluate.evaluations) / 2, MOST_CUTS, max(1, CUT_OPERATIONS // self.task.problem.graph.n))

        def measured(some: Placements) -> list[Start]:
            return self._measure([(some, [0] * len(some))])

        cuts = cut(self.task.problem, int(count), measured, self._starts_late)
        fast = too_large(rows + cuts)[: SAMPLED // self.task.problem.graph.n]  # repair takes long on large graphs
        fitting = repaired(self.task, fast, most - evaluate.evaluations, self._starts_late)
        return cuts + self._measure([(Placements.of(s.device, s.priority), [s.level]) for s in fitting])

    def _role_starts(self, rng: Generator) -> list[Start]:
        """The best placements of whole roles, if calls of modules repeat and there are enough roles to search."""
        o, task = self.options, self.task
        role = roles(task.problem) if o.role_share and self.makespan and task.evaluate.remaining > 1 else None
        if role is None or role.max() + 1 < LEAST_ROLES or not movable(task.problem, role):
            return []
        context = SearchContext(task, applicable(PORTFOLIO, priorities=False))
        worth = o.role_share * self._affordable_chains() * o.evaluations_per_chain
        chains = [c.at for c in role_chains(task, context, role, o.role_share, worth, rng, self.threads)]
        fit = [at for at in chains if at.energy[FITS]]
        return [Start(float(at.energy[BEST]), 0.0, at.best_device, at.best_priority, 0) for at in fit]

    def _placements_of_others(self, budget: float, given: Generator, rng: Generator) -> list[Placement]:
        """Placements of the other policies, as long as these and their evaluation take at most `budget` evaluations in all.

        In the first turn each policy gets the same generator as this policy, so it proposes the same placement as in its own
        run with this seed and as many samples. Policies with several samples run again, once for each chain that the budget
        allows.
        """
        evaluate, placements = self.task.evaluate, list[Placement]()
        notes = list(evaluate.notes)
        asked = [self._sampled(p) for p in self.others.values() if not isinstance(p, LearnablePolicy)]
        for turn in range(int(np.clip(self._affordable_chains(), MIN_TRIES, TRIES))):
            again = []
            for policy, samples in asked:
                late = is_late(self.task, AGAIN_SHARE if turn else START_SHARE)
                if late or evaluate.evaluations + len(placements) + samples >= budget:
                    continue
                other = copy.deepcopy(given) if turn == 0 else np.random.default_rng(rng.integers(2**62))
                report_progress(f"starts, {policy.name}: {len(placements)} placements")
                try:
                    placements.append(policy.place(self.task, other))
                except NotApplicable:  # it does not apply to this program or machine
                    continue
                if samples > 1:  # a single sample would be the same again
                    again.append((policy, samples))
            asked = again
        evaluate.notes[:] = notes  # drop the notes of the other policies: they are about their placements
        return placements

    def _sampled(self, policy: Policy) -> tuple[Policy, int]:
        """The policy with at most as many samples as a graph of this size allows, and their number."""
        if "samples" not in policy.options_class.model_fields:
            return policy, 1
        samples = self._samples(policy.options.samples)
        return type(policy)(policy.options.model_copy(update={"samples": samples})), samples

    def _samples(self, wanted: int) -> int:
        """`wanted` samples, or fewer for a large graph."""
        return max(1, min(wanted, SAMPLED // max(self.task.problem.graph.n, 1)))

    def _starts_late(self) -> bool:
        """Whether seconds are limited and the starts have used their share."""
        return is_late(self.task, START_SHARE)

    @property
    def can_move(self) -> bool:
        """Whether some chain has a move that may improve its placement."""
        if self.makespan and self.multilevel is None and self.task.problem.g > LARGE:
            return False
        return any(chain.can_move(self._hood(0, 1.0)) for chain in self.chains)

    def step(self, pool: ThreadPoolExecutor) -> None:
        """Run all chains for a while. At the end of a round, drop the worse half of them."""
        evaluate, limit = self.task.evaluate, self.task.evaluate.ledger.limit
        progress = self._progress()
        count = self.context.chunk() // len(self.chains)
        count = max(count, 1 if evaluate.ledger.limit_s is not None else FIRST)  # without a clock to check
        end = (self.round + 1) / self.rounds
        each = math.inf  # evaluations that a chain makes in a round
        if limit is not None:
            each = (limit - self.reserve - self.began) / self.rounds / len(self.chains)
            count = max(1, min(count, math.ceil((end - progress) * self.rounds * each)))
        runs = list(range(len(self.chains)))
        remaining = evaluate.remaining - self.reserve
        if remaining <= 0:  # the budget of seconds has just ended
            return
        if count * len(runs) > remaining:  # the last few are for the best chain
            runs, count = [min(runs, key=lambda i: rank(self.chains[i]))], min(count, int(remaining))
        within = min(1.0, max(0.0, (progress - self.round / self.rounds) * self.rounds))
        walks = []
        for i in runs:
            chain, hood = self.chains[i], self._hood(self.level[i], progress)
            first, last = self._temperatures(i)
            temperature = chain.start_s * first * (last / first) ** within
            if self.context.kernel is None:
                if evaluate.remaining > 0:
                    chain.step_once(hood, temperature)
            else:
                walks.append((chain, hood, temperature, (last / first) ** (1 / each)))
        if walks:
            walk_all(walks, count, pool)
        if self._progress() >= end and self.round + 1 < self.rounds:
            self.round += 1
            order = sorted(range(len(self.chains)), key=lambda i: rank(self.chains[i]))
            keep = order[: max(1, len(self.chains) // 2)]
            self.chains, self.level = [self.chains[i] for i in keep], [self.level[i] for i in keep]
            self.heat = [self.heat[i] for i in keep]

    def _progress(self) -> float:
        """Used share of the budget after the starts."""
        return (self.task.evaluate.progress - self.first) / max(self.end - self.first, 1e-9)

    def _temperatures(self, i: int) -> tuple[float, float]:
        """First and last temperature of a chain in this round, as fractions of its start's value."""
        return max(TEMPERATURE_START * self.heat[i] * REHEAT**self.round, TEMPERATURE_END), TEMPERATURE_END

    def _hood(self, level: int, progress: float) -> Neighbourhood:
        """The neighbourhood of a chain that began at `level`: its units become smaller, down to single groups."""
        now = int(np.ceil(level * max(0.0, 1 - progress / COARSE_SHARE)))
        if now not in self.hoods:
            self.hoods[now] = neighbourhood(self.task.problem, self.levels[now - 1] if now else self.finest)
        return self.hoods[now]

    @property
    def late(self) -> bool:
        """Whether the seconds that remain are kept for contiguous placements."""
        return self.layers is not None and is_late(self.task, self.end)

    def contiguous(self) -> Placement | None:
        """The best placement that gives each device one run of layers, if it should be the result; else None. Notes its value."""
        evaluate, layers = self.task.evaluate, self.layers
        best, count = evaluate.best, int(min(evaluate.remaining, self.reserve or MOST_CONTIGUOUS))
        if layers is None or best is None or count < LEAST or layers.is_contiguous(best.placement.device):
            return None
        found = contiguous_near(self.task, layers, best.placement, count)
        if found is None:
            evaluate.note("found no placement that fits and gives each device one run of layers")
            return None
        placement, value_s = found
        best = evaluate.best or best
        within, more = self.options.contiguous_within, value_s / best.value_s - 1
        if value_s > best.value_s and evaluate.prefer(placement, within):
            self.fastest = best
            evaluate.note(
                f"each device has one run of layers: that takes {units.seconds(value_s)}, and the best placement found"
                f" {units.seconds(best.value_s)}, {more:.2%} less (policy.contiguous_within={within:g})"
            )
            return placement
        if value_s > best.value_s:
            evaluate.note(
                f"devices have several runs of layers: one run for each would take {units.seconds(value_s)}, {more:.1%} more than"
                f" {units.seconds(best.value_s)} (policy.contiguous_within={within:g})"
            )
            return None
        return placement

    def placement(self) -> Placement:
        """The best placement that any chain has visited."""
        return min(self.chains, key=rank).placement()
