"""Doppler's stages I and II, all three, and III alone at equal total time, on a backend that measures (section 6, Figure 3).

    python benchmarks/stages.py [--seeds 5] [--episodes 4000] [--seconds 30] [--passes 15] [--json OUT.json] [OPTION=VALUE ...]

Of each seed four runs: stages 1 and 2 with EPISODES on the simulator; the same and stage 3 for SECONDS; stages 1 and 2 with so
many more episodes that they take as long as the second run; stage 3 alone for as long. What each found is then measured again,
in turns, PASSES times.
OPTIONs are those of `placekit run`, such as `workload=chainmm_small` and `backend=cpu`, the defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from placekit_core import Placement, Problem, Program, installed
from placekit_core.cli.compose import assembled
from placekit_core.run.assembly import Assembly, PythonObjects
from placekit_core.run.pipeline import run

WAYS = ("I + II", "I + II + III", "I + II, as long", "III alone")


class Runs:
    """Runs on one program."""

    def __init__(self, options: list[str]) -> None:
        self.options = [
            "+policy=doppler", "trainer=three_stage", *(o for o in ("workload=chainmm_small", "+backend=cpu")
            if not any(o.lstrip("+").split("=")[0] == x.lstrip("+").split("=")[0] for x in options)), *options,
        ]  # fmt: skip
        parts = assembled(self.options, installed())
        self.backend: Any = parts.backend
        self.program: Program = parts.programs[0]

    def __call__(self, *options: str) -> tuple[Placement, Problem, float, int]:
        """What a run found, for which problem, its seconds and its measured placements."""
        config = assembled([*self.options, *options], installed()).config
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            result = run(Assembly(config, installed(), PythonObjects([self.program])), folder)
        assert result.placement is not None
        return result.placement, result.problem, time.perf_counter() - begun, result.summary.evaluations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", metavar="OPTION=VALUE")
    given = parser.parse_intermixed_args()
    runs = Runs(given.options)
    two, few = "trainer.stages=[1,2]", "budget.evaluations=2"  # the best of stage II, and what the policy places
    short = runs(two, few, "budget.proxy_evaluations=320")[2]  # compiles, too
    print(f"{runs.program.graph.name} on {runs.backend.name}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'seed':>4}  {'stages':18}{'episodes':>9}{'measured':>9}{'seconds':>9}{'median ms':>11}")
    rows = list[dict[str, Any]]()
    for seed in range(given.seeds):
        same = f"seed={seed}"
        short = runs(same, two, few, "budget.proxy_evaluations=320")[2]
        first = runs(same, two, few, f"budget.proxy_evaluations={given.episodes}")
        third = runs(
            same,
            "trainer.stages=[1,2,3]",
            f"budget.seconds={given.seconds}",
            f"budget.proxy_evaluations={given.episodes}",
        )
        each_s = (first[2] - short) / (given.episodes - 320)
        if each_s <= 0:
            raise SystemExit("so few episodes take no time that can be told: more --episodes")
        more = given.episodes + round((third[2] - first[2]) / each_s)
        longer = runs(same, two, few, f"budget.proxy_evaluations={more}")
        alone = runs(same, "trainer.stages=[3]", f"budget.seconds={given.seconds + first[2] - short + 320 * each_s}")
        found = dict(zip(WAYS, (first, third, longer, alone), strict=True))
        session = runs.backend.open(first[1], runs.program.executable)
        measured: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(given.passes):
            for way, (placement, *_) in found.items():
                measured[way].append(float(session.evaluate(placement.batch()).value_s[0]))
        session.close()
        for way, (_, _, seconds, evaluations) in found.items():
            median = statistics.median(measured[way])
            count = {WAYS[2]: more, WAYS[3]: 0}.get(way, given.episodes)
            print(f"{seed:>4}  {way:18}{count:>9}{evaluations:>9}{seconds:>9.1f}{1e3 * median:>11.3f}", flush=True)
            rows.append({"seed": seed, "stages": way, "episodes": count, "measured": evaluations, "seconds": seconds,
                         "median_s": median})  # fmt: skip
    for way in WAYS:
        print(
            f"{'all':>4}  {way:45}{1e3 * statistics.median(r['median_s'] for r in rows if r['stages'] == way):>11.3f}"
        )
    if given.json:
        given.json.write_text(
            json.dumps({"options": runs.options, "passes": given.passes, "runs": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
