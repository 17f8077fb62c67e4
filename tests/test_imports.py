"""Kept imports: an edit of anything that an import depends on imports again; else the graph is the same to the bit."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from placekit_core import Graph, ImporterComponent, ImporterError, Labels, RunError
from placekit_core.contracts.files import write_json
from placekit_core.contracts.progress import listening
from placekit_core.run import imports, watch
from placekit_core.run.config import RunConfig
from placekit_core.run.entries import Entry
from placekit_core.run.run_directory import check_same
from tests.repo import ROOT

IMPORTER = '''
import importlib, importlib.metadata, json, os, socket, sqlite3, subprocess, tempfile, warnings
from pathlib import Path
from types import SimpleNamespace
from placekit_core import GraphBuilder, Importer, ImporterOptions, Options, Program

class SlowOptions(ImporterOptions):
    size: int = 3
    do: str = ""

class QuickOptions(Options):
    cache: bool = True

class Slow(Importer):
    """Makes a graph of everything that it can read."""
    name = "slow"
    options_class = SlowOptions

    def load(self):
        import network
        try:
            import optional
            found = optional.value
        except ImportError:
            found = 0
        seen = {
            "size": getattr(self.options, "size", 0), "width": network.width(), "optional": found,
            "data": Path("data.json").read_text(), "link": Path("link/text").read_text(), "flag": os.path.exists("flag"),
            "parts": sorted(os.listdir("parts")), "real": os.path.realpath("link"), "mark": Path("mark").exists(),
            "variable": os.environ.get("SLOW_VARIABLE"), "version": importlib.metadata.version("somelib"),
        }
        exec(getattr(self.options, "do", ""))
        b = GraphBuilder("slow")
        x = b.source("x", 8, op_type="input", shape=(2, 4))
        for i, key in enumerate(sorted(seen)):
            [x] = b.add(f"{key}.{seen[key]!r}", op_type=key, inputs=[x], outputs=[8 + i], flops=0.1 * i, module=f"m.{i}")
        b.attributes = {"seen": seen, "share": 0.1, "none": None}
        return [Program(b.build(), executable=SimpleNamespace(recipe={}, answer=42))]
'''


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A folder with an importer and all that it reads; `load` imports as a new process does, `hit` says whether it was kept."""
    texts = {
        "code/slow_importer.py": IMPORTER,
        "code/network.py": "import layers\n\ndef width():\n    return layers.WIDTH\n",
        "code/layers.py": "WIDTH = 64\n",
        "code/somelib-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: somelib\nVersion: 1.0\n",
        "before/network/notes": "no package",
        "data.json": '{"layers": 2}\n',
        "parts/one": "",
        "v1/text": "first",
        "v2/text": "first",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to("v1")
    monkeypatch.setenv(imports.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.syspath_prepend(tmp_path / "before")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(imports, "LEAST_S", 0.0)
    monkeypatch.setattr(watch, "SETTLED_NS", 0)
    monkeypatch.setattr(watch, "UNSEEN", ())  # other tests of this process have loaded some
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python takes old code for edits within one second
    made = SimpleNamespace(folder=tmp_path, hit=None, said=[])

    def load(keep: bool = True, component: str = "SlowOptions", **options: object) -> list[Graph]:
        for name in ("slow_importer", "network", "layers", "optional"):
            sys.modules.pop(name, None)
        monkeypatch.setattr(imports, "_imported_before", False)
        import slow_importer

        config = getattr(slow_importer, component)
        described = ImporterComponent(name="slow", summary="", config=config, target="slow_importer:Slow")
        entry = Entry("importer", described, "slow", "placekit-slow", "1.0")
        with listening(lambda *_: None, made.said.append):
            made.programs = imports.load(entry, config(**options), keep, time.time_ns())
        made.hit = not imports._imported_before
        return [p.graph for p in made.programs]

    made.load = load
    return made


def assert_same(one: Graph, other: Graph) -> None:
    """Equal to the last bit, with columns in the same order."""
    assert (one.name, one.op_name, one.attributes) == (other.name, other.op_name, other.attributes)
    assert list(one.attributes) == list(other.attributes)
    assert list(one.all_columns()) == list(other.all_columns())
    for key, column in one.all_columns().items():
        again = other.all_columns()[key]
        if isinstance(column, Labels):
            assert column.vocabulary == again.vocabulary
            column, again = column.codes, again.codes
        assert column.dtype == again.dtype, key
        assert np.array_equal(column, again), key
        assert not again.flags.writeable


def test_the_second_import_takes_the_kept_graph(slow: SimpleNamespace) -> None:
    [first] = slow.load()
    assert (slow.hit, slow.said) == (False, [])
    [second] = slow.load()
    assert slow.hit
    assert "network" not in sys.modules
    assert_same(first, second)
    [line] = slow.said
    assert line == f"  graph kept since {time.strftime('%Y-%m-%d')} (importer.cache=false imports again)"
    assert [p.name for p in (slow.folder / "cache" / "imports").iterdir()] == [p.name for p in imports.kept()]


def rewrite(name: str, text: str) -> Callable[[], None]:
    return lambda: (Path(name).write_text(text), None)[1]


def same_size_and_time() -> None:
    before = os.stat("code/layers.py")
    Path("code/layers.py").write_text("WIDTH = 65\n")
    os.utime("code/layers.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat("code/layers.py").st_size == before.st_size


def other_file_of_the_same_time() -> None:
    before = os.stat("data.json")
    Path("other.json").write_text('{"layers": 3}\n')
    os.utime("other.json", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace("other.json", "data.json")


def retarget() -> None:
    os.unlink("link")
    os.symlink("v2", "link")


EDITS = {
    "a file of the user": rewrite("code/network.py", "def width():\n    return 65\n"),
    "a file that it imports": rewrite("code/layers.py", "WIDTH = 640\n"),
    "an edit that keeps size and time": same_size_and_time,
    "a data file": rewrite("data.json", '{"layers": 30}\n'),
    "another file in its place": other_file_of_the_same_time,
    "a data file that is gone": lambda: os.unlink("data.json"),
    "a file that did not exist": rewrite("flag", ""),
    "a file that pathlib did not find": rewrite("mark", ""),
    "a file in a listed folder": rewrite("parts/two", ""),
    "a link": retarget,
    "a module that could not be imported": rewrite("code/optional.py", "value = 7\n"),
    "a module that comes first now": rewrite("before/layers.py", "WIDTH = 640\n"),
    "a package that comes first now": lambda: (os.mkdir("before/layers"), rewrite("before/layers/__init__.py", "WIDTH=1")())[1],
    "a folder that is a package now": rewrite("before/network/__init__.py", "def width():\n    return 65\n"),
    "the version of a library": rewrite("code/somelib-1.0.dist-info/METADATA", "Name: somelib\nVersion: 1.1\n"),
    "a library that comes first now": lambda: (
        os.mkdir("before/somelib-2.dist-info"),
        rewrite("before/somelib-2.dist-info/METADATA", "Name: somelib\nVersion: 2\n")(),
    )[1],
    "the importer's code": rewrite("code/slow_importer.py", IMPORTER.replace("0.1 * i", "0.2 * i")),
    "an environment variable": lambda: os.environ.update(SLOW_VARIABLE="2"),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_anything_imports_again(edit: str, slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOW_VARIABLE", "1")
    [first] = slow.load()
    slow.load()
    assert slow.hit
    EDITS[edit]()
    if edit == "a data file that is gone":
        with pytest.raises(FileNotFoundError):
            slow.load()
        return
    [second] = slow.load()
    assert not slow.hit
    assert first.fingerprint != second.fingerprint
    slow.load()
    assert slow.hit, "the new graph is kept"


@pytest.mark.slow
def test_options_folders_and_interpreters_have_graphs_of_their_own(
    slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.load(size=3)
    [other] = slow.load(size=4)
    assert not slow.hit
    slow.load(size=3)
    assert slow.hit
    [again] = slow.load(size=4)
    assert slow.hit
    assert_same(other, again)
    with monkeypatch.context() as changed:
        changed.setattr(sys, "version", "3.99")
        slow.load(size=3)
        assert not slow.hit
    with monkeypatch.context() as changed:
        changed.setattr(imports, "usable_cores", lambda: 97)
        slow.load(size=3)
        assert not slow.hit
    for name in ("parts", "link", "data.json"):
        os.symlink(slow.folder / name, slow.folder / "v2" / name)
    monkeypatch.chdir(slow.folder / "v2")
    slow.load(size=3)
    assert not slow.hit


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm")
def test_files_in_shared_memory_are_files(slow: SimpleNamespace) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", mode="w") as file:
        for _ in range(2):
            slow.load(do=f"seen['shared'] = Path({file.name!r}).read_text()")
        assert slow.hit
        file.write("changed")
        file.flush()
        slow.load(do=f"seen['shared'] = Path({file.name!r}).read_text()")
        assert not slow.hit


@pytest.mark.parametrize("name", ["TERM", "SSH_CONNECTION", "OLDPWD", "_", "TMUX"])
def test_another_terminal_has_the_same_graphs(
    name: str, slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.load()
    monkeypatch.setenv(name, "another")
    slow.load()
    assert slow.hit


def test_what_is_not_read_changes_nothing(slow: SimpleNamespace) -> None:
    slow.load()
    for name in ("unread.json", "code/unread.py", "code/notes.txt", "mine"):
        Path(name).write_text("")
    slow.load()
    assert slow.hit


DOUBTS = {
    "another process": "subprocess.run(['true'], check=True)",
    "the network": "socket.socket().connect_ex(('127.0.0.1', 9))",
    "a name on the network": "socket.getaddrinfo('127.0.0.1', 80)",
    "a database": "sqlite3.connect(':memory:')",
    "a file that it writes": "open('log.txt', 'w').write('imported')",
    "a file that changes meanwhile": "os.utime('data.json')",
    "a folder that changes meanwhile": "os.close(os.open('parts/new', os.O_CREAT | os.O_EXCL | os.O_WRONLY))",
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_cannot_be_tracked_is_not_kept(doubt: str, slow: SimpleNamespace) -> None:
    slow.load(do=DOUBTS[doubt])
    assert not imports.kept()


def test_temporary_files_are_no_doubt(slow: SimpleNamespace) -> None:
    slow.load(do="tempfile.TemporaryFile().close()")
    assert len(imports.kept()) == 1


def test_a_file_that_has_just_changed_is_a_doubt(slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SETTLED_NS", 10**11)
    slow.load()
    assert not imports.kept()


def test_a_library_that_opens_files_unseen_is_a_doubt_in_code_of_the_user(
    slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "UNSEEN", ("json",))
    Path("code/network.py").write_text("import json, layers\n\ndef width():\n    return layers.WIDTH\n")
    slow.load()
    assert not imports.kept()
    monkeypatch.setattr(watch, "UNSEEN", ("decimal",))  # code of the user does not name it
    slow.load(do="import decimal")
    assert len(imports.kept()) == 1


def test_what_is_not_kept(slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    slow.load(cache=False)
    slow.load(keep=False)
    slow.load(component="QuickOptions")  # the importer does not consent
    assert not imports.kept()
    slow.load()
    slow.load(cache=False)
    assert not slow.hit
    monkeypatch.setattr(imports, "LEAST_S", 100.0)
    slow.load(size=9)
    slow.load(size=9)
    assert not slow.hit


def test_only_the_first_import_of_a_process_is_kept(slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    import slow_importer

    config = slow_importer.SlowOptions
    described = ImporterComponent(name="slow", summary="", config=config, target="slow_importer:Slow")
    entry = Entry("importer", described, "slow", "placekit-slow", "1.0")
    slow.load(size=5)
    imports.load(entry, config(size=5), True, time.time_ns())
    assert len(imports.kept()) == 1
    monkeypatch.setattr(imports, "_imported_before", True)
    imports.load(entry, config(size=6), True, time.time_ns())
    assert len(imports.kept()) == 1


def test_a_program_that_runs_is_imported_again(slow: SimpleNamespace) -> None:
    for _ in range(2):
        slow.load()
    assert slow.hit
    assert slow.programs[0].executable.answer == 42


def test_a_program_that_is_another_one_each_time_is_not_run(slow: SimpleNamespace) -> None:
    for _ in range(2):
        slow.load(do="import time; seen['clock'] = time.perf_counter_ns()")
    assert slow.hit
    with pytest.raises(ImporterError, match="another graph") as caught:
        _ = slow.programs[0].executable.answer
    assert "importer.cache=false" in caught.value.hint
    assert not imports.kept(), "so that the next run imports it"


def test_warnings_come_again(slow: SimpleNamespace) -> None:
    shown = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            slow.load(do="warnings.warn('its tokens are guessed')")
        shown.append([str(w.message) for w in caught])
    assert slow.hit
    assert shown == [["its tokens are guessed"]] * 2


@pytest.mark.slow
def test_a_damaged_file_is_imported_again(slow: SimpleNamespace) -> None:
    [first] = slow.load()
    [path] = imports.kept()
    whole = path.read_bytes()
    places = [0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1]
    flipped = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in places]
    for data in [b"", b"\0" * 100, whole[:-1], whole[: len(whole) // 2], whole + b"x", *flipped]:
        path.write_bytes(data)
        [again] = slow.load()
        assert not slow.hit
        assert_same(first, again)
        slow.load()
        assert slow.hit, "it was replaced"
    path.unlink()
    path.mkdir()
    slow.load()
    assert not slow.hit


def test_a_folder_that_cannot_be_written_to_costs_only_the_time(
    slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "placekit_core.run.imports")
    monkeypatch.setenv(imports.VARIABLE, os.devnull)
    for _ in range(2):
        slow.load()
        assert not slow.hit
    assert imports.kept() == {}
    assert "is not kept" in caplog.text
    assert {r.levelname for r in caplog.records} == {"DEBUG"}


def test_a_folder_of_sys_path_may_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not look into it for modules, so that no search tells of it."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "absent")])
    files, folders = watch.Watch(time.time_ns()).finish()
    assert not watch.changed(files, folders)
    (tmp_path / "absent").mkdir()
    assert watch.changed(files, folders) == f"{tmp_path / 'absent'} has changed"


def test_objects_in_sys_path_harm_nothing(slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("parts")])
    for _ in range(2):
        slow.load()
    assert slow.hit


@pytest.mark.slow
def test_the_oldest_are_removed_beyond_the_limit(slow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in range(4):
        slow.load(size=size)
        os.utime(list(imports.kept())[-1], ns=(0, size + 1))
    sizes = imports.kept()
    assert len(sizes) == 4
    monkeypatch.setattr(imports, "LIMIT", sum(sizes.values()) + 1000)
    slow.load(size=4)
    assert len(imports.kept()) == 4
    for size, hit in ((3, True), (0, False)):
        slow.load(size=size)
        assert slow.hit == hit


def test_a_run_directory_takes_another_cache_option_and_no_other_cache(tmp_path: Path) -> None:
    """Importer `checkpoint` has an option of this name: the type of a decoder's cache."""

    def config(cache: object) -> RunConfig:
        sections = {key: {"name": "x"} for key in ("grouper", "policy", "trainer", "backend", "proxy", "cluster")}
        return RunConfig(importer={"name": "x", "cache": cache}, **sections)

    for given, other, same in ((True, False, True), ("f16", "q8_0", False)):
        write_json(tmp_path / "config.json", config(given).model_dump(mode="json"))
        with nullcontext() if same else pytest.raises(RunError, match="importer differ"):
            check_same(tmp_path, config(other))


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(imports.VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert imports.folder() == tmp_path / ".cache" / "placekit" / "imports"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert imports.folder() == Path("/xdg/placekit/imports")
    monkeypatch.setenv(imports.VARIABLE, "/mine")
    assert imports.folder() == Path("/mine/imports")


COMMAND = """
import sys
from placekit_core.cli.main import script
code = script()
print("torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    variables = {**os.environ, imports.VARIABLE: str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], cwd=folder, env=variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run(folder: Path, run_dir: str, *arguments: str) -> tuple[bool, bool]:
    """Run a network that torch traces; returns whether the graph was kept, and whether torch was loaded."""
    done = command(folder, "run", "+policy=etf", "+importer=mlp", f"run_dir={run_dir}", *arguments)
    _, err = done.communicate()
    assert done.returncode == 0, err
    return "graph kept since" in err, err.rstrip().endswith("True")


def result(folder: Path) -> dict:
    """The result of a run, without times and names of folders."""
    data = json.loads((folder / "result.json").read_text())
    for key in ("facts", "started", "finished", "run_dir"):
        data.pop(key, None)
    text = json.dumps(data, sort_keys=True)
    return json.loads(
        text, object_hook=lambda d: {k: v for k, v in d.items() if not k.endswith("seconds") and k != "run_dir"}
    )


@pytest.mark.slow
def test_a_second_run_needs_no_torch_and_has_the_same_result(tmp_path: Path) -> None:
    both = [command(tmp_path, "run", "+policy=etf", "+importer=mlp", f"run_dir=at_once{i}") for i in range(2)]
    assert [process.wait() for process in both] == [0, 0]  # both write the same file
    for process in both:
        process.communicate()
    assert len(list((tmp_path / "cache" / "imports").iterdir())) == 1
    assert run(tmp_path, "first", "importer.cache=false") == (False, True)
    assert run(tmp_path, "second") == (True, False)
    first, second = result(tmp_path / "first"), result(tmp_path / "second")
    assert first["config"]["importer"].pop("cache") is False
    assert second["config"]["importer"].pop("cache") is True
    assert first == second
    one, other = ((tmp_path / name / "placement.json").read_bytes() for name in ("first", "second"))
    assert one == other
    assert run(tmp_path, "third", "policy=single_device", "seed=3") == (True, False)
    assert run(tmp_path, "fourth", "importer.batch=7") == (False, True)
    # a backend that runs the program imports it after all
    assert run(tmp_path, "fifth", "backend=cpu", "backend.steps=1", "+budget.evaluations=1") == (True, True)


@pytest.mark.slow
@pytest.mark.long
def test_a_model_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch, layers\nfrom placekit_torch import Step\n\ndef make():\n"
        "    return Step(torch.nn.Linear(layers.WIDTH, 4), torch.zeros(2, layers.WIDTH))\n"
    )
    (tmp_path / "layers.py").write_text("WIDTH = 16\n")

    def fingerprint(name: str) -> tuple[bool, bool, str]:
        done = command(tmp_path, "run", "+policy=etf", "model=model.py:make", "mode=inference", f"run_dir={name}")
        _, err = done.communicate()
        assert done.returncode == 0, err
        found = json.loads((tmp_path / name / "result.json").read_text())["programs"][0]["graph_fingerprint"]
        return "graph kept since" in err, err.rstrip().endswith("True"), found

    *first, graph = fingerprint("first")
    assert first == [False, True]
    assert fingerprint("second") == (True, False, graph)
    (tmp_path / "layers.py").write_text("WIDTH = 17\n")
    *third, other = fingerprint("third")
    assert third == [False, True]
    assert other != graph
    assert fingerprint("fourth") == (True, False, other)


def test_python_programs_keep_nothing() -> None:
    """A script may have changed anything before it calls `place`."""
    from placekit_core import installed

    assert not installed().keeps_imports
    text = (ROOT / "placekit_core" / "cli" / "main.py").read_text()
    assert text.count("keep_imports=True") == 1


def test_a_process_gets_one_audit_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing removes a hook, and Python calls it at every `id`: with forty of them, sweeps took ten times as long."""
    hooks: list[object] = []
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    monkeypatch.setattr(watch, "_hooked", False)
    for _ in range(3):
        with watch.Watch(0).watching():
            pass
    assert hooks == [watch._hook]
