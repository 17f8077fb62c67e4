"""The contract of importers passes for right importers, and finds planted bugs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit_step import HEAD, LOSS, NEW, NOISE, UPDATE, Execution, W, X, Y, Z, a_step
from kit_tools import catches, changed, own_checks, skipped
from placekit_testing import ImporterContract
from pydantic import Field

from placekit_core import CostTable, GraphBuilder, GraphError, Importer, Program, load_graph, save_graph

builtin = pytest.importorskip("placekit_formats.file_importer")
FileImporter, FileOptions = builtin.FileImporter, builtin.FileOptions
CHECKS = own_checks(ImporterContract)


class Right(FileImporter):
    """The step, from a graph file."""

    execution: type[Execution] = Execution

    def load(self) -> list[Program]:
        program = Program(load_graph(self.options.path), executable=self.execution(self.options.path))
        return [self.change(program)]

    def change(self, program: Program) -> Program:
        return program


class GraphOnly(Right):
    """Its programs have no executable: a right importer."""

    def change(self, program: Program) -> Program:
        return replace(program, executable=None)


class SortsNothing(Right):
    """A name is taken from a set of strings, which has another order in every process."""

    def change(self, program: Program) -> Program:
        first = "_".join({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"})
        return replace(program, graph=program.graph.replace(op_name=(first, *program.graph.op_name[1:])))


class NotedOptions(FileOptions):
    notes: dict[str, int] = Field({})


class WritesIntoItsOptions(Right):
    """`load` notes something in a dict among its options."""

    options_class = NotedOptions

    def change(self, program: Program) -> Program:
        self.options.notes["operations"] = program.graph.n
        return program


class OpensAnything(Importer):
    """A file that does not exist ends in a FileNotFoundError with a traceback."""

    name = "file"
    options_class = FileOptions

    def load(self) -> list[Program]:
        with open(self.options.path, "rb"):
            return [Program(load_graph(self.options.path))]


class SaysTooLittle(Right):
    """A damaged file is an error that does not say which file."""

    def load(self) -> list[Program]:
        try:
            return super().load()
        except GraphError:
            raise GraphError("cannot read the graph") from None


class ReadsOtherFiles(Right):
    """`detect` does not know the file that it reads."""

    def __init__(self, options: FileOptions | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        Path(self.options.path).write_bytes(b"another format")


class RecipeOfAnother(Execution):
    """The recipe names options from which another graph is loaded."""

    def __init__(self, path: str) -> None:
        b = GraphBuilder("other")
        b.add("op")
        super().__init__(str(save_graph(b.build(), Path(path).with_name("other.graph.npz"))))


class UpdatesInPlace(Execution):
    """The update writes into the parameter that it is given."""

    def compute(self, op: int, values: Mapping[int, Any], step: int) -> tuple[int, Any]:
        if op == UPDATE:
            values[W].__isub__(values[Y])
            return NEW, values[W]
        return super().compute(op, values, step)


class WrongView(Execution):
    """`view` makes another part of the base than the kernels read."""

    def view(self, tensor: int) -> Callable[[Any], Any]:
        return lambda base: base[2:]

    def head(self, values: Mapping[int, Any]) -> Any:
        return values[HEAD] if HEAD in values else values[Y][:2]


def graphs(**columns: Callable[[Any], Any]) -> type[Importer]:
    """An importer with these columns of its graph computed from the right graph."""

    def change(self: Right, program: Program) -> Program:
        graph = program.graph
        return replace(program, graph=graph.replace(**{name: column(graph) for name, column in columns.items()}))

    return changed(Right, change=change)


def executing(**members: Any) -> type[Importer]:
    """An importer whose executable has these members."""
    return changed(Right, execution=changed(Execution, **members))


def single_precision(self: Any, op: int, values: Mapping[int, Any], step: int) -> tuple[int, Any]:
    tensor, value = Execution.compute(self, op, values, step)
    return tensor, value.astype(np.float32)


def one_generator(self: Any, ops: Any, device: Any = None, keep: Any = None) -> Any:
    run = Execution.compile(self, ops, device, keep)
    return lambda values, step=0: run(values, step * 1000 + len(ops))


def nothing(self: Right) -> list[Program]:
    return []


def too_few_rows(self: Right, program: Program) -> Program:
    return replace(program, costs=CostTable(("gpu",), np.zeros((2, 1)), np.zeros((2, 1), np.bool_)))


COUNTER, ORIGINALS = itertools.count(), Execution("").initial()
VALID, TWICE, FILES = (
    "check_graphs_are_valid", "check_loading_twice_gives_the_same", "check_files_that_cannot_be_read_are_errors",
)  # fmt: skip
INITIAL, TENSORS, RUNNING, FUSED = (
    "check_initial_values", "check_tensors_exist", "check_running_changes_nothing_else",
    "check_fused_kernels_equal_single_ones",
)  # fmt: skip
WRONG: list[tuple[str, type[Importer], str]] = [
    (VALID, changed(Right, load=nothing), "load returned no program"),
    (VALID, graphs(op_name=lambda g: ("op",) * g.n), "'op' of graph 'step' occurs twice"),
    (VALID, graphs(input_tensor=lambda g: np.where(g.input_tensor == Z, 99, Z).astype(np.int32)), "outside 0..6"),
    (VALID, graphs(input_tensor=lambda g: np.where(g.input_tensor == X, LOSS, g.input_tensor)), "cycle"),
    (VALID, graphs(flops=lambda g: g.flops - 1), "flops of operation 'w' is -1.0"),
    (VALID, graphs(phase=lambda g: np.full(g.n, 9, np.uint8)), "phase of graph 'step' is outside"),
    (VALID, changed(Right, change=too_few_rows), "the costs of 'step' have op_s of shape (2, 1)"),
    (TWICE, graphs(op_name=lambda g: tuple(f"{o}_{next(COUNTER)}" for o in g.op_name)), "another fingerprint"),
    (TWICE, WritesIntoItsOptions, "after loading"),
    ("check_other_processes_give_the_same", SortsNothing, "another program in another process"),
    ("check_graphs_survive_a_file", graphs(attributes=lambda g: {"batch": (4, 4)}), "the file has other attributes"),
    (FILES, OpensAnything, "FileNotFoundError"),
    (FILES, SaysTooLittle, "the error does not name the file: cannot read the graph"),
    ("check_own_files_are_detected", ReadsOtherFiles, "`detect` refuses step.graph.npz, which 'file' reads"),
    (INITIAL, executing(initial=lambda self, seed=None: {W: np.arange(4.0)}), "missing {1}, too many set()"),
    (INITIAL, executing(initial=lambda self, seed=None: dict(ORIGINALS)), "two calls of `initial` share memory"),
    (TENSORS, executing(views={HEAD: Y, Y: X}), "3 is a view of the view 2"),
    (TENSORS, executing(updates={NEW: W}), "6 is updated, but is not the tensor of a source"),
    (TENSORS, executing(results={"loss": 99}), "result 'loss' is tensor 99, which does not exist"),
    (TENSORS, executing(random_ops=frozenset({0, NOISE})), "random operation 0 is not a kernel"),
    ("check_values_have_their_bytes", executing(compute=single_precision), "tensor 2 has 16 bytes, not 32"),
    (RUNNING, changed(Right, execution=UpdatesInPlace), "running changed its inputs"),
    (
        RUNNING,
        executing(compile=lambda self, ops, device=None, keep=None: Execution.compile(self, ops, device)),
        "gives the tensors [2, 4, 5, 6], asked for [2, 5, 6]",
    ),
    (FUSED, executing(compile=one_generator), "other bits of 'loss' in step 0"),
    (FUSED, executing(random_ops=frozenset()), "'loss' differs, and nothing is random"),
    (FUSED, executing(result=lambda self, name, values: {"loss": values[LOSS]}[name]), "KeyError: 'head'"),
    ("check_a_view_stands_for_its_base", changed(Right, execution=WrongView), "other bits of 'loss'"),
    ("check_recipe_rebuilds_the_program", changed(Right, execution=RecipeOfAnother), "makes another graph"),
]


@pytest.fixture(autouse=True)
def right_importer_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importer `file`, which the recipes name, is the right one of this file."""
    monkeypatch.setattr(builtin, "FileImporter", Right)


def made(importer: type[Importer], folder: Path) -> Callable[..., Importer]:
    return partial(importer, path=str(save_graph(a_step(), folder / "step.graph.npz")))


def test_passes_for_right_importers(tmp_path: Path) -> None:
    assert skipped(ImporterContract, CHECKS, made(Right, tmp_path), tmp_path) == set()
    executables = set(CHECKS[CHECKS.index(INITIAL) :])
    assert skipped(ImporterContract, CHECKS, made(GraphOnly, tmp_path), tmp_path) == executables


def test_finds_planted_bugs(tmp_path: Path) -> None:
    wrong = []
    for i, (name, importer, says) in enumerate(WRONG):
        (folder := tmp_path / str(i)).mkdir()
        wrong.append((name, made(importer, folder), says))
    catches(ImporterContract, CHECKS, wrong, tmp_path)
