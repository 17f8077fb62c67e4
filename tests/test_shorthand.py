"""Options that an importer takes without `importer.`: on the command line, in help, from Python."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from placekit_core import (
    ConfigError,
    GraphError,
    ImporterComponent,
    ImporterError,
    Options,
    Registry,
    installed,
    load_programs,
)
from placekit_core.cli.arguments import normalise
from placekit_core.cli.help import help_text
from placekit_core.run import api
from placekit_core.run.entries import Entry

SAMPLES = Path(__file__).parent.parent / "plugins" / "importers" / "placekit-formats" / "tests" / "samples"
JSON, TEXT = str(SAMPLES / "pair.json"), str(SAMPLES / "triangle.txt")


class NetOptions(Options):
    net: str = Field("", description="name of a net; null: none")
    way: Literal["there", "back"] = Field("there", description="direction")
    size: int = 1


NET = ImporterComponent("net", "a net by name", NetOptions, "nowhere:Net", shorthand=("net", "way"))


@pytest.fixture
def registry() -> Registry:
    """What is installed, and importer `net`."""
    entry = Entry("importer", NET, "other", "placekit-other", "0")
    return dataclasses.replace(installed(), entries={**installed().entries, ("importer", "net"): [entry]})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["net=hf:a/b-1.5"], ["importer=net", "++importer.net='hf:a/b-1.5'", "workload=none"]),
        (["+net=x", "way=back"], ["importer=net", "++importer.net='x'", "++importer.way=back", "workload=none"]),
        (["net=x", "importer=net"], ["importer=net", "++importer.net='x'", "workload=none"]),
        (["net='a b'"], ["importer=net", "++importer.net='a b'", "workload=none"]),
        (["net=hf:a,hf:b"], ["importer=net", "++importer.net='hf:a','hf:b'", "workload=none"]),
        (["net=choice(a,b)"], ["importer=net", "++importer.net=choice(a,b)", "workload=none"]),
        (["way=back", "importer=net"], ["importer=net", "++importer.way=back", "workload=none"]),
        (["way=back", "workload=x"], ["workload=x", "++importer.way=back"]),
        ([f"net={JSON}"], ["importer=json", f"++importer.path='{JSON}'", "workload=none"]),
        (["net=hf:x.json"], ["importer=net", "++importer.net='hf:x.json'", "workload=none"]),
    ],
)
def test_short_forms(given: list[str], expected: list[str], registry: Registry) -> None:
    assert normalise(given, registry) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["way=back"], "way=back needs net=\n  give net=NAME, or importer.way=back"),
        (["net=x", "importer=mlp"], "net=x and importer=mlp both say what to place"),
        (["net=x", "workload=mlp"], "net=x and workload=mlp both say"),
        ([f"net={JSON}", TEXT], "both say"),
        (["net"], "option 'net' has no value"),
    ],
)
def test_mistakes(given: list[str], message: str, registry: Registry) -> None:
    with pytest.raises(ConfigError, match=message):
        normalise(given, registry)


def test_a_file_that_is_not_there(registry: Registry) -> None:
    with pytest.raises(GraphError, match=r"cannot read nope\.json"):
        normalise(["net=nope.json"], registry)


def test_help_names_them_without_the_section(registry: Registry) -> None:
    own = help_text(["net=x"], registry)
    assert all(f"    {option}" in own for option in ('net=""', 'way="there"', "importer.size=1"))


def test_from_python(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api._programs(None, {"net": "x", "size": 3}, registry) == {"name": "net", "net": "x", "size": 3}
    monkeypatch.setattr(api, "installed", lambda: registry)
    [program] = load_programs(net=JSON)
    assert program.graph.n == load_programs(JSON)[0].graph.n
    with pytest.raises(ImporterError, match=r"no program to place was given\n  .* or net=\.\.\."):
        load_programs(way="back")
