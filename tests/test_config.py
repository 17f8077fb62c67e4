"""Configuration: one source of defaults, argument forms, validation that names what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from placekit_core import ClusterError, ConfigError, PluginError, installed
from placekit_core.cli.arguments import normalise
from placekit_core.run.config import conf_dir
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
    defaults = {k: v.default for k, v in RunConfig.model_fields.items() if not v.is_required() and k not in own}
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
            "no option named 'budget.evaluation'\n  did you mean 'evaluations'",
        ),
        ({"budget": {"evaluations": 0}}, ConfigError, r"budget\.evaluations: input should be greater"),
        ({"policy": {"name": "anealing"}}, PluginError, "no policy named 'anealing'\n  did you mean 'annealing'"),
        (
            {"importer": {"name": "mlp", "bach": 3}},
            ConfigError,
            "no option named 'importer.bach'\n  did you mean 'batch'",
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
