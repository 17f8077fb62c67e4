"""Configuration: one source of defaults, argument forms, validation that names what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from placekit_core import ClusterError, ConfigError, PluginError, installed, place
from placekit_core.cli.arguments import normalise
from placekit_core.cli.jobs import job_name
from placekit_core.run.config import conf_dir
from placekit_core.run.run_directory import load_summary
from tests.runs import minimal, validate


def groups_of(config: dict) -> set[str]:
    return {k.split("@")[0] for d in config["defaults"] if isinstance(d, dict) for k in d if "override" not in k}


def test_config_yaml_holds_only_fields_of_run_config() -> None:
    from placekit_core.run.config import RunConfig

    config = yaml.safe_load((conf_dir() / "config.yaml").read_text())
    assert set(config) - {"defaults", "hydra"} == {"run_dir"}, "every other default stands in RunConfig"
    assert "run_dir" in RunConfig.model_fields
    sections = {"proxy"} | (groups_of(config) - {"parallel", "workload", "experiment"})
    assert sections == {k for k, v in RunConfig.model_fields.items() if v.is_required()}


def test_every_option_of_a_run_is_composed_with_its_default() -> None:
    from placekit_core.cli.compose import compose
    from placekit_core.run.config import RunConfig

    composed = compose(["workload=mlp"], installed())
    assert set(composed) == set(RunConfig.model_fields) - {"python_objects"}  # which only Python programs set
    config = validate(composed)
    own = {"run_dir", "workload"}  # which conf/ sets
    optional = {k: v for k, v in RunConfig.model_fields.items() if not v.is_required() and k not in own}
    defaults = {k: v.get_default(call_default_factory=True) for k, v in optional.items()}
    assert {k: getattr(config, k) for k in defaults} == defaults


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["+policy=a"], ["policy=a"]),
        (["++policy=a,b", "seed=1,2"], ["policy=a,b", "++seed=1,2"]),
        (["+polcy=a"], ["++polcy=a"]),
        (["policy.samples=3", "+policy.x=4"], ["++policy.samples=3", "++policy.x=4"]),
        (["+backend@proxy=a", "~costs"], ["backend@proxy=a", "~costs"]),
        (["hydra/launcher=joblib"], ["hydra/launcher=joblib"]),
        (["run_dir=a b,c"], ["++run_dir='a b,c'"]),
        (["importer=file", "importer.path=x"], ["importer=file", "++importer.path=x", "workload=none"]),
        (["importer=mlp", "workload=mlp"], ["importer=mlp", "workload=mlp"]),
        (["policy=1", "+policy=null", "seed=1"], ["policy='1'", "policy='null'", "++seed=1"]),
    ],
)
def test_argument_forms(given: list[str], expected: list[str]) -> None:
    assert normalise(given, installed()) == expected


def test_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "my box.yaml"
    path.write_text((conf_dir() / "cluster" / "p100x4.yaml").read_text())
    assert normalise([f"+cluster={path}"], installed()) == ["cluster=file", f"++cluster.path='{path}'"]
    with pytest.raises(ClusterError, match=r"no cluster file nope\.yaml"):
        normalise(["cluster=nope.yaml"], installed())
    path.write_text("x: 1")
    with pytest.raises(ClusterError, match="no field named 'x'"):  # here, and not in each job of a sweep
        normalise([f"cluster={path}"], installed())


def test_machines_of_a_sweep_are_files_and_presets(tmp_path: Path) -> None:
    (own := tmp_path / "cluster").mkdir()
    preset, path = conf_dir() / "cluster" / "p100x4.yaml", tmp_path / "box.yaml"
    for copy in (path, own / "ours.yaml", own / "k80x2.yaml"):
        copy.write_text(preset.read_text())
    found = normalise([f"cluster=p100x4,{path},ours,k80x2"], installed(), [tmp_path])
    files = ",".join(f"'{p}'" for p in (preset, path, own / "ours.yaml", own / "k80x2.yaml"))
    assert found == ["cluster=file", f"++cluster.path={files}"]
    assert job_name([f"++cluster.path='{path}'", "policy=etf"], []) == "policy=etf,cluster=box"
    with pytest.raises(ConfigError, match="has two machines called 'box'\n  each needs a job folder"):
        normalise([f"cluster={path},{path}"], installed())
    with pytest.raises(ConfigError, match="no cluster named 'p100x5'\n  did you mean 'p100x4'"):
        normalise([f"cluster={path},p100x5"], installed())
    with pytest.raises(ConfigError, match="cluster=auto beside a file or a machine in words\n  sweep over"):
        normalise([f"cluster={path},auto"], installed())


def test_headroom_is_an_option_of_a_run(placekit: Any) -> None:
    for given, part in (("10%", 0.1), (0.1, 0.1), ("0", 0.0)):
        assert validate(minimal(headroom=given)).headroom == part
    for given in ("110%", 1, -0.1, "much", True, "nan"):
        with pytest.raises(
            ConfigError, match=r"headroom: give a part of the memory below 100%, such as 10% or 0\.1 \(got"
        ):
            validate(minimal(headroom=given))
    own = place("mlp", cluster="rtx4090_3090", policy="single_device", baselines=[])
    kinds = place(
        "mlp", cluster="rtx4090_3090", policy="single_device", baselines=[], headroom="20%"
    ).problem.cluster.kinds
    for name, kind in own.problem.cluster.kinds.items():
        assert kinds[name] == kind.model_copy(update={"headroom": 0.2})
    command = ["workload=mlp", "cluster=rtx4090_3090", "policy=single_device", "baselines=[]", "log=[]"]
    assert placekit("run", *command, "headroom=20%", "run_dir=less").code == 0
    summary = load_summary("less")
    assert summary.config["headroom"] == 0.2
    assert summary.cluster_fingerprint != own.summary.cluster_fingerprint


@pytest.mark.parametrize("option", ["importer.parts={DE: {i: 2}}", "importer.parts.DE.i=2"])
def test_a_dict_takes_new_keys_without_a_plus(option: str) -> None:
    from placekit_core.cli.compose import compose

    assert compose(["workload=chainmm_small", option], installed())["importer"]["parts"] == {"DE": {"i": 2}}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"polcy": "x"}, ConfigError, "no option named 'polcy'\n  did you mean 'policy'"),
        ({"seed": "abc"}, ConfigError, "seed: input should be a valid integer"),
        ({"seed": -1}, ConfigError, "seed: input should be greater than or equal to 0"),
        (
            {"budget": {"evaluation": 3}},
            ConfigError,
            "no option named 'budget.evaluation'\n  did you mean 'budget.evaluations'",
        ),
        ({"budget": {"evaluations": 0}}, ConfigError, r"budget\.evaluations: input should be greater"),
        ({"policy": {"name": "anealing"}}, PluginError, "no policy named 'anealing'\n  did you mean 'annealing'"),
        (
            {"importer": {"name": "mlp", "bach": 3}},
            ConfigError,
            "no option named 'importer.bach'\n  did you mean 'importer.batch'",
        ),
        (
            {"importer": {"name": "mlp", "batch": "many"}},
            ConfigError,
            r"importer\.batch: input should be a valid integer",
        ),
        ({"trainer": {"name": "nobody"}}, PluginError, "no trainer named 'nobody'"),
    ],
)
def test_validate_names_what_is_wrong(changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        validate(minimal(**changes))


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({"name": "auto"}, {"baseline": "batch", "learning_rate": 3e-4}),
        ({"name": "ppo", "learning_rate": 0.1}, {"baseline": "batch", "learning_rate": 0.1, "epochs": 4}),
        ({"name": "reinforce"}, {"baseline": "average", "learning_rate": 3e-3}),  # not its own
    ],
)
def test_a_policy_sets_options_of_its_own_trainer(trainer: dict[str, Any], expected: dict[str, Any]) -> None:
    found = validate(minimal(policy={"name": "gdp"}, trainer=trainer)).trainer
    assert {name: found.get(name) for name in expected} == expected
