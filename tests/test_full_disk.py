"""A disk that fills up, or cannot be written to any more, at any write of a run: one clear error, and what there was is kept."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placekit_core import installed, load_assignment
from placekit_core.contracts import files
from placekit_core.run.assembly import Assembly
from placekit_core.run.run_directory import load_config, load_summary

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it asks Linux which file is written")
Run = Callable[..., Any]
RUN = ["run", "workload=chainmm_small", "policy=annealing", "budget.evaluations=4000", "checkpoint_s=0"]
WRITES = 8  # of such a run: its configuration, two checkpoints, and five results


class Disk:
    """Counts the files that are made durable below a folder, and fails from one of them on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.writes, self.room, self.code = folder, 0, 10**9, errno.ENOSPC
        self._fsync = os.fsync
        monkeypatch.setattr(files.os, "fsync", self.fsync)

    def fsync(self, fd: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(self.folder):
            self.writes += 1
            if self.writes > self.room:
                raise OSError(self.code, os.strerror(self.code))
        self._fsync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, placekit: Run, tmp_path: Path) -> Disk:
    monkeypatch.setenv("PLACEKIT_QUIET", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    return Disk(monkeypatch, tmp_path.resolve() / "out")


def test_the_writes_of_a_run(disk: Disk, placekit: Run) -> None:
    assert placekit(*RUN, "run_dir=out").code == 0
    assert disk.writes == WRITES


@pytest.mark.parametrize(("room", "code"), [(0, errno.EROFS), (2, errno.ENOSPC), (WRITES - 1, errno.ENOSPC)])
def test_a_disk_that_takes_no_more(disk: Disk, placekit: Run, tmp_path: Path, room: int, code: int) -> None:
    disk.room, disk.code = room, code
    outcome = placekit(*RUN, "run_dir=out")
    assert (outcome.code, outcome.out) == (1, "")
    said, hint = outcome.err.splitlines()[-2:]
    assert re.fullmatch(rf"placekit: cannot write out/\S+: {os.strerror(code)}", said)
    assert "Traceback" not in outcome.err
    assert "the best so far" not in outcome.err, "it could not be written there"
    assert all(line.startswith("placekit: warning: ") for line in outcome.err.splitlines()[:-2])
    assert not list((tmp_path / "out").glob(".*.part"))
    assert not (tmp_path / "out" / "result.json").exists(), "it is the last one"

    where = re.search(r"what was found is in ([^;]*)", hint)
    assert (where is not None) is (room > 0), "everything but the first write comes after something was found"
    if where:
        config = load_config(tmp_path / "out")
        assembly = Assembly(config, installed())
        [kept] = Path(where[1]).iterdir()
        load_assignment(kept, assembly.programs[0].graph)
    checkpoint = (tmp_path / "out" / "checkpoint.npz").is_file()
    assert checkpoint is (room > 1)
    if checkpoint:  # there is space again
        assert "`placekit run resume=out` continues" in hint
        disk.room = 10**9
        assert placekit("run", "resume=out").code == 0
        assert placekit(*RUN, "run_dir=whole").code == 0
        assert (tmp_path / "out" / "placement.json").read_bytes() == (
            tmp_path / "whole" / "placement.json"
        ).read_bytes()
        assert load_summary(tmp_path / "out").evaluations == 4000
