"""Trained policies as files: what is loaded is what was saved, and everything that does not fit is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from placekit_testing import fakes
from pydantic import Field

from placekit_core import ConfigError, LearnableOptions, RunError, place
from placekit_core.run.trained import load_policy, save_policy


class SizedOptions(LearnableOptions):
    """One size that the shapes depend on, one that they do not."""

    width: int | None = Field(3, description="rows of the parameters; null: three")
    rate: float = Field(0.5, description="of nothing")


class Sized(fakes.FakeLearnable):
    """Parameters of `width` rows."""

    name = "sized"
    options_class = SizedOptions

    def build(self, problems, rng) -> None:  # type: ignore[no-untyped-def]
        self.logits = rng.standard_normal((self.options.width or 3, 2))


def built(policy: fakes.FakeLearnable, seed: int = 0) -> fakes.FakeLearnable:
    policy.build([fakes.diamond()], np.random.default_rng(seed))
    return policy


@pytest.mark.parametrize("name", [".", "policy.safetensors", "policy.json"])
def test_what_was_saved_is_loaded(tmp_path: Path, name: str) -> None:
    first, second = built(fakes.FakeLearnable()), built(fakes.FakeLearnable(), 1)
    save_policy(first, tmp_path, {"seed": 7, "value_s": float("nan")})
    load_policy(second, tmp_path / name)
    np.testing.assert_array_equal(first.logits, second.logits)
    about = json.loads((tmp_path / "policy.json").read_text())
    assert about["policy"] == "fake_learnable"
    assert (about["seed"], about["value_s"]) == (7, None)
    assert "checkpoint" not in about["options"]


def refused(policy: fakes.FakeLearnable, path: Path) -> str:
    before = policy.logits.copy()
    with pytest.raises(RunError) as error:
        load_policy(policy, path)
    np.testing.assert_array_equal(policy.logits, before)
    return str(error.value).replace(str(path), "PATH")


def test_other_sizes_name_the_parameter_and_the_option(tmp_path: Path) -> None:
    save_policy(built(Sized()), tmp_path, {})
    text = refused(built(Sized(width=4, rate=0.1)), tmp_path)
    assert "policy.checkpoint=PATH was trained with other options of policy 'sized'" in text
    assert "it was trained with policy.width=3 (here 4), policy.rate=0.5 (here 0.1)" in text


def test_an_option_left_to_the_problems_is_judged_by_the_shapes(tmp_path: Path) -> None:
    save_policy(built(Sized()), tmp_path, {})
    load_policy(built(Sized(width=None)), tmp_path)
    other = Sized(width=None)
    other.logits = np.zeros((4, 2))
    text = refused(other, tmp_path)
    assert "policy.checkpoint=PATH does not fit: parameter 'logits'" in text


def test_another_policy_is_named(tmp_path: Path) -> None:
    save_policy(built(Sized()), tmp_path, {})
    text = refused(built(fakes.FakeLearnable()), tmp_path)
    assert text == "policy.checkpoint=PATH was trained as policy 'sized', not 'fake_learnable'\n  use policy=sized"


def test_nothing_there(tmp_path: Path) -> None:
    text = refused(built(fakes.FakeLearnable()), tmp_path / "no")
    assert text == (
        "policy.checkpoint=PATH: no policy.json there\n  give the run directory of a run that trained a policy"
    )
    save_policy(built(fakes.FakeLearnable()), tmp_path, {})
    (tmp_path / "policy.safetensors").unlink()
    assert "no policy.safetensors there" in refused(built(fakes.FakeLearnable()), tmp_path)


def test_packages_ship_trained_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = built(fakes.FakeLearnable()), built(fakes.FakeLearnable(), 1)
    (tmp_path / "shipping").mkdir()
    (tmp_path / "shipping/__init__.py").touch()
    (tmp_path / "shipping/trained").mkdir()
    save_policy(first, tmp_path / "shipping/trained", {})
    monkeypatch.syspath_prepend(tmp_path)
    load_policy(second, "pkg://shipping/trained")
    np.testing.assert_array_equal(first.logits, second.logits)
    assert "no policy.json there" in refused(second, "pkg://shipping/no")
    assert "package 'nobody' cannot be imported: No module named 'nobody'" in refused(second, "pkg://nobody/trained")
    (tmp_path / "shipping/broken.py").write_text("raise ImportError('not here')")
    assert "'shipping.broken' cannot be imported: not here" in refused(second, "pkg://shipping.broken/trained")
    for wrong in (
        "pkg://",
        "pkg://shipping",
        "pkg://shipping/",
        "pkg:///trained",
        "pkg://shipping/../shipping/trained",
    ):
        assert "names no folder of a package" in refused(second, wrong)
    (tmp_path / "spaces").mkdir()  # without __init__.py
    save_policy(first, tmp_path / "spaces", {})
    (tmp_path / "spaces/trained").mkdir()
    save_policy(first, tmp_path / "spaces/trained", {})
    load_policy(second, "pkg://spaces/trained")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("policy.json", b"{"),
        ("policy.json", b"[]"),
        ("policy.json", b'{"format": "placekit-policy", "version": 1}'),
        ("policy.json", b'{"format": "placekit-policy", "version": 9, "policy": "x", "options": {}}'),
        ("policy.json", b"\xff\xfe"),
        ("policy.safetensors", b""),
        ("policy.safetensors", b"\x80\x04K\x01."),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes) -> None:
    policy = built(fakes.FakeLearnable())
    save_policy(policy, tmp_path, {})
    (tmp_path / name).write_bytes(content)
    message, hint = refused(policy, tmp_path).split("\n")
    assert message.startswith("policy.checkpoint=PATH is damaged: ")
    assert "train it again" in hint


def test_a_trained_policy_makes_as_many_placements_as_it_is_asked_for(tmp_path: Path) -> None:
    graph = fakes.diamond().graph
    place(
        graph,
        cluster="p100x4",
        policy=fakes.FakeLearnable(),
        trainer="reinforce",
        budget=16,
        run_dir=tmp_path / "trained",
    )
    found = {}
    for n in (1, 8):
        policy = fakes.FakeLearnable(checkpoint=str(tmp_path / "trained"), rollouts=n)
        found[n] = place(graph, cluster="p100x4", policy=policy, trainer="none", baselines=[])
    assert {n: r.summary.evaluations for n, r in found.items()} == {1: 1, 8: 8}
    few = place(graph, cluster="p100x4", policy=policy, trainer="none", baselines=[], budget=3)
    assert few.summary.evaluations == 3, "its own placement is one of them"
    with pytest.raises(ConfigError, match=r"policy\.rollouts=8 is for a trained policy"):
        place(graph, cluster="p100x4", policy=policy, trainer="reinforce", budget=16)
    assert found[8].summary.value_s < found[1].summary.value_s
