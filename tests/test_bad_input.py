"""Bad input: one clear error that names the thing, exit code not zero, no traceback, nothing lost."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml
from placekit_testing.fakes import chain_graph
from placekit_testing.registries import use_registry

from placekit_core import save_graph
from placekit_core.run.config import conf_dir
from placekit_core.run.registry import discover
from placekit_core.run.run_directory import load_summary

Run = Callable[..., object]
FAST = ["workload=mlp", "budget.evaluations=20", "log=csv"]


@pytest.fixture(autouse=True)
def without_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is the error alone."""
    monkeypatch.setenv("PLACEKIT_QUIET", "1")


def fails(outcome, *words: str) -> None:
    """Failed with a short error that holds all the words."""
    assert outcome.code == 1, outcome
    lines = outcome.err.strip().splitlines()
    assert 1 <= len(lines) <= 3, outcome.err
    assert lines[0].startswith("placekit: ")
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err, f"{word!r} is not in {outcome.err!r}"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        # a name that a group does not have
        (["policy=anealing"], ["no policy named 'anealing'", "did you mean 'annealing'? available: annealing, "]),
        (["cluster=nowhere"], ["no cluster named 'nowhere'", "more: `placekit run --help` lists them"]),
        (["policy=1"], ["no policy named '1'"]),
        (["workload=null"], ["no workload named 'null'"]),
        (["-m", "cluster=p100x4,my.yaml"], ["no cluster file my.yaml"]),
        (["importer=gpt", "workload=mlp"], ["importer=gpt and workload=mlp both say what to place"]),
        # an option that does not exist
        (["+polcy=annealing"], ["no option named 'polcy'", "did you mean 'policy'?"]),
        (["policy=etf", "trainer.x=1"], ["policy 'etf' has nothing to train", "leave out `trainer`"]),
        # a word that is not OPTION=VALUE
        (["mlp"], ["no file 'mlp'", "did you mean workload=mlp?"]),
        (["no.py:make"], ["no file 'no.py:make'"]),
        (["hf:no/Model"], ["no file 'hf:no/Model'"]),
        (["policy", "etf"], ["option 'policy' has no value", "write policy=VALUE, without spaces"]),
        (["--seed=3"], ["no flag --seed\n", "did you mean seed=3?", "--multirun"]),
        (["--seed"], ["no flag --seed\n", "options are OPTION=VALUE, without dashes; flags: -m, --multirun"]),
        # a wrong value
        (["budget=300"], ["budget is a section of options, not a value (got 300)", "use budget.evaluations=..., "]),
        (["seed=abc"], ["seed", "valid integer", "'abc'"]),
        (["seed=1,2"], ["Ambiguous value for argument", "1,2"]),
        (["log=nope", "run_dir=new"], ["no logger named 'nope'"]),
        # a missing value
        (["run_dir="], ["option 'run_dir' has no value", "write run_dir=PATH"]),
        (["-m", "run_dir=", "seed=1,2"], ["option 'run_dir' has no value", "write run_dir=PATH"]),
        (["-cd", "nowhere"], ["no folder 'nowhere'"]),
        (["resume=nowhere"], ["cannot resume nowhere"]),
        (["resume=nowhere", "seed=1"], ["'seed=1'", "keeps its configuration"]),
    ],
    ids=" ".join,
)
def test_options(placekit: Run, args: list[str], words: list[str], tmp_path: Path) -> None:
    fails(placekit("run", *args), *words)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("args", [[], ["net.json"], ["none.json"], ["net"], ["importer=mlp", "--help"]], ids=" ".join)
def test_without_an_importer(placekit: Run, args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [point for point in entry_points(group="placekit") if point.value.startswith("placekit_core.")]
    use_registry(monkeypatch, discover(own))
    (tmp_path / "net.json").write_text("{}")
    outcome = placekit("run", *args)
    fails(outcome, "no importer is installed: `pip install placekit` installs what a first run needs")
    assert "available: " not in outcome.err


LONG = "n" * 300
"""The name of no file: file systems take at most 255 bytes."""


@pytest.mark.parametrize(
    "args",
    [
        *(["run", a] for a in (LONG, f"{LONG}.json", f"run_dir={LONG}", f"resume={LONG}", f"cluster={LONG}.yaml")),
        ["cluster", "show", f"{LONG}.yaml"],
        ["compare", LONG],
    ],
    ids=lambda args: " ".join(args).replace(LONG, "LONG"),
)
def test_a_name_that_is_too_long(placekit: Run, args: list[str]) -> None:
    outcome = placekit(*args)
    fails(outcome, LONG)
    assert "OSError" not in outcome.err


GLOBAL = "# @package _global_\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GLOBAL + "policy: [\n", ["mine.yaml is not a readable preset: it is not YAML"]),
        (GLOBAL + "defaults:\n- override /policy: etff\n", ["no policy named 'etff'", "did you mean 'etf'?"]),
        (GLOBAL + "policy:\n  chainz: 3\n", ["no option named 'policy.chainz'"]),
        (GLOBAL + "budgett: 3\n", ["no option named 'budgett'", "did you mean 'budget'?"]),
        ("seed: 3\n", ["has no line `# @package _global_`", "make it the first line"]),
        ("defaults:\n- override /policy: etf\n", ["has no line `# @package _global_`", "make it the first line"]),
    ],
)
def test_an_error_in_a_preset(placekit: Run, tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "own" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    fails(placekit("run", "experiment=mine", "workload=mlp", "budget.evaluations=9", "--config-dir", "own"), *words)


def test_help_knows_presets_of_a_folder(placekit: Run, tmp_path: Path) -> None:
    (tmp_path / "own" / "policy").mkdir(parents=True)
    (tmp_path / "own" / "policy" / "mine.yaml").write_text("# A policy of my own.\ndefaults:\n- etf\nsamples: 7\n")
    outcome = placekit("run", "--config-dir", "own", "policy=mine", "--help")
    assert outcome.code == 0, outcome.err
    assert "A policy of my own." in outcome.out
    assert "policy.samples=7" in outcome.out


def cluster_file(tmp_path: Path, change: Callable[[dict], None]) -> str:
    data = yaml.safe_load((conf_dir() / "cluster" / "p100x4.yaml").read_text())
    change(data)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["links"][0].update(bytes_per_s=-1.0), ["links.0.bytes_per_s", "greater than 0", "-1.0"]),
        (
            lambda c: c["kinds"]["p100"].update(memory_bytes=1000),
            ["does not fit on", "all devices together have", "less context or a smaller batch"],
        ),
    ],
    ids=["negative bandwidth", "too small"],
)
def test_cluster(placekit: Run, tmp_path: Path, change: Callable[[dict], None], words: list[str]) -> None:
    fails(placekit("run", *FAST, f"cluster={cluster_file(tmp_path, change)}"), *words)


def test_truncated_and_foreign_graph_files(placekit: Run, tmp_path: Path) -> None:
    path = save_graph(chain_graph(50), tmp_path / "g.graph.npz")
    path.write_bytes(path.read_bytes()[:-200])
    fails(placekit("run", "importer=file", f"importer.path={path}"), "g.graph.npz is not a readable graph file")
    path.write_text("hello")
    fails(placekit("graph", "show", str(path)), "its content is not that of importer file")
    fails(placekit("graph", "show", "x.docx"), "cannot read x.docx: No such file", ".graph.npz")


def test_a_run_is_never_overwritten(placekit: Run, tmp_path: Path) -> None:
    assert placekit("run", *FAST, "run_dir=out").code == 0
    before = (tmp_path / "out" / "result.json").read_bytes()
    fails(placekit("run", *FAST, "run_dir=out", "seed=9"), "out holds a run already", "choose another run_dir")
    hint = "it is an option of backend=pipeline; options of simulator: "
    fails(placekit("run", *FAST, "backend.microbatches=4"), "no option named 'backend.microbatches'", hint)
    files = sorted(os.listdir("out"))
    fails(placekit("run", "-m", *FAST, "run_dir=out", "seed=1,2"), "out holds a run already", "choose another run_dir")
    assert sorted(os.listdir("out")) == files
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    fails(
        placekit("run", *FAST, "run_dir=mine"), "run_dir mine is a folder with other files (notes.txt)", "an empty one"
    )
    assert os.listdir("mine") == ["notes.txt"]
    assert (tmp_path / "out" / "result.json").read_bytes() == before


def test_nothing_fits_is_an_error_after_the_results_are_written(placekit: Run, tmp_path: Path) -> None:
    import json

    def shrink(c: dict) -> None:  # parameters fit, activations do not
        c["kinds"]["p100"]["memory_bytes"] = 300_000

    outcome = placekit("run", *FAST, f"cluster={cluster_file(tmp_path, shrink)}", "run_dir=out", "policy=annealing")
    fails(outcome, "no placement of 'mlp' that fits", "the closest needs", "larger budget")
    alone = placekit("run", *FAST, "cluster=mine.yaml", "run_dir=alone", "policy=single_gpu")
    fails(alone, "was found in 1 evaluation;", "use another policy")
    assert "budget" not in alone.err, "one evaluation is all that it makes"
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["fits"], result["value_s"], result["gap"]) == (False, None, None)


KEPT = "  the best so far, 458.8 us, is in out; continue with `placekit run resume=out`"
FAULTY = """
from placekit_core import ConfigError, Options, Policy, PolicyComponent, hookimpl

class FaultyOptions(Options):
    evaluates: bool = False
    on_purpose: bool = False
    leaves: bool = False

class Faulty(Policy):
    name = "faulty"
    options_class = FaultyOptions

    def place(self, task, rng):
        if self.options.evaluates:
            task.evaluate(task.problem.placement([0] * task.problem.g).batch())
        if self.options.leaves:
            raise SystemExit("a model's file may leave so")
        if self.options.on_purpose:
            raise ConfigError("not this program", "another one")
        return {}["missing"]

@hookimpl
def placekit_policies():
    return [PolicyComponent("faulty", "Always fails", FaultyOptions, __name__ + ":Faulty")]
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of an installed plugin whose policy raises."""
    name = "placekit_faulty_" + tmp_path.name.replace("[", "_").replace("]", "_")
    (tmp_path / "site").mkdir()
    path = tmp_path / "site" / f"{name}.py"
    path.write_text(FAULTY)
    monkeypatch.syspath_prepend(str(path.parent))
    found = discover()
    found.add("faulty", importlib.import_module(name), "placekit-faulty", "1.0")
    assert found.broken == []
    use_registry(monkeypatch, found)
    return str(path)


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_bug_in_a_plugin_is_named_with_its_place(placekit: Run, tmp_path: Path, faulty: str, evaluates: bool) -> None:
    outcome = placekit("run", *FAST, "policy=faulty", f"policy.evaluates={evaluates}", "run_dir=out")
    assert (outcome.code, outcome.out) == (1, "")
    who, kept = (", while policy 'faulty' worked", [KEPT]) if evaluates else ("", [])
    assert outcome.err.splitlines() == [
        f"placekit: KeyError: 'missing'{who}",
        f"  at {faulty}, line 20; HYDRA_FULL_ERROR=1 shows the whole traceback",
        *kept,
    ]
    result = tmp_path / "out" / "result.json"
    assert result.exists() is evaluates, "what was found before"
    assert not evaluates or load_summary(result.parent).status == "failed"
    again = placekit("run", *FAST, "policy=faulty", "run_dir=out")
    assert ("continue it with `placekit run resume=out`, or choose another run_dir" in again.err) is evaluates


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_error_on_purpose_is_shown_as_it_is(placekit: Run, faulty: str, evaluates: bool) -> None:
    options = ("policy=faulty", f"policy.evaluates={evaluates}", "policy.on_purpose=true", "run_dir=out")
    outcome = placekit("run", *FAST, *options)
    kept = f"{KEPT}\n" if evaluates else ""
    assert (outcome.code, outcome.out, outcome.err) == (1, "", f"placekit: not this program\n  another one\n{kept}")


def test_python_code_and_launchers_that_are_missing_have_a_hint(placekit: Run) -> None:
    Path("x.py").write_text("")
    assert "importer=torch importer.module=x:FUNCTION\n" in placekit("run", "x.py").err
    Path("a/b").mkdir(parents=True)
    Path("a/b/x.py").write_text("")
    assert "importer=torch importer.module=x:FUNCTION importer.path=a/b\n" in placekit("run", "a/b/x.py").err
    assert "no file 'y.py'" in placekit("run", "y.py").err
    assert "is hydra-rq-launcher installed?" in placekit("run", "-m", "seed=1,2", "hydra/launcher=rq").err


def test_a_name_that_is_given_as_a_file(placekit: Run) -> None:
    pytest.importorskip("placekit_torch", reason="an importer that takes names")
    fails(placekit("run", "no.py:make"), "model=no.py:make?")
