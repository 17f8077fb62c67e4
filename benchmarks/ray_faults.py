"""Kills at random moments of an asynchronous training: does every run end, and what is lost?

    python benchmarks/ray_faults.py [--kills 50] [--evaluations 1500] [--seed 0] [--write]

Each run trains seq2seq with 2 controllers of 2 workers on 3 hosts of `ray.cluster_utils.Cluster` and a head, every second run
with controllers that wait for each other; an evaluation takes 20 ms. Of the kills, half are of workers, a quarter of
controllers, 15% of the parameter server, 10% of a host with all of its processes, in a random order, with pauses of 0.5 to 3.5
seconds; a lost host comes back as a new one. A run gets at most 10 kills, and there are as many runs as the kills need. Each has
to end within its limit of seconds, to have recorded as many evaluations as its budget has, and to return the best placement of
all that were recorded, which is simulated once more. `--write` keeps the report in benchmarks/results/ray_faults.md.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from placekit_ray.asynchronous import Asynchronous
from ray.cluster_utils import Cluster
from ray_workers import hosts, machine, processes

from placekit_core import PlacekitError, Result, installed, place

RESULT = Path(__file__).parent / "results" / "ray_faults.md"
SHARES = {"worker": 0.5, "controller": 0.25, "server": 0.15, "host": 0.1}
TITLES = {"worker": "ray::Worker", "controller": "ray::Controller", "server": "ray::ParameterServer"}
HOSTS, CPUS = 3, 2
PAUSE_S = (0.5, 3.5)
LIMIT_S = 180
KILLS = 10  # at most, in a run
GIVE_UP = 3  # runs with something wrong


class Killer(threading.Thread):
    """Carries out a plan of kills until `KILLS` are done, or the plan, or until `stop` is set."""

    def __init__(self, cluster: Cluster, plan: deque[str], rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.cluster, self.plan, self.rng = cluster, plan, rng
        self.stop = threading.Event()
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        while self.plan and self.done.total() < KILLS and not self.stop.wait(self.rng.uniform(*PAUSE_S)):
            if processes(TITLES["controller"]) and self._kill(self.plan[0]):
                self.done[self.plan.popleft()] += 1

    def _kill(self, kind: str) -> bool:
        """Kill one of a kind, if there is one."""
        if kind == "host":
            nodes = sorted(self.cluster.worker_nodes, key=lambda node: str(node.node_id))
            self.cluster.remove_node(self.rng.choice(nodes), allow_graceful=False)
            self.cluster.add_node(num_cpus=CPUS)
            return True
        pids = processes(TITLES[kind])
        try:
            os.kill(self.rng.choice(pids), signal.SIGKILL)
        except (IndexError, ProcessLookupError):
            return False
        return True


@dataclass
class Outcome:
    """What happened in a run; `wrong` says what should not have."""

    synchronous: bool
    kills: Counter[str]
    seconds: float
    evaluations: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    unlearned: int = 0
    wrong: list[str] = field(default_factory=list)


def limited(seconds: int) -> None:
    """Have this thread raise TimeoutError after so many seconds; 0 ends it."""

    def raise_(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"it did not end within {seconds} s")

    signal.signal(signal.SIGALRM, raise_)
    signal.alarm(seconds)


def run(cluster: Cluster, plan: deque[str], rng: random.Random, number: int, evaluations: int) -> Outcome:
    """One training, with kills."""
    trainer = Asynchronous(
        inner={"name": "reinforce", "samples": 8}, controllers=2, workers=2, least_s=0.02, synchronous=number % 2 == 1
    )
    killer, start = Killer(cluster, plan, rng), time.monotonic()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        limited(LIMIT_S)
        killer.start()
        try:
            result = place(
                "ffnn", cluster="p100x4", policy="seq2seq", trainer=trainer, budget=evaluations, seed=number,
                baselines=[], log=["csv"], run_dir=folder,
            )  # fmt: skip
            wrong = faulty(result, Path(folder), evaluations)
        except (PlacekitError, TimeoutError) as e:
            wrong = [str(e).splitlines()[0]]
        limited(0)
        took = time.monotonic() - start
        killer.stop.set()
        killer.join()
    outcome = Outcome(trainer.options.synchronous, killer.done, took, wrong=wrong)
    if hasattr(trainer, "faults"):  # it has ended
        outcome.evaluations = result.summary.evaluations
        outcome.faults, outcome.unlearned = vars(trainer.faults), trainer.lost
    return outcome


def faulty(result: Result, folder: Path, evaluations: int) -> list[str]:
    """What is wrong with a run that has ended."""
    with (folder / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    if not result.summary.evaluations == int(rows[-1]["evaluations"]) == evaluations:
        found.append(f"{result.summary.evaluations} evaluations, {rows[-1]['evaluations']} in the history")
    best = min(float(row["value_s"]) for row in rows if row["value_s"])
    session = installed().build("backend", "simulator", {}).open(result.problem)
    again = math.nan if result.placement is None else float(session.evaluate(result.placement.batch()).value_s[0])
    if not result.value_s == best == again:
        found.append(f"the result has {result.value_s} s, the best of the history {best}, simulated again {again}")
    return found


def planned(kills: int, rng: random.Random) -> deque[str]:
    """Kinds of processes to kill, in a random order."""
    plan = [kind for kind, share in SHARES.items() for _ in range(round(kills * share))]
    plan += ["worker"] * (kills - len(plan))
    rng.shuffle(plan)
    return deque(plan[:kills])


def row(name: Any, controllers: str, some: list[Outcome]) -> str:
    """A row of the table: some runs together."""
    kills = sum((o.kills for o in some), Counter[str]())
    faults = sum((Counter(o.faults) for o in some), Counter[str]())
    right = sum(not o.wrong for o in some)
    cells = [
        name, controllers, *(kills[kind] for kind in SHARES), f"{sum(o.seconds for o in some):.0f}",
        f"{sum(o.evaluations for o in some):,}", faults["lost"], faults["repeated"], sum(o.unlearned for o in some),
        f"{right} of {len(some)}" if len(some) > 1 else "; ".join(some[0].wrong) or "yes",
    ]  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main() -> None:
    """Print the table; the exit status is 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--evaluations", type=int, default=1500, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    given = parser.parse_args()
    rng, outcomes = random.Random(given.seed), list[Outcome]()
    plan = planned(given.kills, rng)
    lines = [
        f"# Ray: processes killed at random moments\n\n`python benchmarks/ray_faults.py --kills {given.kills} --evaluations"
        f" {given.evaluations} --seed {given.seed} --write`. *Lost* are the workers whose death was seen, of which a host has"
        " several; *repeated* the evaluations that were made again for it; *not learned from* those that were recorded, but of"
        " which a killed controller made no update. *Right*: the run ended, recorded exactly its budget, and returned the best"
        " placement of all that were recorded.\n",
        "| run | controllers | worker kills | controller kills | server kills | host kills | s | evaluations | lost | repeated"
        " | not learned from | right |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    print("\n".join(lines), flush=True)
    with hosts(HOSTS, CPUS) as cluster:
        while plan and sum(bool(o.wrong) for o in outcomes) < GIVE_UP:
            outcomes.append(run(cluster, plan, rng, len(outcomes), given.evaluations))
            waiting = "wait for each other" if outcomes[-1].synchronous else "go on"
            lines.append(row(len(outcomes), waiting, outcomes[-1:]))
            print(lines[-1], flush=True)
    lines += [row("all", "", outcomes), f"\n{machine()}"]
    print("\n".join(lines[-2:]))
    if given.write:
        RESULT.write_text("\n".join(lines) + "\n")
    sys.exit(any(o.wrong for o in outcomes))


if __name__ == "__main__":
    main()
