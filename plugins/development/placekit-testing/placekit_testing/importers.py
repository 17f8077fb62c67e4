"""The contract of importers: valid graphs, the same each time, and executables whose tensors match the graph.

The contract does not check that an executable computes the right numbers: only its importer knows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from placekit_core import (
    Executable,
    Graph,
    Importer,
    ImporterComponent,
    PlacekitError,
    Problem,
    Program,
    load_graph,
    save_graph,
    validate_graph,
)
from placekit_core.run.detection import HEAD_BYTES
from placekit_testing.children import digest, in_children
from placekit_testing.contract import Contract, Make, entry_of, in_short, needs, together
from placekit_testing.strategies import machine

_last: dict[tuple[type, str], tuple[Importer, list[Program]]] = {}  # the last importer only: loading may take seconds


def described(make: Make) -> ImporterComponent:
    """The description of the importer that `make` builds."""
    component = entry_of("importer", make().name).component
    assert isinstance(component, ImporterComponent)
    return component


class ImporterContract(Contract, defines_checks=True):
    """The checks of an importer. `make` should build its smallest program; it is loaded three times, and executed."""

    kind = "importer"
    interface = Importer
    reads_files: ClassVar[bool] = False
    """It reads files with the endings that its component names."""
    detects: ClassVar[bool] = False
    """Its component has `detect`, which recognises its files."""
    executable: ClassVar[bool] = True
    """Its programs have an executable."""
    executes: ClassVar[bool] = True
    """The executables are run; False if the smallest program is too large for a test."""

    def check_claims_what_it_is(self, make: Make) -> None:
        """`reads_files`, `detects` and `executable` agree with the component and its programs."""
        component = described(make)
        assert bool(component.files) == self.reads_files, "set `reads_files` in the test's class"
        assert (component.detect is not None) == self.detects, "set `detects` in the test's class"
        found = any(p.executable is not None for p in _loaded(make)[1])
        assert found == self.executable, "set `executable` in the test's class"

    def check_loads_a_program(self, make: Make) -> None:
        """`load` returns a list of at least one program."""
        programs = _loaded(make)[1]
        assert isinstance(programs, list), f"load gave {type(programs).__name__}, not a list"
        assert programs, "load gave no program"
        assert all(isinstance(p, Program) for p in programs), "load gave something else than programs"

    def check_operation_names_are_unique(self, make: Make) -> None:
        """No two operations of a graph have the same name."""
        for graph in _graphs(make):
            names, counts = np.unique(np.asarray(graph.op_name), return_counts=True)
            assert np.all(counts == 1), f"{graph.name}: {str(names[counts > 1][0])!r} occurs twice"

    def check_edges_connect_operations(self, make: Make) -> None:
        """Every tensor is written by an operation that exists, and every operation reads tensors that exist."""
        for graph in _graphs(make):
            for column, top in ((graph.tensor_producer, graph.n), (graph.input_tensor, graph.t)):
                outside = column[(column < 0) | (column >= top)]
                assert not len(outside), f"{graph.name}: an edge leads to {outside[0]}, outside 0..{top - 1}"

    def check_graphs_are_acyclic(self, make: Make) -> None:
        """No operation waits for itself."""
        for graph in _graphs(make):
            waits = np.diff(graph.input_ptr)
            free = np.flatnonzero(waits == 0).tolist()
            order = list(free)
            readers: list[list[int]] = [[] for _ in range(graph.n)]
            for v, t in zip(graph.edge_op.tolist(), graph.input_tensor.tolist(), strict=True):
                readers[int(graph.tensor_producer[t])].append(v)
            for u in order:
                for v in readers[u]:
                    waits[v] -= 1
                    if waits[v] == 0:
                        order.append(v)
            stuck = np.flatnonzero(waits > 0)
            assert not len(stuck), f"{graph.name}: {graph.op_name[stuck[0]]!r} is on a cycle, or after one"

    def check_amounts_are_not_negative(self, make: Make) -> None:
        """Operations, bytes and sizes are finite and not negative."""
        for graph in _graphs(make):
            for key in ("flops", "bytes_accessed", "persistent_bytes", "tensor_bytes"):
                column = getattr(graph, key)
                assert np.all(np.isfinite(column) & (column >= 0)), f"{graph.name}: {key} is negative or not finite"

    @in_short
    def check_graphs_are_valid(self, make: Make) -> None:
        """All other rules of `Graph` hold, too: sources read nothing, only co-located operations share memory, ..."""
        for graph in _graphs(make):
            validate_graph(graph.replace())  # a copy, without the values that the graph has cached

    @in_short
    def check_loading_twice_gives_the_same(self, make: Make) -> None:
        """Another importer with the same options loads the same graphs, in the same order."""
        first, again = _loaded(make)[1], make().load()
        assert [p.graph.name for p in again] == [p.graph.name for p in first]
        assert [p.graph.fingerprint for p in again] == [p.graph.fingerprint for p in first], "another fingerprint"
        assert [p.split for p in again] == [p.split for p in first]

    def check_other_processes_give_the_same(self, make: Make) -> None:
        """A new process, in which sets of strings are ordered differently, loads the same graphs and initial values."""
        importer, programs = _loaded(make)
        other = 2 if os.environ.get("PYTHONHASHSEED") == "1" else 1
        found = in_children(importer, loaded_digest, self.executes, hash_seeds=[other])
        assert found == [programs_digest(programs, self.executes)], "another program in another process"

    def check_graphs_survive_a_file(self, make: Make, tmp_path: Path) -> None:
        """A graph that is written to a graph file and read again has the same name, attributes and fingerprint."""
        for graph in _graphs(make):
            again = load_graph(save_graph(graph, tmp_path / "graph.graph.npz"))
            assert again.name == graph.name
            assert again.attributes == graph.attributes, f"{graph.name}: the file has other attributes"
            assert again.fingerprint == graph.fingerprint

    @in_short
    def check_programs_can_be_placed(self, make: Make) -> None:
        """A problem can be made from each program, with the program's own costs and machine if it has them."""
        for program in _loaded(make)[1]:
            kinds = program.costs.kinds if program.costs is not None else ("cpu", "gpu")
            problem = Problem.of(program.graph, program.cluster or machine(kinds), costs=program.costs)
            assert problem.grouped.n == problem.g

    def check_loading_changes_no_option(self, make: Make) -> None:
        """`load` does not change the options, because a run writes its configuration from them."""
        before, after = make().options.model_dump_json(), _loaded(make)[0].options.model_dump_json()
        assert after == before, f"the options are {after} after loading"

    @needs("reads_files")
    def check_a_missing_file_is_an_error(self, make: Make, tmp_path: Path) -> None:
        """For importers that read files: a `path` that does not exist is a PlacekitError that names it."""
        for ending in self._files(make):
            path = tmp_path / f"missing{ending}"
            with pytest.raises(PlacekitError) as error:
                make(path=str(path)).load()
            assert path.name in str(error.value), f"the error does not name the file: {error.value}"

    @needs("reads_files")
    def check_a_damaged_file_is_an_error(self, make: Make, tmp_path: Path) -> None:
        """For importers that read files: an empty file, or one of random bytes, is a PlacekitError that names the file."""
        for ending in self._files(make):
            path = tmp_path / f"damaged{ending}"
            for content in (np.random.default_rng(0).bytes(1000), b""):
                path.write_bytes(content)
                with pytest.raises(PlacekitError) as error:
                    make(path=str(path)).load()
                assert path.name in str(error.value), f"the error does not name the file: {error.value}"

    @needs("detects")
    def check_own_files_are_detected(self, make: Make) -> None:
        """Its `detect` says yes to the file that `make` reads, and no to an empty and a random one."""
        importer = make()
        detect = described(make).detect
        path = getattr(importer.options, "path", "")
        assert detect is not None
        assert path, "`make` reads no file, so that there is none to be detected"
        with Path(path).open("rb") as file:
            assert detect(file.read(HEAD_BYTES)), (
                f"`detect` says that {Path(path).name} is no file of {importer.name!r}"
            )
        for head in (b"", np.random.default_rng(0).bytes(HEAD_BYTES)):
            assert not detect(head), f"`detect` takes {head[:8]!r}... for a file of {importer.name!r}"

    @needs("executable", "executes")
    def check_initial_values_are_those_of_the_sources(self, make: Make) -> None:
        """`initial` has a value for every source tensor that is no view, and for nothing else."""
        for graph, executable in self._executables(make):
            wanted = _source_tensors(graph) - executable.views.keys()
            found = executable.initial().keys()
            assert found == wanted, f"{graph.name}: missing {wanted - found}, too many {found - wanted}"

    @needs("executable", "executes")
    def check_initial_values_are_own_copies(self, make: Make) -> None:
        """Two calls of `initial` give the same bits; overwriting the values of one does not change those of the other."""
        for graph, executable in self._executables(make):
            first, second = executable.initial(), executable.initial()
            before = _all_bits(second)
            assert not _differ(_all_bits(first), before), f"{graph.name}: the initial values differ from call to call"
            for value in first.values():
                value[...] = 1
            assert not _differ(_all_bits(second), before), f"{graph.name}: two calls of `initial` share memory"
            third = _all_bits(executable.initial())
            assert not _differ(third, before), f"{graph.name}: `initial` gives its own originals away"

    @needs("executable", "executes")
    def check_views_have_a_base(self, make: Make) -> None:
        """`views` maps existing tensors to existing tensors that are no views themselves."""
        for graph, executable in self._executables(make):
            for tensor, base in executable.views.items():
                assert 0 <= tensor < graph.t, f"{graph.name}: view {tensor} is no tensor"
                assert 0 <= base < graph.t, f"{graph.name}: tensor {tensor} is a view of {base}, which is none"
                assert base not in executable.views, f"{graph.name}: {tensor} is a view of the view {base}"

    @needs("executable", "executes")
    @in_short
    def check_updates_renew_sources(self, make: Make) -> None:
        """`updates` maps tensors of sources to tensors that kernels write."""
        for graph, executable in self._executables(make):
            for old, new in executable.updates.items():
                assert old in _source_tensors(graph), f"{graph.name}: {old} is renewed, and no source has it"
                assert 0 <= new < graph.t, f"{graph.name}: {old} is renewed by {new}, which is no tensor"
                assert graph.kernel[graph.tensor_producer[new]], f"{graph.name}: no kernel writes {new}"

    @needs("executable", "executes")
    @in_short
    def check_results_can_be_read(self, make: Make) -> None:
        """`results` names existing tensors, and `result` makes each result from the tensors that a run keeps."""
        for graph, executable in self._executables(make):
            for name, tensor in executable.results.items():
                assert 0 <= tensor < graph.t, f"{graph.name}: result {name!r} is tensor {tensor}, which does not exist"
            values = _run_fused(graph, executable)
            for name in executable.results:
                _bits(executable.result(name, values))

    @needs("executable", "executes")
    def check_random_operations_are_kernels(self, make: Make) -> None:
        """`random_ops` are kernels of the graph."""
        for graph, executable in self._executables(make):
            wrong = [v for v in executable.random_ops if not (0 <= v < graph.n and graph.kernel[v])]
            assert not wrong, f"{graph.name}: random operation {wrong[0]} is no kernel"

    @needs("executable", "executes")
    @in_short
    def check_steps_differ_by_random_operations(self, make: Make) -> None:
        """If two steps from the same values have different results, `random_ops` names the random operations."""
        for graph, executable in self._executables(make):
            first, later = (_outcome(executable, _run_fused(graph, executable, step)) for step in (0, 3))
            differ = _differ(first, later)
            assert executable.random_ops or not differ, f"{graph.name}: {differ[0]!r} differs, and nothing is random"

    @needs("executable", "executes")
    @in_short
    def check_values_have_their_bytes(self, make: Make) -> None:
        """Values that operations read or a step updates have the bytes in the graph's `tensor_bytes`; a view has its own."""
        for graph, executable in self._executables(make):
            values, views = _run_one_by_one(graph, executable), executable.views
            for tensor in sorted({*graph.input_tensor.tolist(), *executable.updates.values()}):
                base, expected = views.get(tensor, tensor), int(graph.tensor_bytes[tensor])
                value = executable.view(tensor)(values[base]) if tensor in views else values[base]
                assert value.nbytes == expected, (
                    f"{graph.name}: tensor {tensor} has {value.nbytes} bytes, not {expected}"
                )

    @needs("executable", "executes")
    def check_running_leaves_values_alone(self, make: Make) -> None:
        """A compiled function changes none of its inputs, and gives the same bits when it runs again."""
        for graph, executable in self._executables(make):
            values, run = executable.initial(), executable.compile(_kernels(graph), keep=_kept(graph, executable))
            before = _all_bits(values)
            made = _all_bits(run(values))
            assert not _differ(_all_bits(values), before), f"{graph.name}: running changed its inputs"
            assert not _differ(_all_bits(run(values)), made), f"{graph.name}: the second run gives other bits"

    @needs("executable", "executes")
    @in_short
    def check_running_keeps_what_is_asked_for(self, make: Make) -> None:
        """A function compiled with `keep` returns the tensors in `keep`, and no others."""
        for graph, executable in self._executables(make):
            keep = _kept(graph, executable)
            found = executable.compile(_kernels(graph), keep=keep)(executable.initial()).keys()
            assert found == keep, f"{graph.name}: gives the tensors {sorted(found)}, asked for {sorted(keep)}"

    @needs("executable", "executes")
    @in_short
    def check_fused_kernels_equal_single_ones(self, make: Make) -> None:
        """All kernels in one function give the same bits as one function per kernel, also in a later step."""
        for graph, executable in self._executables(make):
            for step in (0, 3):
                single = _outcome(executable, _run_one_by_one(graph, executable, step))
                wrong = _differ(_outcome(executable, _run_fused(graph, executable, step)), single)
                assert not wrong, f"{graph.name}: other bits of {wrong[0]!r} in step {step}"

    @needs("executable", "executes")
    def check_a_view_stands_for_its_base(self, make: Make) -> None:
        """Kernels give the same bits from the views that they read, made by `view`, as from the bases."""
        for graph, executable in self._executables(make):
            from_bases = _outcome(executable, _run_one_by_one(graph, executable))
            wrong = _differ(_outcome(executable, _run_one_by_one(graph, executable, views=True)), from_bases)
            assert not wrong, f"{graph.name}: other bits of {wrong[0]!r}"

    @needs("executable", "executes")
    @in_short
    def check_recipe_rebuilds_the_program(self, make: Make) -> None:
        """If there is a recipe, its importer and options load a program with the same fingerprint and initial values."""
        found = [(g, e) for g, e in self._executables(make) if e.recipe]
        if not found:
            pytest.skip("no program has a recipe")
        for graph, executable in found:
            recipe = executable.recipe
            entry = entry_of("importer", recipe["importer"])
            programs = entry.build(entry.component.config.model_validate(recipe["options"])).load()
            again = {p.graph.fingerprint: p.executable for p in programs}
            assert graph.fingerprint in again, f"{graph.name}: {recipe} makes another graph"
            rebuilt = again[graph.fingerprint]
            assert rebuilt is not None, f"{graph.name}: what {recipe} makes cannot be run"
            before = _all_bits(executable.initial())
            assert not _differ(_all_bits(rebuilt.initial()), before), f"{graph.name}: {recipe} has other initial values"

    def _files(self, make: Make) -> tuple[str, ...]:
        files = described(make).files
        assert files, "this importer reads no files"
        return files

    def _executables(self, make: Make) -> Iterator[tuple[Graph, Executable]]:
        found = [(p.graph, p.executable) for p in _loaded(make)[1] if p.executable is not None]
        assert found, "no program can be executed"
        return iter(found)

    test_programs = together(
        "Programs are well formed, and can be placed.",
        check_claims_what_it_is,
        check_loads_a_program,
        check_operation_names_are_unique,
        check_edges_connect_operations,
        check_graphs_are_acyclic,
        check_amounts_are_not_negative,
        check_graphs_are_valid,
        check_graphs_survive_a_file,
        check_programs_can_be_placed,
    )
    test_same_programs = together(
        "Programs depend only on the options.",
        check_loading_twice_gives_the_same,
        check_other_processes_give_the_same,
        check_loading_changes_no_option,
    )
    test_files = together(
        "Files of its format are detected, and damaged ones are refused.",
        check_a_missing_file_is_an_error,
        check_a_damaged_file_is_an_error,
        check_own_files_are_detected,
    )
    test_values = together(
        "Values of an executable are those that the graph describes.",
        check_initial_values_are_those_of_the_sources,
        check_initial_values_are_own_copies,
        check_views_have_a_base,
        check_updates_renew_sources,
        check_results_can_be_read,
        check_random_operations_are_kernels,
        check_steps_differ_by_random_operations,
        check_values_have_their_bytes,
    )
    test_execution = together(
        "Kernels give the same values however they are run.",
        check_running_leaves_values_alone,
        check_running_keeps_what_is_asked_for,
        check_fused_kernels_equal_single_ones,
        check_a_view_stands_for_its_base,
        check_recipe_rebuilds_the_program,
    )


def _loaded(make: Make) -> tuple[Importer, list[Program]]:
    """The importer and its programs, kept until another one is asked for."""
    importer = make()
    key = type(importer), importer.options.model_dump_json()
    if key not in _last:
        programs = importer.load()
        _last.clear()
        _last[key] = importer, programs
    return _last[key]


def programs_digest(programs: Sequence[Program], executes: bool) -> str:
    """A digest of graphs and splits, and with `executes` of the initial values."""
    parts: list[Any] = []
    for p in programs:
        parts += [p.graph.name, p.graph.fingerprint, p.split]
        if executes and p.executable is not None:
            parts += sorted(_all_bits(p.executable.initial()).items())
    return digest(parts)


def loaded_digest(importer: Importer, executes: bool) -> str:
    """The same digest for the programs that an importer loads."""
    return programs_digest(importer.load(), executes)


def _graphs(make: Make) -> list[Graph]:
    return [p.graph for p in _loaded(make)[1]]


def _kernels(graph: Graph) -> list[int]:
    """Kernels in an order in which they can run."""
    return [v for v in graph.topological_order.tolist() if graph.kernel[v]]


def _source_tensors(graph: Graph) -> set[int]:
    return set(np.flatnonzero(~graph.kernel[graph.tensor_producer]).tolist())


def _kept(graph: Graph, executable: Executable) -> set[int]:
    """Base tensors that kernels write and that stay after a step: new values of sources, and results."""
    made = {*executable.updates.values(), *executable.results.values()}
    return {executable.views.get(t, t) for t in made} - _source_tensors(graph)


def _run_fused(graph: Graph, executable: Executable, step: int = 0) -> dict[int, Any]:
    """Values of the sources, and the tensors kept by one function of all kernels."""
    values = executable.initial()
    return values | executable.compile(_kernels(graph), keep=_kept(graph, executable))(values, step)


def _run_one_by_one(graph: Graph, executable: Executable, step: int = 0, views: bool = False) -> dict[int, Any]:
    """All base tensors, each kernel compiled on its own; with `views`, kernels are given views instead of bases."""
    values = executable.initial()
    for op in _kernels(graph):
        given: dict[int, Any] = {}
        for tensor in graph.inputs(op).tolist():
            base = executable.views.get(tensor, tensor)
            if views and tensor in executable.views:
                given[tensor] = executable.view(tensor)(values[base])
            else:
                given[base] = values[base]
        values |= executable.compile([op])(given, step)
    return values


def _outcome(executable: Executable, values: Mapping[int, Any]) -> dict[Any, Any]:
    """Bits of the new values of sources, by tensor, and of the results, by name."""
    views = executable.views
    kept = {old: _bits(values[views.get(new, new)]) for old, new in executable.updates.items()}
    return kept | {name: _bits(executable.result(name, values)) for name in executable.results}


def _all_bits(values: Mapping[int, Any]) -> dict[int, Any]:
    return {tensor: _bits(value) for tensor, value in values.items()}


def _differ(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[Any]:
    """Keys of the values that differ; short enough for a message, unlike the bits."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def _bits(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bits of a tensor: a numpy array, a torch tensor, or anything that numpy can read."""
    to_numpy = partial(value.numpy, force=True) if hasattr(value, "detach") else partial(np.asarray, value)
    try:
        array = to_numpy()
    except TypeError:  # a type that numpy lacks (bfloat16): single precision holds it exactly
        array = value.float().numpy(force=True)
    return str(value.dtype), tuple(value.shape), array.tobytes()
