"""The default policy of an older checkout and of this one: equal evaluations, and equal seconds.

    python benchmarks/search_beside.py OLDER [--instances A,B] [--evaluations 2000] [--seconds 3] [--seeds 6] [--write]

OLDER is a git worktree of some commit, after `make setup` in it. For each program of the papers, and for planted graphs: the
median over the seeds of the simulated value that each checkout finds with a budget of evaluations, and with one of seconds;
and the mean of the differences seed by seed, with the t interval of 95%. Each checkout has one process for all its runs. With
a budget of evaluations both search at the same time, with seconds they take turns, and nothing else should run. Before that,
both evaluate one placement that has groups on all devices; where the values differ, the machine models or the graphs do, and
the row says so.
`--write` keeps the table in benchmarks/results/search_beside.md.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MACHINE = "cluster=p100x4"
INSTANCES = {
    **{
        name: [f"workload={name}", MACHINE]
        for name in (
            "chainmm", "ffnn_sharded", "llama_block_sharded", "llama_layer_sharded", "rnnlm", "rnnlm_4layer", "rnnlm_large",
            "nmt", "nmt_4layer", "nmt_large", "inception_v3", "inception_v3_b128", "resnet50", "nasnet",
        )
    },
    "planted": ["importer=planted"],
    "planted_8": ["importer=planted", "importer.layers=125", "importer.devices=8", "importer.width=5"],
}  # fmt: skip


def work(arguments: list[str]) -> None:
    """In a process of a checkout: for each line of JSON with budget and seed, print the value found, in seconds."""
    import numpy as np

    import placekit_core
    from placekit_core import PlacekitError

    def spread(task: Any, rng: Any) -> Any:
        problem = task.problem
        return problem.placement((np.arange(problem.g) % problem.cluster.size).astype(np.int16))

    warnings.simplefilter("ignore")
    program, machine = loaded(arguments)
    about: dict[str, Any] = {"cluster": machine, "grouper": "none"}
    if "baselines" in inspect.signature(placekit_core.place).parameters:
        about["baselines"] = []
    for line in sys.stdin:
        asked = json.loads(line)
        policy = "portfolio" if asked["budget"] else spread
        budget = asked["budget"] or {"evaluations": 1}
        try:
            found = placekit_core.place(program, policy=policy, budget=budget, seed=asked["seed"], **about)
        except PlacekitError as e:
            if type(e).__name__ != "RunError":  # nothing found that fits; a wrong option ends the benchmark
                raise
            print("value nan", flush=True)
        else:
            print("value", getattr(found, "summary", found).value_s, flush=True)


def loaded(arguments: list[str]) -> tuple[Any, str]:
    """The program that arguments of `placekit run` choose, and the machine."""
    given = dict(a.split("=", 1) for a in arguments)
    machine = given.get("cluster", "auto")
    try:
        from placekit_core import installed
        from placekit_core.cli.compose import assembled
    except ImportError:  # before there was a function for it
        from omegaconf import OmegaConf

        from placekit_core import load_programs

        importer: dict[str, Any] = {
            k.partition(".")[2] or "name": v for k, v in given.items() if k.startswith("importer")
        }
        if "workload" in given:
            preset: Any = OmegaConf.load(f"conf/workload/{given['workload']}.yaml")
            [name] = [d["override /importer"] for d in preset.defaults if "override /importer" in d]
            importer = {"name": name, **preset.get("importer", {})}
        [program] = load_programs(importer)
        return program, machine
    return assembled(arguments, installed()).programs[0], machine


class Worker:
    """The process of a checkout for one instance."""

    def __init__(self, checkout: Path, arguments: list[str]) -> None:
        self.command = [str(checkout / ".venv/bin/python"), __file__, "--work", *arguments]
        self.process = subprocess.Popen(
            self.command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, budget: dict[str, Any] | None, seed: int) -> None:
        """Begin a run."""
        assert self.process.stdin is not None
        print(json.dumps({"budget": budget, "seed": seed}), file=self.process.stdin, flush=True)

    def answer(self) -> float:
        """Value in seconds."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("value "):
                return float(line.split()[1])
        raise SystemExit(f"a run failed: {self.command}")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def rows(older: Path, names: list[str], evaluations: int, seconds: float, seeds: int) -> Iterator[list[str]]:
    """A row of the table for each instance and budget."""
    for name in names:
        workers = [Worker(checkout, INSTANCES[name]) for checkout in (older, ROOT)]

        def both(budget: dict[str, Any] | None, seed: int, turns: bool, of: list[Worker] = workers) -> list[float]:
            found = []
            for worker in of:
                worker.ask(budget, seed)
                if turns:
                    found.append(worker.answer())
            return found or [worker.answer() for worker in of]

        same = len(set(map(str, both(None, 0, False)))) == 1
        for budget, turns in (({"evaluations": evaluations}, False), ({"seconds": seconds}, True)):
            if turns:
                both({"seconds": 1.0}, 0, True)  # compiles what is left
            values = [both(budget, seed, turns) for seed in range(seeds)]
            yield compared(name, f"{seconds:g} s" if turns else f"{evaluations:,}", values, same)
        for worker in workers:
            worker.close()


def compared(name: str, budget: str, values: list[list[float]], same: bool) -> list[str]:
    """The row of one instance and budget, from the (older, newer) values of each seed."""
    from quality_runs import number, percent
    from scipy import stats

    nothing = [sum(map(math.isnan, column)) for column in zip(*values, strict=True)]
    kept = [pair for pair in values if not any(map(math.isnan, pair))]
    change = [new / old - 1 for old, new in kept]
    count, said = len(change), "nothing to compare"
    if count > 1:
        mean = statistics.fmean(change)
        half = stats.t.ppf(0.975, count - 1) * statistics.stdev(change) / count**0.5
        said = f"{percent(mean)} ± {percent(half)}"
        sure = "shorter" if mean + half < 0 else "longer" if mean - half > 0 else "not distinguishable"
        sure = "equal" if all(old == new for old, new in kept) else sure
    if count < len(values):
        sure = f"found nothing in {nothing[1]} of {len(values)} runs, older in {nothing[0]}"
    medians = [number(1e3 * statistics.median(v), 2) for v in zip(*kept, strict=True)] or ["-", "-"]
    row = [name + ("" if same else " (another model)"), budget, *medians, said, sure]
    print(" | ".join(row), flush=True)
    return row


def main() -> None:
    """Measure, print, and write if asked to."""
    if sys.argv[1:2] == ["--work"]:
        return work(sys.argv[2:])
    from quality_runs import RESULTS, machine, table

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("older", type=Path, metavar="OLDER")
    parser.add_argument("--instances", default=",".join(INSTANCES), help="with commas between")
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=6, help="number of seeds")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/search_beside.md")
    a = parser.parse_args()
    if a.seeds < 2:
        parser.error("--seeds: an interval takes two or more")
    git = ["git", "-C", str(a.older), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    found = list(rows(a.older.resolve(), a.instances.split(","), a.evaluations, a.seconds, a.seeds))
    head = ["program", "budget", f"{commit}, ms", "now, ms", "mean change, 95%", "now"]
    about = (
        f"One step, simulated; {a.seeds} seeds, medians. The programs are on 4 x P100 over PCIe, planted graphs on their"
        " machines."
    )
    options = f"--evaluations {a.evaluations} --seconds {a.seconds:g} --seeds {a.seeds}"
    command = f"`python benchmarks/search_beside.py OLDER {options} --write`"
    lines = ["# The default policy, before and now", "", f"{command}, OLDER at {commit}", "", about, ""]
    text = "\n".join([*lines, *table(head, found, 2), "", f"machine: {machine()}", ""])
    print("\n" + text)
    if a.write:
        (RESULTS / "search_beside.md").write_text(text)
    return None


if __name__ == "__main__":
    main()
