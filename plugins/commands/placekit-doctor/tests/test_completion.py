"""Shell completion: candidates for command lines, and the scripts in the shells that there are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from placekit_doctor.completion import SCRIPTS, complete as complete_line
from placekit_testing.registries import use_registry

from placekit_core import installed
from placekit_core.cli.choices import choices
from placekit_core.contracts.hookspecs import KINDS
from placekit_core.run import registry
from placekit_core.run.config import conf_dir


def complete(text: str, breaks: str = "") -> list[str]:
    return complete_line(text, breaks, registry=registry.installed())


def words(text: str) -> list[str]:
    """Candidates for the last word of `placekit TEXT`, without the spaces that end them."""
    return [c.removesuffix(" ") for c in complete(f"placekit {text}")]


def presets(group: str) -> set[str]:
    """Names of the presets of a group, the core's and those of plugins."""
    folders = [conf_dir(), *(folder for _, folder in installed().conf_folders())]
    return {p.stem for folder in folders for p in (folder / group).glob("*.yaml")}


def test_commands() -> None:
    assert set(words("")) == {*(n.partition(" ")[0] for n in installed().commands), "--version", "--help"}
    assert complete("placekit ru") == ["run "]
    assert words("no_such_command x") == []
    assert words("plugins ") == words("doctor ") == []


@pytest.mark.parametrize("plus", ["", "+"])
def test_groups_in_both_forms_and_their_choices(plus: str) -> None:
    assert f"{plus}policy=" in words(f"run {plus}po")
    assert f"{plus}backend@proxy=" in words(f"run {plus}")
    names = {*installed().names("policy"), *presets("policy")}
    assert words(f"run {plus}policy=") == [f"{plus}policy={name}" for name in sorted(names)]
    assert complete(f"placekit run {plus}policy=ann") == [f"{plus}policy=annealing "]
    assert words(f"run {plus}backend@proxy=bu") == [f"{plus}backend@proxy=bulk_synchronous"]


def test_choices_are_components_presets_and_what_is_built_in() -> None:
    assert set(choices("cluster", installed())) == {"auto", "default", *presets("cluster")}
    assert {"none", "mlp"} <= presets("workload") == set(choices("workload", installed()))
    assert {"auto", "none"} <= set(choices("trainer", installed()))
    assert "three_stage_paper" in choices("trainer", installed()), "a preset of a plugin"
    for kind in KINDS:
        assert set(installed().names(kind)) <= set(choices(kind, installed()))


def test_flags_of_compare() -> None:
    assert complete("placekit compare --p") == ["--png ", "--profile "]


def test_swept_values_complete_after_the_comma() -> None:
    assert complete("placekit run -m policy=etf,an") == ["policy=etf,annealing"]
    assert "policy=etf,etf" not in words("run -m policy=etf,")
    assert complete("placekit run -m policy=an") == ["policy=annealing"], "no space: a comma may follow"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("policy=annealing policy.st", ["policy.starts="]),
        ("policy=critical_path policy.s", ["policy.samples="]),
        ("+policy=single_device policy.", ["policy.device="]),
        ("policy=etf,round_robin policy.", ["policy.samples="]),
        ("policy.st", ["policy.starts="]),  # of the default policy
        ("workload=mlp importer.h", ["importer.hidden="]),  # of the preset's importer
        ("importer=torch importer.mo", ["importer.mode=", "importer.module="]),
        ("backend@proxy=bulk_synchronous proxy.ready", ["proxy.ready_order="]),
        ("policy=no_such_thing policy.", []),
        ("no_such_section.", []),
    ],
)
def test_options_of_components(line: str, expected: list[str]) -> None:
    assert words(f"run {line}") == expected


def test_options_of_a_run_and_values() -> None:
    assert words("run budget.e") == ["budget.evaluations="]
    assert words("run se") == ["seed="]
    assert words("run proxy.ready_order=f") == ["proxy.ready_order=fifo"]
    assert words("run backend.threads=") == ["backend.threads=null"]
    assert words("run policy.starts=") == []
    assert "--multirun" in words("run --")


def test_options_of_a_preset_are_those_of_its_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from placekit_core.run.entries import Package
    from placekit_core.run.registry import discover

    preset = tmp_path / "completed" / "conf" / "policy" / "quick.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("defaults: [annealing]\nstarts: 2\n")
    (tmp_path / "completed" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = discover()
    found.packages.append(Package("completed", "completed", "placekit-completed", "1.0"))
    use_registry(monkeypatch, found)
    assert words("run policy=qu") == ["policy=quick"]
    assert words("run policy=quick policy.st") == ["policy.starts="]


def test_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first one").mkdir(parents=True)
    for name in ("box.yaml", "g.graph.npz", "notes.log", ".hidden.yaml"):
        (tmp_path / name).write_text("")
    assert words("run cluster=bo") == ["cluster=box.yaml"]
    assert words("cluster show bo") == ["box.yaml"]
    assert words("run importer.path=") == [
        f"importer.path={n}" for n in ("box.yaml", "g.graph.npz", "notes.log", "runs/")
    ]
    assert complete("placekit run resume=runs/") == ["resume=runs/first\\ one/"]
    assert complete("placekit run resume=runs/first\\ o") == ["resume=runs/first\\ one/"]
    assert words("compare ") == ["runs/"]
    assert words("graph import ") == ["g.graph.npz", "runs/"]
    assert words("run cluster=.h") == ["cluster=.hidden.yaml"]
    assert words("compare nowhere/") == []


def test_the_other_commands() -> None:
    assert words("graph ") == ["export", "import", "show"]
    assert "workload=mlp" in words("graph show workload=m")
    assert "workload=mlp" in words("graph export out.graph.npz workload=m")
    assert words("cluster ") == ["detect", "new", "profile", "show"]
    assert "p100x4" in words("cluster show p")
    assert words("new-plugin ") == sorted(KINDS)
    assert words("completion ") == sorted(SCRIPTS)


def test_command(placekit) -> None:
    assert placekit("completion", "bash").out == SCRIPTS["bash"]
    assert placekit("completion", "--complete", "placekit ru").out == "run \n"
    wrong = placekit("completion", "powershell")
    assert (wrong.code, "no shell named 'powershell'" in wrong.err) == (1, True)
    assert placekit("completion").code == 1


def test_completion_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['placekit', 'completion', '--complete', 'placekit run workload=mlp importer.h']\n"
        "from placekit_core.cli.main import main; main()\n"
        "print([m for m in ('torch', 'numba', 'hydra') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["importer.hidden=", "[]"]


def bash(line: str, breaks: str | None = None) -> list[str]:
    """What bash is offered for the end of `line`, with the script sourced as its users do."""
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    script = (
        'eval "$(placekit completion bash)"\n'
        + ("" if breaks is None else f"COMP_WORDBREAKS={breaks!r}\n")
        + 'COMP_LINE=$1 COMP_POINT=${#1}; read -ra COMP_WORDS <<< "$1"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n'
        'complete -p placekit >/dev/null && _placekit && printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line], capture_output=True, text=True, env={"PATH": path}, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_bash_gets_what_comes_after_its_word_breaks() -> None:
    assert bash("placekit ru") == ["run "]
    assert bash("placekit run policy=an") == ["annealing "]
    assert bash("placekit run -m +policy=etf,an") == ["etf,annealing"]
    assert bash("placekit run backend@proxy=bu") == ["bulk_synchronous "]
    assert bash("placekit run policy.st") == ["policy.starts="]
    assert bash("placekit run policy=an", breaks=" ") == ["policy=annealing "]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_syntax_of_the_other_scripts(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = tmp_path / f"placekit.{shell}"
    script.write_text(SCRIPTS[shell])
    subprocess.run([shell, "-n", str(script)], check=True)


def test_fish_offers_the_candidates() -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    code = f"set PATH {Path(sys.executable).parent} $PATH; {SCRIPTS['fish']}; complete -C 'placekit run policy=an'"
    out = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["policy=annealing"]


def test_zsh_offers_the_candidates() -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    code = (
        f'path=({Path(sys.executable).parent} $path); compdef() {{ :; }}; compadd() {{ print -r -- $#  "$@"; }}\n'
        f"{SCRIPTS['zsh']}\nLBUFFER='placekit run policy'; _placekit; LBUFFER='placekit run policy=an'; _placekit"
    )
    out = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "-Q -S  -- policy. policy=" in out
    assert "-Q -- policy=annealing" in out


def test_measuring_commands_complete_options_after_their_folder() -> None:
    for command, own in (("cluster profile out", "repeats="), ("fidelity out", "passes=")):
        assert own in words(f"{command} ")
        assert words(f"{command} policy=anneal") == ["policy=annealing"]
