"""The contract of importers: valid graphs, the same each time, and executables whose tensors match the graph.

The contract does not check that an executable computes the right numbers: only its importer knows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
    installed,
    load_graph,
    save_graph,
    validate_graph,
)
from placekit_core.run.detection import HEAD_BYTES
from placekit_testing.children import digest, in_children
from placekit_testing.contract import Contract, Make, in_short, together
from placekit_testing.strategies import machine

_last: dict[tuple[type, str], tuple[Importer, list[Program]]] = {}  # the last importer only: loading may take seconds


class ImporterContract(Contract):
    """The checks of an importer. `make` should build its smallest program; it is loaded three times, and executed.

    Checks of files run for importers whose component names endings of files, checks of executables for programs that have one.
    """

    kind = "importer"
    interface = Importer

    @in_short
    def check_graphs_are_valid(self, make: Make) -> None:
        """`load` gives at least one program; their graphs keep all rules of `Graph`, and problems can be made from them."""
        programs = _loaded(make)[1]
        assert isinstance(programs, list), f"load returned {type(programs).__name__}, not a list"
        assert programs, "load returned no program"
        for program in programs:
            assert isinstance(program, Program), "load returned something other than programs"
            validate_graph(program.graph.replace())  # a copy, without the values that the graph has cached
            kinds = program.costs.kinds if program.costs is not None else ("cpu", "gpu")
            problem = Problem.of(program.graph, program.cluster or machine(kinds), costs=program.costs)
            assert problem.grouped.n == problem.g

    def check_graphs_survive_a_file(self, make: Make, tmp_path: Path) -> None:
        """A graph that is written to a graph file and read again has the same name, attributes and fingerprint."""
        for graph in _graphs(make):
            again = load_graph(save_graph(graph, tmp_path / "graph.graph.npz"))
            assert again.name == graph.name
            assert again.attributes == graph.attributes, f"{graph.name}: the file has other attributes"
            assert again.fingerprint == graph.fingerprint

    @in_short
    def check_loading_twice_gives_the_same(self, make: Make) -> None:
        """Another importer with the same options loads the same graphs, in the same order; loading changes no option."""
        importer, first = _loaded(make)
        again = make().load()
        assert [p.graph.name for p in again] == [p.graph.name for p in first]
        assert [p.graph.fingerprint for p in again] == [p.graph.fingerprint for p in first], "another fingerprint"
        assert [p.split for p in again] == [p.split for p in first]
        before, after = make().options.model_dump_json(), importer.options.model_dump_json()
        assert after == before, f"the options are {after} after loading"

    def check_other_processes_give_the_same(self, make: Make) -> None:
        """A new process, in which sets of strings are ordered differently, loads the same graphs and initial values."""
        importer, programs = _loaded(make)
        other = 2 if os.environ.get("PYTHONHASHSEED") == "1" else 1
        found = in_children(importer, loaded_digest, hash_seeds=[other])
        assert found == [programs_digest(programs)], "another program in another process"

    def check_files_that_cannot_be_read_are_errors(self, make: Make, tmp_path: Path) -> None:
        """If it reads files: a missing or empty file, and one of random bytes, is a PlacekitError that names the file."""
        files = _described(make).files
        if not files:
            pytest.skip("this importer reads no files")
        for ending in files:
            path = tmp_path / f"wrong{ending}"
            for content in (None, np.random.default_rng(0).bytes(1000), b""):
                if content is not None:
                    path.write_bytes(content)
                with pytest.raises(PlacekitError) as error:
                    make(path=str(path)).load()
                assert path.name in str(error.value), f"the error does not name the file: {error.value}"

    def check_own_files_are_detected(self, make: Make) -> None:
        """If its component has `detect`, it says yes to the file that `make` reads, and no to an empty and a random one."""
        importer, detect = make(), _described(make).detect
        if detect is None:
            pytest.skip("this importer detects no files")
        path = Path(importer.options.path)
        with path.open("rb") as file:
            assert detect(file.read(HEAD_BYTES)), f"`detect` refuses {path.name}, which {importer.name!r} reads"
        for head in (b"", np.random.default_rng(0).bytes(HEAD_BYTES)):
            assert not detect(head), f"`detect` takes {head[:8]!r}... for a file of {importer.name!r}"

    def check_initial_values(self, make: Make) -> None:
        """`initial` has a value for each source tensor that is not a view; calls give the same bits, and share no memory."""
        for graph, executable in _executables(make):
            wanted = _source_tensors(graph) - executable.views.keys()
            first, second = executable.initial(), executable.initial()
            found = first.keys()
            assert found == wanted, f"{graph.name}: missing {wanted - found}, too many {found - wanted}"
            before = _all_bits(second)
            assert not _differ(_all_bits(first), before), f"{graph.name}: the initial values differ from call to call"
            for value in first.values():
                value[...] = 1
            assert not _differ(_all_bits(second), before), f"{graph.name}: two calls of `initial` share memory"
            third = _all_bits(executable.initial())
            assert not _differ(third, before), f"{graph.name}: `initial` returns its own tensors, not copies"

    @in_short
    def check_tensors_exist(self, make: Make) -> None:
        """`views` maps tensors to bases, `updates` those of sources to those of kernels; `results` and `random_ops` exist."""
        for graph, executable in _executables(make):
            for tensor, base in executable.views.items():
                assert 0 <= tensor < graph.t, f"{graph.name}: view {tensor} is not a tensor"
                assert 0 <= base < graph.t, f"{graph.name}: tensor {tensor} is a view of {base}, which does not exist"
                assert base not in executable.views, f"{graph.name}: {tensor} is a view of the view {base}"
            for old, new in executable.updates.items():
                assert old in _source_tensors(graph), (
                    f"{graph.name}: {old} is updated, but is not the tensor of a source"
                )
                assert 0 <= new < graph.t, f"{graph.name}: {old} is updated by {new}, which is not a tensor"
                assert graph.kernel[graph.tensor_producer[new]], f"{graph.name}: no kernel writes {new}"
            for name, tensor in executable.results.items():
                assert 0 <= tensor < graph.t, f"{graph.name}: result {name!r} is tensor {tensor}, which does not exist"
            wrong = [v for v in executable.random_ops if not (0 <= v < graph.n and graph.kernel[v])]
            assert not wrong, f"{graph.name}: random operation {wrong[0]} is not a kernel"

    @in_short
    def check_values_have_their_bytes(self, make: Make) -> None:
        """Values that operations read or a step updates have the bytes in the graph's `tensor_bytes`; a view has its own."""
        for graph, executable in _executables(make):
            values, views = _run_one_by_one(graph, executable), executable.views
            for tensor in sorted({*graph.input_tensor.tolist(), *executable.updates.values()}):
                base, expected = views.get(tensor, tensor), int(graph.tensor_bytes[tensor])
                value = executable.view(tensor)(values[base]) if tensor in views else values[base]
                assert value.nbytes == expected, (
                    f"{graph.name}: tensor {tensor} has {value.nbytes} bytes, not {expected}"
                )

    @in_short
    def check_running_changes_nothing_else(self, make: Make) -> None:
        """A compiled function returns the tensors in `keep`, changes no input, and gives the same bits when it runs again."""
        for graph, executable in _executables(make):
            keep, values = _kept(graph, executable), executable.initial()
            run, before = executable.compile(_kernels(graph), keep=keep), _all_bits(values)
            made = _all_bits(run(values))
            assert made.keys() == keep, f"{graph.name}: gives the tensors {sorted(made)}, asked for {sorted(keep)}"
            assert not _differ(_all_bits(values), before), f"{graph.name}: running changed its inputs"
            assert not _differ(_all_bits(run(values)), made), f"{graph.name}: the second run gives other bits"

    @in_short
    def check_fused_kernels_equal_single_ones(self, make: Make) -> None:
        """All kernels in one function give the bits of one function per kernel; steps differ only by `random_ops`."""
        for graph, executable in _executables(make):
            fused = [_outcome(executable, _run_fused(graph, executable, step)) for step in (0, 3)]
            for step, outcome in zip((0, 3), fused, strict=True):
                wrong = _differ(outcome, _outcome(executable, _run_one_by_one(graph, executable, step)))
                assert not wrong, f"{graph.name}: other bits of {wrong[0]!r} in step {step}"
            differ = _differ(*fused)
            assert executable.random_ops or not differ, f"{graph.name}: {differ[0]!r} differs, and nothing is random"

    def check_a_view_stands_for_its_base(self, make: Make) -> None:
        """Kernels give the same bits from the views that they read, made by `view`, as from the bases."""
        for graph, executable in _executables(make):
            from_bases = _outcome(executable, _run_one_by_one(graph, executable))
            wrong = _differ(_outcome(executable, _run_one_by_one(graph, executable, views=True)), from_bases)
            assert not wrong, f"{graph.name}: other bits of {wrong[0]!r}"

    @in_short
    def check_recipe_rebuilds_the_program(self, make: Make) -> None:
        """If there is a recipe, its importer and options load a program with the same fingerprint and initial values."""
        found = [(g, e) for g, e in _executables(make) if e.recipe]
        if not found:
            pytest.skip("no program has a recipe")
        for graph, executable in found:
            recipe = executable.recipe
            entry = installed().get("importer", recipe["importer"])
            programs = entry.build(entry.component.config.model_validate(recipe["options"])).load()
            again = {p.graph.fingerprint: p.executable for p in programs}
            assert graph.fingerprint in again, f"{graph.name}: {recipe} makes another graph"
            rebuilt = again[graph.fingerprint]
            assert rebuilt is not None, f"{graph.name}: the program of {recipe} cannot be run"
            before = _all_bits(executable.initial())
            assert not _differ(_all_bits(rebuilt.initial()), before), f"{graph.name}: {recipe} has other initial values"

    test_programs = together(
        "Programs are well formed, can be placed, and depend only on the options.",
        check_graphs_are_valid,
        check_graphs_survive_a_file,
        check_loading_twice_gives_the_same,
        check_other_processes_give_the_same,
    )
    test_files = together(
        "Files of its format are detected, and damaged ones are refused.",
        check_files_that_cannot_be_read_are_errors,
        check_own_files_are_detected,
    )
    test_execution = together(
        "Executables agree with their graphs, and give the same values however kernels are run.",
        check_initial_values,
        check_tensors_exist,
        check_values_have_their_bytes,
        check_running_changes_nothing_else,
        check_fused_kernels_equal_single_ones,
        check_a_view_stands_for_its_base,
        check_recipe_rebuilds_the_program,
    )


def _described(make: Make) -> ImporterComponent:
    """The description of the importer that `make` builds."""
    component = installed().get("importer", make().name).component
    assert isinstance(component, ImporterComponent)
    return component


def _executables(make: Make) -> Iterator[tuple[Graph, Executable]]:
    """Graphs and executables of the programs that have one; skips the check if there are none."""
    found = [(p.graph, p.executable) for p in _loaded(make)[1] if p.executable is not None]
    if not found:
        pytest.skip("no program can be executed")
    return iter(found)


def _loaded(make: Make) -> tuple[Importer, list[Program]]:
    """The importer and its programs, kept until another one is asked for."""
    importer = make()
    key = type(importer), importer.options.model_dump_json()
    if key not in _last:
        programs = importer.load()
        _last.clear()
        _last[key] = importer, programs
    return _last[key]


def programs_digest(programs: Sequence[Program]) -> str:
    """A digest of graphs, splits and initial values."""
    parts: list[Any] = []
    for p in programs:
        parts += [p.graph.name, p.graph.fingerprint, p.split]
        if p.executable is not None:
            parts += sorted(_all_bits(p.executable.initial()).items())
    return digest(parts)


def loaded_digest(importer: Importer) -> str:
    """The same digest for the programs that an importer loads."""
    return programs_digest(importer.load())


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
