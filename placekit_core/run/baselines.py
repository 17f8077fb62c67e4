"""Baselines: standard placements of the same problem, measured to compare the result of a run with.

They are evaluated after the search, in the same session of the backend, but by evaluators of their own: they do not count
against the budget, do not appear in the history, and change no random number.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from placekit_core.contracts.errors import ConfigError, NotApplicable
from placekit_core.contracts.hookspecs import PolicyComponent
from placekit_core.contracts.interfaces import LearnablePolicy
from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.placement import Placement
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.progress import report_progress
from placekit_core.contracts.result import Baseline
from placekit_core.contracts.task import Task
from placekit_core.run.assembly import Assembly, OpenProgram
from placekit_core.run.config import RunConfig, Streams
from placekit_core.run.entries import Entry
from placekit_core.run.evaluator import BudgetedEvaluator
from placekit_core.run.failures import optional
from placekit_core.run.interruption import Interruption
from placekit_core.run.placing import place_one
from placekit_core.run.registry import Registry

MOST_EVALUATIONS = 16
"""Evaluations that one baseline may make; a search that is cut short says so. Most make one, of the placement that they
return."""
SHARE, LEAST_S = 0.1, 20.0
"""On a backend that measures, baselines may take this share of the time of the search, and at least these seconds."""


def chosen_baselines(config: RunConfig, registry: Registry) -> list[Entry]:
    """The baselines of a run: `config.baselines`, or by default the policies whose `Component` is a baseline.

    The run's own policy is left out, unless its options differ from the defaults.

    Raises PluginError for a policy that does not exist, ConfigError for one that needs training.
    """
    if config.baselines is not None:
        found = [registry.get("policy", name) for name in dict.fromkeys(config.baselines)]
        for entry in found:
            if issubclass(entry.load(), LearnablePolicy):
                raise ConfigError(
                    f"baselines: policy {entry.component.name!r} needs training, and baselines are not trained",
                    "train it in a run of its own, and compare the two",
                )
    else:
        alone = [only[0] for (kind, _), only in registry.entries.items() if kind == "policy" and len(only) == 1]
        found = sorted(
            (e for e in alone if isinstance(e.component, PolicyComponent) and e.component.baseline),
            key=lambda e: (e.distribution, e.component.name),
        )
    own = {key: value for key, value in config.policy.items() if key != "name"}
    return [e for e in found if e.component.name != config.policy["name"] or e.options(own) != e.options({})]


def compared_programs(searches: Sequence[OpenProgram]) -> list[OpenProgram]:
    """The programs that are compared with baselines; on one device, every placement is the same."""
    return [search for search in searches if search.problem.cluster.size > 1]


def add_baselines(assembly: Assembly, searches: Sequence[OpenProgram], stop: Interruption | None = None) -> bool:
    """Evaluate the baselines of every program. A baseline that fails becomes a note. Returns whether Ctrl-C ended it."""
    entries = chosen_baselines(assembly.config, assembly.registry)
    began = time.perf_counter()
    searches = compared_programs(searches)
    for number, search in enumerate(searches):
        found: list[Baseline] = []
        search.baselines = found
        for i, entry in enumerate(entries):
            report_progress(f"baseline {entry.component.name}", (number + i / len(entries)) / len(searches))
            spent, limit_s = time.perf_counter() - began, max(LEAST_S, SHARE * search.evaluate.ledger.seconds)
            if not assembly.backend.simulated and spent > limit_s:
                search.evaluate.note(f"no further baselines were measured after {spent:.0f} s")
                return False
            try:
                with optional(search.evaluate.note, f"baseline {entry.component.name!r} failed"):
                    found += _evaluated(assembly, search, entry)
            except KeyboardInterrupt:
                return True
            if stop is not None and stop.asked:
                return False
        if assembly.config.baselines is None:
            with optional(search.evaluate.note, "the backend's baselines failed"):
                found += search.session.baselines()
    return False


def _evaluated(assembly: Assembly, search: OpenProgram, entry: Entry) -> list[Baseline]:
    """A list with one baseline; empty, with a note, if its policy does not apply or its placement has no value.

    Exceptions of the policy and the backend pass through.
    """
    backend, problem = assembly.backend, search.problem
    evaluate = BudgetedEvaluator(
        problem, search.session, Ledger(MOST_EVALUATIONS), deterministic=backend.deterministic,
        objective=backend.objective, failing_signal_s=assembly.config.failing_signal_s, backend=backend.name,
    )  # fmt: skip
    task = Task(problem, evaluate, None, search.program.executable, measures=not backend.simulated)
    policy, name = entry.build(entry.options({})), entry.component.name
    try:
        place_one(policy, task, Streams(assembly.config.seed)(f"baseline/{name}"), None, None)
    except NotApplicable as e:
        if assembly.config.baselines is not None:  # the user asked for it
            search.evaluate.note(f"baseline {name!r} does not apply: {e.message}")
        return []
    best = evaluate.best
    if best is None and evaluate.last_error:  # whether it fits is unknown
        search.evaluate.note(f"baseline {name!r} has no value: {evaluate.last_error}")
        return []
    if best is None:
        return [Baseline(policy=name, value_s=None, fits=False, note="; ".join(evaluate.notes))]
    peak = dict(zip(problem.cluster.device_names, best.peak_bytes.tolist(), strict=True))
    ours, value_s, spread_s, own_remeasured_s = search.evaluate.best, best.value_s, best.spread_s, None
    if ours is not None and not backend.deterministic:  # the speed of a machine drifts
        if best.placement.same_as(ours.placement):
            value_s, spread_s = ours.value_s, ours.spread_s
        else:
            again = search.session.evaluate(ours.placement.batch())
            own_remeasured_s = float(again.value_s[0]) if again.fits[0] else None
    found = Baseline(
        policy=name, value_s=value_s, spread_s=spread_s, own_remeasured_s=own_remeasured_s, fits=True, peak_bytes=peak,
        device=_only_device(problem, best.placement), note="; ".join(evaluate.notes),
        stopped_after=evaluate.evaluations if evaluate.ledger.remaining <= 0 else None,
    )  # fmt: skip
    return [found]


def _only_device(problem: Problem, placement: Placement) -> str:
    """The device that runs all kernels; empty if there are several."""
    used = np.unique(problem.expand(placement.device)[problem.graph.kernel])
    return problem.cluster.device_names[int(used[0])] if len(used) == 1 else ""
