"""Step times of GPTs on pipelines of A100s that others published, against backend `pipeline` on `a100x8`.

    python benchmarks/vtrain.py [--rows FILE] [--write]

Rows are those of vTrain (`data/ground_truth_single.csv` of VIA-Research/vTrain, MIT) without tensor and data parallelism;
by default the file `vtrain/pipeline_2gpus.csv` of the folder that `PLACEKIT_SAMPLES` names. Every model is traced by
importer `gpt` in half precision: one micro-batch is the program, layers are split evenly over the stages, the embedding is on
the first and the output on the last. The traced operations take the time of the roofline, whose four parameters are fitted
on half of the rows with two stages, chosen by the SHA-256 of their text; the other half is the result. Rows with other
numbers of stages are never fitted. `--write` keeps the report in benchmarks/results/vtrain.md.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_pipeline.pipeline import Pipeline
from placekit_zoo.gpt import GptImporter
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from placekit_core import EFFICIENCY, Cluster, Efficiency, Graph, Grouping, Host, Problem, load_cluster

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NOTES = """\
What the rates are: `matmul` is a fraction of 312 TFLOP/s, `memory` of 2.039 TB/s. `unaligned` is for products with
the vocabulary of 50,257, whose rows do not begin at multiples of 16 bytes. `launch` is the host's time per operation
(Python, autograd, checkpointing); longer operations hide it.

What these figures are worth:

- Times of single runs would not follow a formula to the last digit. So the file was put together from fewer
  measurements, or by a program. Every pair of hidden size and micro-batch has rows in both halves, so one half says
  little about the other.
- The terms of the model were chosen with all rows in view; only the rates are fitted on half of them.
- The output layer is slow: its products run at a fraction of the tensor cores' peak. A vocabulary padded to a multiple
  of 64, as in Megatron-LM, would not be unaligned, but fits less well.
- Recomputation is in doubt. The configurations say that layers repeat their forward pass, but then the fit takes all of
  the peak, which no A100 reaches.
- Not modelled: the sum of the two embeddings' gradients, launching the optimiser's kernels for many tensors at once
  (here one launch per tensor), and gradient accumulation.
- Not known: which A100 (40 or 80 GB), its clock, and the versions of CUDA and PyTorch. The fitted memory bandwidth does
  not tell, because it depends on whether layers were recomputed.
"""
KNEE = 0.03  # up to this relative error, the fit counts squares; beyond, rather distances
Floats = NDArray[np.float64]


class Row(NamedTuple):
    """A step: the line of the file, what was trained, and the seconds."""

    text: str
    microbatches: int
    micro: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    stages: int
    seconds: float

    @property
    def unseen(self) -> bool:
        """Whether the row is in the half that is not fitted."""
        return hashlib.sha256(self.text.encode()).digest()[-1] % 2 == 1


class Parameters(NamedTuple):
    """The fitted parameters: fractions of the peaks of `a100x8`, and seconds.

    Attributes:
        matmul, unaligned: of the tensor cores' rate, for products, and for those with rows that begin anywhere.
        memory: of the memory bandwidth, for all operations.
        launch_s: seconds that the host takes per operation.
    """

    matmul: float
    unaligned: float
    memory: float
    launch_s: float


START = Parameters(0.75, 0.3, 0.8, 40e-6)
LEAST = Parameters(0.2, 0.05, 0.2, 1e-6)
MOST = Parameters(1.0, 1.0, 1.0, 200e-6)


class Setting(NamedTuple):
    """The assumptions: recomputation, whether the host launches ahead, and the rows of the embedding."""

    checkpointing: str = "block"
    launched_ahead: bool = True
    vocabulary: int = 50257


@dataclass(frozen=True, eq=False)
class Model:
    """The training step of one micro-batch, in blocks, and the stage of each."""

    graph: Graph
    grouping: Grouping
    layer: NDArray[np.int64]
    """[g] number of the layer; -1 before the first, a large number after the last."""

    def stage(self, stages: int, layers: int) -> NDArray[np.int64]:
        """[g] stage of each block: layers evenly, the rest with the first and last."""
        return np.clip(self.layer // (layers // stages), 0, stages - 1)


def read_rows(path: Path) -> list[Row]:
    """The rows of vTrain's file without tensor and data parallelism and with at least two stages."""
    found = []
    for text in path.read_text().splitlines()[1:]:
        _, total, micro, hidden, heads, layers, length, tensor, data, stages, ms = next(csv.reader([text]))
        if tensor == data == "1" and stages != "1":
            b, h, a, n, s, p = map(int, (micro, hidden, heads, layers, length, stages))
            found.append(Row(text.strip(), int(total) // b, b, h, a, n, s, p, float(ms) / 1e3))
    return found


@cache
def model(micro: int, hidden: int, heads: int, layers: int, length: int, vocabulary: int) -> Model:
    """The traced model in blocks."""
    importer = GptImporter(
        batch=micro, embedding=hidden, heads=heads, layers=layers, sequence=length, vocabulary=vocabulary,
        optimizer="fused_adam", dtype="float16", fused_softmax=True, tied=False,
    )  # fmt: skip
    graph = importer.load()[0].graph
    blocks = sequence(Problem.of(graph, machine(1, START, Setting())))
    number = np.cumsum(blocks.layer) - 1
    number[np.flatnonzero(blocks.layer)[-1] + 1 :] = graph.n
    grouping = Grouping.of(blocks.of_op, blocks.names)
    first = np.unique(grouping.group_of, return_index=True)[1]
    return Model(graph, grouping, number[blocks.of_op[first]])


@cache
def shipped() -> Cluster:
    """The machine, as it ships."""
    return load_cluster(ROOT / "conf" / "cluster" / "a100x8.yaml")


def machine(stages: int, p: Parameters, setting: Setting) -> Cluster:
    """`stages` GPUs of `a100x8` with the parameters in place of nominal figures."""
    cluster = shipped()
    efficiency = {name: Efficiency(compute=row.compute, memory=p.memory) for name, row in EFFICIENCY.items()}
    for name, compute in (("matmul", p.matmul), ("unaligned_matmul", p.unaligned)):
        efficiency[name] = Efficiency(compute=compute, memory=p.memory)  # type: ignore[index]
    changes = {"efficiency": efficiency, "launch_overhead_s": 0.0 if setting.launched_ahead else p.launch_s}
    hosts = [Host(launch_s=p.launch_s)] if setting.launched_ahead else []
    kinds = {name: kind.model_copy(update=changes) for name, kind in cluster.kinds.items()}
    devices = [cluster.devices[0].model_copy(update={"count": stages})]
    own = {name: getattr(cluster, name) for name in Cluster.model_fields}
    return Cluster(**{**own, "kinds": kinds, "devices": devices, "hosts": hosts})


def predict(rows: Sequence[Row], p: Parameters, setting: Setting) -> Floats:
    """[rows] seconds of a step by backend `pipeline`."""
    seconds = []
    for row in rows:
        m = model(row.micro, row.hidden, row.heads, row.layers, row.sequence, setting.vocabulary)
        problem = Problem.of(m.graph, machine(row.stages, p, setting), m.grouping)
        backend = Pipeline(
            schedule="1f1b", microbatches=row.microbatches, checkpointing=setting.checkpointing, threads=1
        )
        session = backend.open(problem)
        found = session.evaluate(problem.placement(m.stage(row.stages, row.layers)).batch())
        session.close()
        if found.error[0] or not found.fits[0]:
            raise SystemExit(f"{row.text}: {found.error[0] or 'does not fit'}")
        seconds.append(float(found.value_s[0]))
    return np.asarray(seconds)


def measured(rows: Sequence[Row]) -> Floats:
    """[rows] seconds of the file."""
    return np.asarray([row.seconds for row in rows])


def fit(rows: Sequence[Row], setting: Setting, start: Parameters = START) -> Parameters:
    """The parameters that give the smallest relative errors on `rows`."""
    given = measured(rows)
    low, high = np.log(LEAST), np.log(MOST)

    def residuals(x: Floats) -> Floats:
        return np.log(predict(rows, Parameters(*np.exp(x)), setting) / given)

    begin = np.clip(np.log(start), low + 1e-3, high - 1e-3)
    found = least_squares(
        residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=KNEE, diff_step=1e-3, ftol=1e-4, xtol=1e-4,
        max_nfev=15,
    )  # fmt: skip
    return Parameters(*map(float, np.exp(found.x)))


# ---- the report


def errors(rows: Sequence[Row], seconds: Floats) -> dict[str, float]:
    """Relative errors in percent, and the rank correlation."""
    error = 100 * np.abs(seconds / measured(rows) - 1)
    return {
        "rows": len(rows),
        "mean": float(error.mean()),
        "median": float(np.median(error)),
        "worst": float(error.max()),
        "spearman": float(spearmanr(seconds, measured(rows)).statistic),
    }


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A table in Markdown; numbers to the right."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" + "---:|" * (len(heads) - 1)]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def error_row(label: str, e: dict[str, float]) -> list[str]:
    """A row of the tables of errors."""
    return [
        label,
        f"{e['rows']}",
        f"{e['mean']:.1f}%",
        f"{e['median']:.1f}%",
        f"{e['worst']:.1f}%",
        f"{e['spearman']:.3f}",
    ]


ERRORS = ("rows", "number", "mean error", "median", "worst", "rank correlation")


def parameters_text(p: Parameters, setting: Setting) -> list[str]:
    """A row of the tables of parameters; with a padded vocabulary no product is unaligned."""
    unaligned = "-" if setting.vocabulary % 8 == 0 else f"{p.unaligned:.2f}"
    return [f"{p.matmul:.2f}", unaligned, f"{p.memory:.2f}", f"{1e6 * p.launch_s:.1f} us"]


def composed(rows: Sequence[Row]) -> str:
    """How far the rows are from sums: a + b layers + c micro-batches + d layers * micro-batches per hidden size and batch."""
    worst, numbers = 0.0, 0
    for key in sorted({(r.hidden, r.micro, r.stages) for r in rows}):
        own = [r for r in rows if (r.hidden, r.micro, r.stages) == key]
        terms = np.asarray([[1, r.layers, r.microbatches, r.layers * r.microbatches] for r in own], np.float64)
        solved, _, rank, _ = np.linalg.lstsq(terms, measured(own), rcond=None)
        numbers += int(rank)
        worst = max(worst, float(np.abs(terms @ solved / measured(own) - 1).max()))
    return (
        f"{len(rows)} rows are {numbers} numbers: a + b L + c M + d L M for each hidden size and micro-batch gives all of them"
        f" to {max(worst, 1e-9):.0e}\n(L layers, M micro-batches)."
    )


VARIANTS = {
    "as documented: recomputation, vocabulary 50,257": Setting(),
    "no recomputation": Setting(checkpointing="none"),
    "launches added to each operation": Setting(launched_ahead=False),
    "vocabulary padded to 50,304": Setting(vocabulary=50304),
}


def report(rows: list[Row], say: Callable[[str], None]) -> None:
    """Print the errors of each variant, those of rows that nothing like them was fitted on, and the parameters."""

    def show(lines: Sequence[str]) -> None:
        say("\n".join([*lines, ""]))

    two = [r for r in rows if r.stages == 2]
    seen, unseen = ([r for r in two if r.unseen == half] for half in (False, True))
    show([composed(two)])
    lines, fitted, found = [], [], []
    for label, setting in VARIANTS.items():
        p = fit(seen, setting)
        found.append(p)
        for half, own in (("fitted", seen), ("unseen", unseen)):
            lines.append(error_row(f"{label}: {half}", errors(own, predict(own, p, setting))))
        fitted.append([label, *parameters_text(p, setting)])
    chosen = found[0]
    show(table(ERRORS, lines))
    show(table(["parameters", "matmul", "unaligned", "memory", "launch"], fitted))
    cells = sorted({(r.hidden, r.micro) for r in two})
    left_out = np.zeros(len(two))
    for cell in cells:
        p = fit([r for r in two if (r.hidden, r.micro) != cell], Setting(), chosen)
        at = [i for i, r in enumerate(two) if (r.hidden, r.micro) == cell]
        left_out[at] = predict([two[i] for i in at], p, Setting())
    label = f"each of the {len(cells)} pairs of hidden size and micro-batch"
    show(table(("predicted from all other rows", *ERRORS[1:]), [error_row(label, errors(two, left_out))]))
    for stages in sorted({r.stages for r in rows} - {2}):
        own = [r for r in rows if r.stages == stages]
        e = errors(own, predict(own, chosen, Setting()))
        show(table(ERRORS, [error_row(f"{stages} stages, never fitted", e)]))


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=Path, help="vTrain's file, or rows of it")
    parser.add_argument("--write", action="store_true", help="keep the report in benchmarks/results")
    arguments = parser.parse_args()
    samples = os.environ.get("PLACEKIT_SAMPLES")
    if arguments.rows is None and not samples:
        parser.error("give --rows FILE, or PLACEKIT_SAMPLES: the folder with vtrain/pipeline_2gpus.csv")
    rows = read_rows(arguments.rows or Path(samples or "") / "vtrain" / "pipeline_2gpus.csv")
    said: list[str] = []

    def say(text: str) -> None:
        print(text, flush=True)
        said.append(text)

    report(rows, say)
    if arguments.write:
        head = ["# Pipelines of A100s, from vTrain", "", "`python benchmarks/vtrain.py --write`", ""]
        (RESULTS / "vtrain.md").write_text("\n".join([*head, *said]).rstrip() + f"\n\n{NOTES}")


if __name__ == "__main__":
    main()
