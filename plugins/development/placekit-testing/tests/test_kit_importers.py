"""Each check of the contract of importers passes for a right importer, and catches one that is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit_step import HEAD, LOSS, NEW, NOISE, UPDATE, Execution, W, X, Y, Z, a_step
from kit_tools import fails, run_check
from placekit_testing import Contract, ImporterContract
from placekit_testing.contract import checks_of, is_claimed
from pydantic import Field

from placekit_core import CostTable, GraphBuilder, GraphError, Importer, Program, load_graph, save_graph

builtin = pytest.importorskip("placekit_formats.file_importer")
FileImporter, FileOptions = builtin.FileImporter, builtin.FileOptions
CHECKS = [name for name in checks_of(ImporterContract) if name not in checks_of(Contract)]


class Claims(ImporterContract):
    """The contract of an importer of files, whose programs are run."""

    reads_files = detects = True


class Unrunnable(FileImporter):
    """Its programs cannot be executed, but the test class says that they can."""


class Right(FileImporter):
    """The step, from a graph file."""

    execution: type[Execution] = Execution

    def load(self) -> list[Program]:
        program = Program(load_graph(self.options.path), executable=self.execution(self.options.path))
        return [self.change(program)]

    def change(self, program: Program) -> Program:
        return program

    @staticmethod
    def regraph(program: Program, **columns: Any) -> Program:
        """The program with other columns in its graph."""
        return replace(program, graph=program.graph.replace(**columns))


class LoadsNothing(Right):
    """`load` gives an empty list."""

    def load(self) -> list[Program]:
        return []


class OneNameForAll(Right):
    """Every operation is called `op`."""

    def change(self, program: Program) -> Program:
        return self.regraph(program, op_name=("op",) * program.graph.n)


class DanglingEdge(Right):
    """An operation reads a tensor that no operation writes."""

    def change(self, program: Program) -> Program:
        return self.regraph(program, input_tensor=np.where(program.graph.input_tensor == Z, 99, Z).astype(np.int32))


class Cyclic(Right):
    """The first kernel reads the output of the last one, which depends on the first."""

    def change(self, program: Program) -> Program:
        graph = program.graph
        return self.regraph(program, input_tensor=np.where(graph.input_tensor == X, LOSS, graph.input_tensor))


class NegativeWork(Right):
    """An operation of unknown work has -1 flops."""

    def change(self, program: Program) -> Program:
        return self.regraph(program, flops=program.graph.flops - 1)


class UnknownPhase(Right):
    """The phase of the operations is a number without a meaning."""

    def change(self, program: Program) -> Program:
        return self.regraph(program, phase=np.full(program.graph.n, 9, np.uint8))


class CountsItsLoads(Right):
    """The names of operations contain a counter that continues from one `load` to the next."""

    counter = itertools.count()

    def change(self, program: Program) -> Program:
        number = next(self.counter)
        return self.regraph(program, op_name=tuple(f"{name}_{number}" for name in program.graph.op_name))


class SortsNothing(Right):
    """A name is taken from a set of strings, which has another order in every process."""

    def change(self, program: Program) -> Program:
        first = "_".join({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"})
        return self.regraph(program, op_name=(first, *program.graph.op_name[1:]))


class TupleAttribute(Right):
    """An attribute of the graph is a tuple, which JSON turns into a list."""

    def change(self, program: Program) -> Program:
        return self.regraph(program, attributes={"batch": (4, 4)})


class CostsOfAnotherGraph(Right):
    """The costs have too few rows."""

    def change(self, program: Program) -> Program:
        return replace(program, costs=CostTable(("gpu",), np.zeros((2, 1)), np.zeros((2, 1), np.bool_)))


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


def executing(execution: type[Execution]) -> type[Right]:
    """The importer whose programs are run by `execution`, with the docstring of that."""
    return type(execution.__name__, (Right,), {"execution": execution, "__doc__": execution.__doc__})


class ForgetsTheInput(Execution):
    """`initial` has the parameters, and no value for the input."""

    def initial(self, seed: int | None = None) -> dict[int, Any]:
        return {W: np.arange(4.0)}


class HandsOutItsOwn(Execution):
    """`initial` gives the same arrays each time, not copies."""

    values = Execution("").initial()

    def initial(self, seed: int | None = None) -> dict[int, Any]:
        return dict(self.values)


class ViewOfAView(Execution):
    """`views` leads to a tensor that is a view itself."""

    views: Mapping[int, int] = {HEAD: Y, Y: X}


class UpdatesTheWrongWay(Execution):
    """`updates` leads from new tensors to old ones."""

    updates: Mapping[int, int] = {NEW: W}


class ResultOfNothing(Execution):
    """`results` names a tensor that `result` does not find."""

    results: Mapping[str, int] = {"loss": LOSS, "accuracy": Z}

    def result(self, name: str, values: Mapping[int, Any]) -> Any:
        return {"loss": values[LOSS]}[name]


class RandomInput(Execution):
    """`random_ops` names a source."""

    random_ops = frozenset({0, NOISE})


class HidesItsNoise(Execution):
    """An operation draws random numbers, but is not in `random_ops`."""

    random_ops = frozenset()


class SinglePrecision(Execution):
    """Computes with 4 bytes per number, where the graph says 8."""

    def compute(self, op: int, values: Mapping[int, Any], step: int) -> tuple[int, Any]:
        tensor, value = super().compute(op, values, step)
        return tensor, value.astype(np.float32)


class UpdatesInPlace(Execution):
    """The update writes into the parameter that it is given."""

    def compute(self, op: int, values: Mapping[int, Any], step: int) -> tuple[int, Any]:
        if op == UPDATE:
            values[W].__isub__(values[Y])
            return NEW, values[W]
        return super().compute(op, values, step)


class KeepsEverything(Execution):
    """`keep` is ignored: a run returns everything that it computes."""

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, Any]]:
        return super().compile(ops, device)


class OneGenerator(Execution):
    """Random operations draw from one generator per compiled function, not by step and operation."""

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, Any]]:
        run = super().compile(ops, device, keep)
        return lambda values, step=0: run(values, step * 1000 + len(ops))


class WrongView(Execution):
    """`view` makes another part of the base than the kernels read."""

    def view(self, tensor: int) -> Callable[[Any], Any]:
        return lambda base: base[2:]

    def head(self, values: Mapping[int, Any]) -> Any:
        return values[HEAD] if HEAD in values else values[Y][:2]


class RecipeOfAnother(Execution):
    """The recipe names options from which another graph is loaded."""

    def __init__(self, path: str) -> None:
        b = GraphBuilder("other")
        b.add("op")
        super().__init__(str(save_graph(b.build(), Path(path).with_name("other.graph.npz"))))


WRONG: dict[str, type[Importer]] = {
    "check_claims_what_it_is": Unrunnable,
    "check_loads_a_program": LoadsNothing,
    "check_operation_names_are_unique": OneNameForAll,
    "check_edges_connect_operations": DanglingEdge,
    "check_graphs_are_acyclic": Cyclic,
    "check_amounts_are_not_negative": NegativeWork,
    "check_graphs_are_valid": UnknownPhase,
    "check_loading_twice_gives_the_same": CountsItsLoads,
    "check_other_processes_give_the_same": SortsNothing,
    "check_graphs_survive_a_file": TupleAttribute,
    "check_programs_can_be_placed": CostsOfAnotherGraph,
    "check_loading_changes_no_option": WritesIntoItsOptions,
    "check_a_missing_file_is_an_error": OpensAnything,
    "check_a_damaged_file_is_an_error": SaysTooLittle,
    "check_own_files_are_detected": ReadsOtherFiles,
    "check_initial_values_are_those_of_the_sources": executing(ForgetsTheInput),
    "check_initial_values_are_own_copies": executing(HandsOutItsOwn),
    "check_views_have_a_base": executing(ViewOfAView),
    "check_updates_renew_sources": executing(UpdatesTheWrongWay),
    "check_results_can_be_read": executing(ResultOfNothing),
    "check_random_operations_are_kernels": executing(RandomInput),
    "check_steps_differ_by_random_operations": executing(HidesItsNoise),
    "check_values_have_their_bytes": executing(SinglePrecision),
    "check_running_leaves_values_alone": executing(UpdatesInPlace),
    "check_running_keeps_what_is_asked_for": executing(KeepsEverything),
    "check_fused_kernels_equal_single_ones": executing(OneGenerator),
    "check_a_view_stands_for_its_base": executing(WrongView),
    "check_recipe_rebuilds_the_program": executing(RecipeOfAnother),
}
SAYS = {
    "check_claims_what_it_is": "set `executable` in the test's class",
    "check_loads_a_program": "load gave no program",
    "check_operation_names_are_unique": "'op' occurs twice",
    "check_edges_connect_operations": "an edge leads to 99, outside 0..6",
    "check_graphs_are_acyclic": "'scale' is on a cycle, or after one",
    "check_amounts_are_not_negative": "flops is negative or not finite",
    "check_graphs_are_valid": "GraphError: phase of graph 'step' is outside",
    "check_loading_twice_gives_the_same": "another fingerprint",
    "check_other_processes_give_the_same": "another program in another process",
    "check_graphs_survive_a_file": "the file has other attributes",
    "check_programs_can_be_placed": "PlacekitError: the costs of 'step' have op_s of shape (2, 1)",
    "check_loading_changes_no_option": "after loading",
    "check_a_missing_file_is_an_error": "FileNotFoundError",
    "check_a_damaged_file_is_an_error": "the error does not name the file: cannot read the graph",
    "check_own_files_are_detected": "`detect` says that step.graph.npz is no file of 'file'",
    "check_initial_values_are_those_of_the_sources": "missing {1}, too many set()",
    "check_initial_values_are_own_copies": "two calls of `initial` share memory",
    "check_views_have_a_base": "3 is a view of the view 2",
    "check_updates_renew_sources": "6 is renewed, and no source has it",
    "check_results_can_be_read": "KeyError: 'accuracy'",
    "check_random_operations_are_kernels": "random operation 0 is no kernel",
    "check_steps_differ_by_random_operations": "'loss' differs, and nothing is random",
    "check_values_have_their_bytes": "tensor 2 has 16 bytes, not 32",
    "check_running_leaves_values_alone": "running changed its inputs",
    "check_running_keeps_what_is_asked_for": "gives the tensors [2, 4, 5, 6], asked for [2, 5, 6]",
    "check_fused_kernels_equal_single_ones": "other bits of 'loss' in step 0",
    "check_a_view_stands_for_its_base": "other bits of 'loss'",
    "check_recipe_rebuilds_the_program": "makes another graph",
}
"""What the check must say of it."""


@pytest.fixture(autouse=True)
def right_importer_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importer `file`, which the recipes name, is the right one of this file."""
    monkeypatch.setattr(builtin, "FileImporter", Right)


def made(importer: type[Importer], folder: Path) -> Callable[..., Importer]:
    return partial(importer, path=str(save_graph(a_step(), folder / "step.graph.npz")))


def test_each_check_has_its_wrong_importer() -> None:
    assert list(WRONG) == list(SAYS) == CHECKS


def test_passes_for_a_right_importer(tmp_path: Path) -> None:
    for name in CHECKS:
        run_check(Claims, name, made(Right, tmp_path), tmp_path)


def test_catches_the_wrong_importer(tmp_path: Path) -> None:
    for name in WRONG:
        fails(Claims, name, made(WRONG[name], tmp_path), tmp_path, SAYS[name])


def test_programs_that_are_too_large_are_not_run() -> None:
    class Large(ImporterContract):
        executes = False

    checks = checks_of(ImporterContract)
    assert not is_claimed(Large, checks["check_fused_kernels_equal_single_ones"])
    assert is_claimed(Large, checks["check_claims_what_it_is"])
