"""Importer `my_method`: the contract of importers, and what is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from placekit_my_method.my_method import MyMethod
from placekit_testing import ImporterContract

from placekit_core import ImporterError


class TestMyMethod(ImporterContract):
    @pytest.fixture
    def make(self) -> type[MyMethod]:
        return MyMethod


def test_the_example() -> None:
    [program] = MyMethod().load()
    graph = program.graph
    assert graph.name == "example"
    assert [graph.op_name[v] for v in range(graph.n) if not graph.kernel[v]] == ["image", "left.weight", "right.weight"]
    join = graph.op_name.index("join")
    assert [graph.op_name[graph.tensor_producer[t]] for t in graph.inputs(join)] == ["left", "right"]


@pytest.mark.parametrize("line", ["b,1,1,nobody", "b,many,1,a", "b,1,many,", "b,1,1e30,a", "b,-1,1,a", "b,1,1,a,a"])
def test_an_error_names_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "wrong.ops.csv"
    path.write_text(f"name,flops,output_bytes,inputs\na,0,1,\n{line}\n")
    with pytest.raises(ImporterError, match="line 3"):
        MyMethod(path=str(path)).load()
