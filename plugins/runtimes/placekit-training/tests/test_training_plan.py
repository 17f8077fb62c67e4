"""`placekit plan FILE.py:make`: graphs of any batch, what strategies cost, the search, and the command."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_inspect.described import described_machine
from placekit_layers import sequence
from placekit_pipeline.replicas import BUCKET
from placekit_pipeline.rings import all_reduce_s
from placekit_training.command import takes
from placekit_training.layouts import layouts
from placekit_training.model import TRACED, Model, Parts, interpolated
from placekit_training.plan import PUBLISHED, TrainingOptions, TrainingPlan, plan, write_scripts
from placekit_training.planner import SCHEDULES, Planner, Row, divisors
from placekit_training.steps import Outcome, Steps
from placekit_training.strategy import Replica, Strategy
from placekit_training.words import compressed
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.fx import Graph as TorchGraph

from placekit_core import Cluster, ConfigError, Graph, ImporterError, PlacekitError, PlacementError, installed

Run = Callable[..., Any]

STEP = """
import torch
from placekit_torch import Step

class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(torch.relu(torch.sigmoid(self.inner(x))))

class Net(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = torch.nn.Linear(64, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, 8)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def make(batch=8, width=2048, layers=6):
    x, y = torch.randn(batch, 512, 64), torch.randn(batch, 512, 8)
    return Step(Net(width, layers), x, torch.nn.functional.mse_loss, y, torch.optim.Adam)

def eight(batch=8):
    return make(8)

def plain(batch=8):
    return Step(torch.nn.Linear(64, 8), torch.randn(batch, 64), torch.nn.functional.mse_loss, torch.randn(batch, 8))

class Thin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

def thin(batch=8):
    x, y = torch.randn(batch, 64), torch.randn(batch, 64)
    return Step(Thin(), x, torch.nn.functional.mse_loss, y, torch.optim.SGD)

def pairs(batch=8):
    loss = lambda output, y: torch.nn.functional.cross_entropy(output @ y.T, torch.arange(len(output)))
    return Step(torch.nn.Linear(64, 8), torch.randn(batch, 64), loss, torch.randn(batch, 8), torch.optim.SGD)

class Attention(torch.nn.Module):  # with one row, torch copies fewer tensors
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x).mean(dim=1)

def attention(batch=4):
    loss = lambda output, y: torch.nn.functional.cross_entropy(output @ y.T, torch.arange(len(output)))
    return Step(Attention(), torch.randn(batch, 4, 16), loss, torch.randn(batch, 16), torch.optim.SGD)

class Odd(torch.nn.Module):  # calls other modules with one row
    def __init__(self):
        super().__init__()
        self.first, self.alone, self.together = (torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        return (self.alone if len(x) == 1 else self.together)(self.first(x))

def odd(batch=4):
    x, y = torch.randn(batch, 64), torch.randn(batch, 64)
    return Step(Odd(), x, lambda output, y: (output @ y.T).sum(), y, torch.optim.SGD)

class Body(torch.nn.Module):  # before each layer, it computes something from its inputs, and from a parameter
    def __init__(self):
        super().__init__()
        self.embed, self.turn = torch.nn.Linear(64, 64), torch.nn.Sigmoid()
        self.layers = torch.nn.ModuleList(Layer(64) for _ in range(4))
        self.scale = torch.nn.Parameter(torch.randn(64))

    def forward(self, x):
        y = self.embed(x)
        for i, layer in enumerate(self.layers):
            y = layer(y + torch.sin(x * i) * self.turn(self.scale * i))
        return y

class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Body(), torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.head(self.body(x))

def wrapped(batch=8):
    x, y = torch.randn(batch, 64), torch.randn(batch, 64)
    return Step(Wrapped(), x, torch.nn.functional.mse_loss, y, torch.optim.SGD)

def masked(batch=8):
    y = torch.randn(batch, 16, 64)
    loss = lambda y, t, mask: ((y - t) * mask).square().mean()
    return Step(torch.nn.Linear(64, 64), torch.randn(batch, 16, 64), loss, (y, torch.randn(16, 64)), torch.optim.SGD)

def transposed(batch=8):
    x, y = torch.randn(16, batch, 64), torch.randn(16, batch, 64)
    return Step(torch.nn.Linear(64, 64), x, torch.nn.functional.mse_loss, y, torch.optim.SGD)

def once(batch=8):
    loss = lambda output, y, scale: torch.nn.functional.mse_loss(output * scale, y)
    y = torch.randn(batch, 8)
    return Step(torch.nn.Linear(64, 8), torch.randn(batch, 64), loss, (y, torch.ones(1, 8)), torch.optim.SGD)

def flat(batch=8):
    net = torch.nn.Sequential()
    net.add_module("a", torch.nn.Linear(64, 64))
    net.add_module("b", torch.nn.Linear(64, 8))
    return Step(net, torch.randn(batch, 64), torch.nn.functional.mse_loss, torch.randn(batch, 8), torch.optim.SGD)
"""
EMPTY = TorchGraph()
FAST = "fast(8GB 900GB/s 80TFLOPS)"
SLOW = "slow(8GB 450GB/s 40TFLOPS)"
BATCH = 12
PUBLISHED_BAND = "nine of ten of 400 published steps on two to eight A100s are within 46%"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file and function of a step with six layers."""
    file = tmp_path_factory.mktemp("step") / "net.py"
    file.write_text(STEP)
    return f"{file}:make"


@pytest.fixture(scope="module")
def model(target: str) -> Model:
    return plan(target, f"{FAST} + {SLOW}", batch=1).steps.model


def machine(words: str) -> Cluster:
    return described_machine(words, installed())


def imported(target: str, rows: int) -> Graph:
    file, _, function = target.partition(":")
    section = {
        "name": "torch", "module": f"{Path(file).stem}:{function}", "path": str(Path(file).parent), "batches": [rows],
    }  # fmt: skip
    return installed().imported(section)[0].graph


def test_a_graph_between_two_batches_is_the_one_that_an_import_gives(model: Model, target: str) -> None:
    found, wanted = model.program(7).graph, imported(target, 7)
    assert {
        k for k in set(found.all_columns()) - {"signature"} if not np.array_equal(_values(found, k), _values(wanted, k))
    } == set()


def _values(graph: Graph, column: str) -> Any:
    found = graph.all_columns()[column]
    return found if isinstance(found, np.ndarray) else found.tolist()


def test_graphs_with_other_operations_are_not_interpolated(model: Model, target: str) -> None:
    low, high = model.program(2).graph, model.program(4).graph
    assert interpolated(low, high.replace(op_name=tuple(f"{n}'" for n in high.op_name)), (2, 4), 3) is None


def test_pairs_of_rows_are_not_interpolated(target: str) -> None:
    """Of a loss over all pairs of rows, so that its arithmetic grows with the square of the batch."""
    pairs = plan(target.replace(":make", ":pairs"), FAST, batch=6).steps.model
    low, high = (pairs.program(rows).graph for rows in TRACED)
    assert interpolated(low, high, TRACED, 6) is None
    assert pairs.program(6).graph.flops.tolist() == imported(target.replace(":make", ":pairs"), 6).flops.tolist()


@pytest.mark.slow
def test_batches_of_one_row_may_have_other_operations(target: str) -> None:
    found = plan(target.replace(":make", ":attention"), f"{FAST} + {SLOW}", batch=3)
    one, several = (found.steps.problem(rows).graph for rows in (1, 3))
    assert one.n < several.n
    assert found.notes[-1].startswith("note: the step compares rows"), "and its loss compares them"


def test_batches_with_other_parts_are_left_out(target: str) -> None:
    found = plan(target.replace(":make", ":odd"), FAST, batch=4)
    assert found.steps.parts_for(1) is None
    assert Planner(found.steps, 4).sizes(4) == [4, 2]


def test_parts_begin_with_calls_of_modules(model: Model) -> None:
    parts = Parts.of(model.problem(2, machine(FAST)))
    assert parts.begins == ("", *(f"layers.{i}" for i in range(6)), "head")
    assert parts.layer.tolist() == [False, *[True] * 6, False]


def test_parts_have_the_operations_of_torchs_stages(target: str) -> None:
    """Those between two layers belong to the stage before, also if only later layers read them."""
    cluster = machine(FAST)
    model = plan(target.replace(":make", ":wrapped"), FAST, batch=1).steps.model
    parts, graph = Parts.of(model.problem(2, cluster)), model.program(2).graph
    space: dict[str, Any] = {}
    exec(STEP, space)
    step = space["wrapped"](2)
    stages = pipeline(step.module, (step.inputs,), split_spec=dict.fromkeys(parts.begins[1:], SplitPoint.BEGINNING))
    assert parts.begins == ("", *(f"body.layers.{i}" for i in range(4)), "head")
    runs = graph.kernel & (graph.phase == 0) & np.asarray([name != "loss" for name in graph.module.tolist()])
    for number in range(len(parts)):
        nodes = [n for m in stages.get_stage_module(number).modules() for n in getattr(m, "graph", EMPTY).nodes]
        called = [n.target.__name__.split(".")[0] for n in nodes if n.op == "call_function"]
        own = [
            graph.op_type[i].removeprefix("aten.") for i in np.flatnonzero(runs & (parts.grouping.group_of == number))
        ]
        assert sorted(own) == sorted("addmm" if name == "linear" else name for name in called)
    assert len(sequence(model.problem(2, cluster, parts))) == len(parts)


def test_one_device_computes_its_micro_batches_one_after_the_other(model: Model) -> None:
    steps = Steps(model, machine(FAST))
    part = steps.part_s(3)[:, 0].sum(axis=0)
    found = steps.outcome(Strategy((Replica((0,), (), 3, 4),)))
    assert found.step_s == pytest.approx(4 * part[:3].sum() + part[3])
    assert found.fits


def test_copies_wait_for_the_slowest_and_for_the_last_bucket(model: Model) -> None:
    steps = Steps(model, machine(f"2 {FAST}"))
    one = steps.outcome(Strategy((Replica((0,), (), 6, 1),)))
    two = steps.outcome(Strategy((Replica((0,), (), 6, 1), Replica((1,), (), 6, 1))))
    bucket_s = all_reduce_s(steps.cluster, [0, 1], steps.gradient_bytes / math.ceil(steps.gradient_bytes / BUCKET))
    assert one.step_s + bucket_s <= two.step_s * (1 + 1e-12)
    assert np.allclose(two.peak_bytes[:2], one.peak_bytes[0])


def test_a_sharded_optimiser_keeps_part_of_the_state(model: Model) -> None:
    steps = Steps(model, machine(f"2 {FAST}"))
    copies = tuple(Replica((d,), (), 6, 1) for d in range(2))
    plain, sharded = (steps.outcome(Strategy(copies, shard_optimizer=on)) for on in (False, True))
    assert plain.peak_bytes[0] - sharded.peak_bytes[0] == pytest.approx(steps.state_bytes / 2)


def test_recomputation_needs_less_memory_and_more_seconds(model: Model) -> None:
    steps = Steps(model, machine(FAST))
    plain, again = (steps.outcome(Strategy((Replica((0,), (), 12, 1),), recompute=on)) for on in (False, True))
    assert again.step_s > plain.step_s
    assert again.peak_bytes[0] < plain.peak_bytes[0]


def test_shares_go_by_speed(model: Model) -> None:
    """A device with half of all rates gets about half of the rows."""
    found = Planner(Steps(model, machine(f"{FAST} + {SLOW}")), 30).copies(by_speed=True)
    assert found is not None
    assert [replica.batch for replica in found.strategy.replicas] in ([20, 10], [19, 11], [21, 9])


def every_pipeline(steps: Steps, batch: int) -> list[Outcome]:
    """All splits into two consecutive stages, in both orders, of all micro-batches and schedules."""
    begins = steps.parts.begins[1:]
    made = itertools.product(((0, 1), (1, 0)), begins, divisors(batch), SCHEDULES)
    return [
        steps.outcome(Strategy((Replica(devices, (begin,), rows, batch // rows),), schedule))
        for devices, begin, rows, schedule in made
    ]


def test_no_split_into_two_stages_is_faster(model: Model) -> None:
    steps = Steps(model, machine(f"{FAST} + {SLOW}"))
    best = min(o.step_s for o in every_pipeline(steps, BATCH) if o.works)
    found = Planner(steps, BATCH).stages()
    assert found is not None
    assert found.step_s <= best * 1.02  # a later schedule must be faster by 1%


def test_shares_of_copies_are_the_best(model: Model) -> None:
    steps = Steps(model, machine(f"{FAST} + {SLOW}"))
    every = [
        steps.outcome(Strategy((Replica((0,), (), a, 1), Replica((1,), (), BATCH - a, 1)))) for a in range(1, BATCH)
    ]
    found = Planner(steps, BATCH).copies(by_speed=True)
    assert found is not None
    assert found.step_s <= min(o.step_s for o in every if o.works) * 1.02


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ("aa", []),
        ("aaa", [((0, 1), (2, 2))]),
        ("aab", [((0, 1), (2, 2)), ((0, 2), (1, 1))]),
        ("aaaaaaaa", [((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 1, 2), (3, 4, 5)), ((0, 1, 2, 3), (4, 5, 6, 7))]),
    ],
)
def test_layouts_differ_in_kinds(kinds: str, wanted: list[Any]) -> None:
    assert layouts(range(len(kinds)), kinds) == wanted


def test_rows_of_the_table_and_the_verdict(target: str) -> None:
    found = plan(target, f"2 {FAST} + {SLOW}", batch=BATCH)
    families = [row.family for row in found.rows]
    assert families == ["one", "copies", "copies by speed", "equal stages", "stages", "copies of stages", "operations"]
    assert all(row.outcome is None or row.outcome.strategy.batch in (0, BATCH) for row in found.rows)
    works = [row.outcome for row in found.rows if row.outcome is not None]
    assert found.best.step_s == min(o.step_s for o in works)
    assert "times as fast as fast:0 alone" in found.verdict
    assert found.notes[0].startswith("busiest: ")


@pytest.mark.parametrize(
    ("devices", "wanted"), [((0, 1), PUBLISHED_BAND), ((0, 2), "no published step"), ((0,), "no published step")]
)
def test_the_accuracy_is_that_of_published_steps_like_the_plan(
    model: Model, target: str, devices: tuple[int, ...], wanted: str
) -> None:
    steps = Steps(model, machine(f"2 {FAST} + {SLOW}"))
    outcome = steps.outcome(Strategy(tuple(Replica((d,), (), 2, 2) for d in devices)))
    found = TrainingPlan(
        steps, 2 * len(devices), target, TrainingOptions(batch=4), [Row("copies", "replicas", outcome)]
    )
    found.__dict__["one"] = None
    assert found.accuracy.startswith(wanted)


def test_one_device_has_nothing_to_compare(target: str) -> None:
    found = plan(target, FAST, batch=4)
    assert found.verdict == "fast:0 alone: 4 rows on fast:0"


def test_folders_of_profiles_are_plans_of_training(profile: str) -> None:
    assert takes(str(Path(profile).parent))
    assert not takes(str(Path(profile).parent.parent))


@pytest.mark.slow
def test_a_cpu_beside_gpus_runs_no_stage(target: str) -> None:
    found = plan(target, f"{FAST} + {SLOW} + 64GB ddr5-5600", batch=BATCH)
    used = [row.outcome.peak_bytes[2] for row in found.rows if row.outcome is not None and row.family != "operations"]
    assert not any(used)


def test_one_device_is_recommended_where_others_hardly_help(target: str) -> None:
    found = plan(target, f"{FAST} + snail(8GB 1GB/s 0.01TFLOPS)", batch=BATCH)
    assert found.best is found.one
    assert "nothing else is faster by more than 5%" in found.verdict


def test_a_step_that_fits_nowhere_is_an_error(model: Model) -> None:
    """There is room for parameters and optimiser state, but not for gradients."""
    steps = Steps(model, devices_with(0.52 * model.program(1).graph.persistent_bytes.sum()))
    found = TrainingPlan(steps, 2, "", TrainingOptions(batch=2), Planner(steps, 2).rows())
    with pytest.raises(PlacementError, match=r"no strategy for net\.make with 2 rows fits"):
        _ = found.best


def devices_with(memory_bytes: float, count: int = 2, cpu: bool = False) -> Cluster:
    """GPUs with so much memory, and a CPU with plenty."""
    tiny = {"flops_per_s": {"float32": 1e13}, "memory_bytes": int(memory_bytes), "memory_bytes_per_s": 1e12}
    kinds: dict[str, Any] = {"tiny": tiny, **({"cpu": {**tiny, "type": "cpu", "memory_bytes": 2**36}} if cpu else {})}
    devices = [{"kind": "tiny", "count": count}, {"kind": "cpu", "count": 1}][: len(kinds)]
    link = {"mesh": "*", "bytes_per_s": 1e10}
    return Cluster.parse({"kinds": kinds, "devices": devices, "links": [link]})


def test_replicas_fit_with_a_sharded_optimiser(model: Model) -> None:
    """Parameters, gradients and Adam's state are 16 bytes for each parameter; four devices keep 10 each."""
    steps = Steps(model, devices_with(model.program(1).graph.persistent_bytes.sum() * 14 / 12, 4))
    planner = Planner(steps, 4)
    assert planner.single() is None
    for by_speed in (False, True):
        found = planner.copies(by_speed)
        assert found is not None
        assert found.fits
        assert found.strategy.shard_optimizer
        assert len(found.strategy.replicas) == 4


def test_splits_that_fit_are_found_where_the_fastest_do_not(model: Model) -> None:
    steps = Steps(model, devices_with(0.38 * 2**30, 4))
    found = Planner(steps, 4).copies_of_stages()
    copies = (
        tuple(Replica(devices, (begin,), rows, 2 // rows) for devices in ((0, 1), (2, 3)))
        for begin in steps.parts.begins[1:]
        for rows in (1, 2)
    )
    outcomes = [steps.outcome(Strategy(replicas)) for replicas in copies]
    assert not all(o.fits for o in outcomes)
    assert found is not None
    assert found.step_s <= min(o.step_s for o in outcomes if o.works) * 1.02


def test_stages_run_on_gpus_only(model: Model) -> None:
    steps = Steps(model, devices_with(0.3 * 2**30, 2, cpu=True))
    found = Planner(steps, 4).rows()
    used = {d for row in found if row.outcome is not None for d in row.outcome.strategy.devices}
    assert used <= {0, 1}


def test_a_row_without_a_strategy_says_why(model: Model) -> None:
    reasons = {row.family: row.reason for row in Planner(Steps(model, devices_with(2**33, 8)), 1).rows()}
    assert reasons["copies"] == "needs 2 rows"
    assert reasons["equal stages"] == "fewer layers than devices"


def test_devices_in_words() -> None:
    assert compressed(["a:0", "a:1", "a:2", "b:0", "b:2", "b:4"], ", ") == "a:0 to 2, b:0, b:2, b:4"
    assert compressed(["1.5", "1.5", "1.5", "0", "0"], "+") == "3x1.5+0+0"


PROFILE = """\
layer,kind,microbatch,forward_s,backward_s,update_s,parameter_bytes,gradient_bytes,state_bytes,output_bytes,saved_bytes
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """Four layers, measured on two kinds with two and four rows; one of them also with eight."""
    rows = [
        f"{layer},{kind},{rows},{s * rows},{2 * s * rows},0.001,1000000,1000000,2000000,{1000 * rows},{9000 * rows}"
        for kind, s, sizes in (("fast", 0.001, (2, 4, 8)), ("old", 0.002, (2, 4)))
        for rows in sizes
        for layer in range(4)
    ]
    file = tmp_path / "measured.csv"
    file.write_text(PROFILE + "\n".join(rows) + "\n")
    return str(file)


def test_a_plan_of_measured_layers(profile: str) -> None:
    """The CPU need not be measured. Micro-batches have the sizes that were measured on all kinds."""
    found = plan(profile, f"{FAST} + {SLOW} + 64GB ddr5-5600", batch=12, kinds="{fast: fast, old: slow}")
    assert found.steps.model.sizes == (2, 4)
    assert found.one is not None
    assert found.one.step_s == pytest.approx(12 * 4 * 0.003 + 4 * 0.001)
    assert {row.family for row in found.rows} == {"one", "copies", "copies by speed", "equal stages", "stages"}
    with pytest.raises(PlacekitError, match="a profile has no modules to run"):
        write_scripts(found, Path("scripts"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 13}, "13 rows are not a multiple of any measured micro-batch of measured: 2, 4"),
        ({"batch": 12, "kinds.old": "fast"}, "kinds names no measurements for slow"),
        ({"batch": 12, "autocast": "bfloat16"}, "names a profile, but autocast is for functions"),
        ({"batch": 12, "degree": 2}, "no micro-batch that was measured with degree 2 on all of fast, old"),
    ],
)
def test_profiles_that_do_not_have_the_batch(profile: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacekitError, match=message):
        plan(profile, f"{FAST} + {SLOW}", **{"kinds.fast": "fast", "kinds.old": "slow", **options})


@pytest.mark.parametrize("function", ["flat", "thin"])
def test_networks_without_layers_are_not_recomputed(target: str, function: str) -> None:
    """`thin` has layers that do half of the work of its parts."""
    found = plan(target.replace(":make", f":{function}"), f"{FAST} + {SLOW}", batch=4)
    assert found.one is not None
    assert not any(row.outcome.strategy.recompute for row in found.rows if row.outcome is not None)


@pytest.mark.parametrize(
    ("function", "message"), [("eight", "the same step for 2 and 4 rows"), ("plain", "has no optimizer")]
)
def test_functions_that_make_no_step(target: str, function: str, message: str) -> None:
    with pytest.raises(ImporterError, match=message):
        plan(target.replace(":make", f":{function}"), FAST, batch=4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "the batch is not given"),
        ({"batch": 0}, ConfigError, "batch"),
        ({"batc": 4}, ConfigError, "no option named 'batc'"),
        ({"batch": 4, "foo": 1}, ConfigError, "no option named 'foo'"),
        ({"batch": 4, "arguments.depth": 1}, ImporterError, "depth"),
        ({"batch": 4, "degree": 2}, ConfigError, "names a function, but degree is for profiles"),
    ],
)
def test_options_that_do_not_work(
    target: str, options: dict[str, Any], error: type[PlacekitError], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan(target, FAST, **options)


def test_files_that_are_not_there() -> None:
    with pytest.raises(ImporterError, match=r"there is no file nothing\.py"):
        plan("nothing.py:make", FAST, batch=4)


HALVES = Strategy((Replica((0, 2), ("layers.2",), 1, 2), Replica((1, 3), ("layers.2",), 1, 2)))


@pytest.mark.parametrize(
    ("words", "strategy", "lines"),
    [
        (f"3 {FAST}", Strategy((Replica((0,), (), 4, 1),)), ["python SCRIPT.py"]),
        (
            f"2 {FAST} + {SLOW}",
            Strategy((Replica((2, 0), ("layers.2",), 2, 2),)),
            ["CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,0 torchrun --nproc-per-node 2 SCRIPT.py"],
        ),
        (
            f"2 nodes of (2 {FAST}), ib_hdr",
            HALVES,
            [
                "torchrun --nproc-per-node 2 --nnodes 2 --node-rank 0 --master-addr BOX SCRIPT.py"
                "  # in the box of fast:0, whose address is BOX",
                "torchrun --nproc-per-node 2 --nnodes 2 --node-rank 1 --master-addr BOX SCRIPT.py"
                "  # in the box of fast:2",
            ],
        ),
        (
            f"2 nodes of (2 {FAST}), ib_hdr",
            Strategy((Replica((3,), (), 4, 1),)),
            ["CUDA_VISIBLE_DEVICES=1 python SCRIPT.py  # in the box of fast:3"],
        ),
        (
            f"2 nodes of (2 {FAST}), ib_hdr",
            Strategy((Replica((0, 2, 1), ("layers.2", "layers.4"), 2, 2),)),
            ["# no line for SCRIPT.py: torchrun numbers ranks box by box, which does not fit the order of the stages"],
        ),
    ],
)
def test_lines_give_each_rank_its_gpu(
    words: str, strategy: Strategy, lines: list[str], model: Model, target: str, tmp_path: Path
) -> None:
    rows = [Row("stages", "stages", Steps(model, machine(words)).outcome(strategy))]
    found = TrainingPlan(Steps(model, machine(words)), 4, target, TrainingOptions(batch=4), rows)
    assert write_scripts(found, tmp_path) == [line.replace("SCRIPT.py", f"{tmp_path / 'stages.py'}") for line in lines]
    text = (tmp_path / "stages.py").read_text()
    assert all(f"    {line}\n" in text for line in lines)
    if strategy is HALVES:
        assert "([0, 2], " in text  # box by box: devices 0, 1, 2, 3


@pytest.mark.parametrize(
    ("function", "batch", "message"),
    [
        ("masked", 16, r"target\.1 always has 16 rows"),
        ("transposed", 8, r"has shape \(16, 4, 64\) for 4 rows"),
    ],
)
def test_scripts_divide_the_first_dimension(
    function: str, batch: int, message: str, target: str, tmp_path: Path
) -> None:
    with pytest.raises(PlacekitError, match=message):
        write_scripts(plan(target.replace(":make", f":{function}"), FAST, batch=batch), tmp_path)


def test_a_batch_of_one_row_is_divided_whatever_the_inputs(target: str, tmp_path: Path) -> None:
    assert write_scripts(plan(target.replace(":make", ":once"), FAST, batch=1), tmp_path)


def test_the_band_is_that_of_the_benchmark() -> None:
    text = (Path(__file__).parents[4] / "benchmarks" / "results" / "training.md").read_text()
    steps, error = PUBLISHED
    assert f"{steps} rows" in text
    assert f"nine of ten within {error:.1%}" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["net.py", "batch=4", "autocast=bfloat16"], "net.py names no function"),
        (["net.py:make", "batch=4", "--html", "x.html"], "writes no page"),
        (["Qwen3-14B", "--scripts", "scripts"], "Qwen3-14B is a language model to run"),
    ],
)
def test_commands_that_do_not_work(words: list[str], message: str, placekit: Run) -> None:
    done = placekit("plan", words[0], FAST, *words[1:])
    assert done.code != 0
    assert message in done.err


def test_a_profile_is_planned_with_its_own_seconds(tmp_path: Path) -> None:
    seconds, sizes = (
        "forward_s,backward_s,update_s",
        "parameter_bytes,gradient_bytes,state_bytes,output_bytes,saved_bytes",
    )
    speeds = (("rtx4090", 1.0), ("rtx3090", 2.0))
    lines = [f"h.{i},{kind},2,{s},{2 * s},0,8,8,16,8,8" for kind, s in speeds for i in range(4)]
    file = tmp_path / "profile.csv"
    file.write_text("\n".join([f"layer,kind,microbatch,{seconds},{sizes}", *lines, ""]))
    found = plan(str(file), "rtx4090_3090", batch=6)
    assert found.one is not None
    assert found.one.step_s == pytest.approx(3 * 4 * 3.0, rel=1e-3)
    copies = next(row.outcome for row in found.rows if row.family == "copies by speed")
    assert copies is not None
    assert [replica.batch for replica in copies.strategy.replicas] == [4, 2]
    assert copies.step_s == pytest.approx(2 * 4 * 3.0, rel=1e-3)
    with pytest.raises(PlacekitError, match="a profile has no modules to run"):
        write_scripts(found, tmp_path)


def test_the_command(target: str, placekit: Run) -> None:
    done = placekit("plan", target, f"{FAST} + {SLOW}", f"batch={BATCH}", "arguments.layers=4")
    assert done.code == 0, done.err
    assert "replicas, shares by speed" in done.out
    assert "recommended: " in done.out


@pytest.mark.slow
def test_more_words_for_the_machine(target: str, placekit: Run) -> None:
    done = placekit("plan", target, FAST, "batch=4", "arguments.layers=2", "--if", f"+ {FAST}", "--if", "pcie3 x8")
    assert done.code == 0, done.err
    rows = done.out[done.out.index("\nif ") :].splitlines()[2:]
    assert re.search(r"\+\d+%$", rows[0])
    assert rows[1].startswith("pcie3 x8")
    assert rows[1].endswith("nothing changes")


@pytest.mark.slow
def test_scripts_are_not_written_over_edited_ones(target: str, tmp_path: Path) -> None:
    found = plan(target, FAST, batch=4)
    assert write_scripts(found, tmp_path) == write_scripts(found, tmp_path)
    (tmp_path / "one.py").write_text("mine")
    with pytest.raises(PlacekitError, match=r"one\.py exists, and differs"):
        write_scripts(found, tmp_path)
    with pytest.raises(PlacekitError, match="scripts cannot run with autocast=bfloat16"):
        write_scripts(plan(target, FAST, batch=4, autocast="bfloat16"), tmp_path)
