"""The checks of every component, the guard that keeps them in force, and the kit as a plugin author meets it."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import placekit_testing
import pytest
from kit_tools import fails, run_check
from numpy.random import Generator
from placekit_testing import BackendContract, Contract, LearnablePolicyContract, PolicyContract, TrainerContract
from placekit_testing.contract import checks_of, is_claimed
from placekit_testing.fakes import FakeBackend, FakeLearnable, FakeTrainer
from placekit_testing.registries import listed
from pydantic import BaseModel, Field, field_validator

from placekit_core import Options, Placement, Policy, Task, installed

pytest_plugins = "pytester"


class RightOptions(Options):
    """Options of the right policy."""

    steps: int = Field(3, ge=1, description="how many")


class Right(Policy):
    """Puts every group on its first allowed device: a right policy."""

    name = "right"
    options_class: ClassVar[type[BaseModel]] = RightOptions
    plugin_code: ClassVar[str] = ""  # what its plugin executes when it is imported

    def place(self, task: Task, rng: Generator) -> Placement:
        return task.problem.placement(task.problem.allowed.argmax(axis=1))


class Nameless(Right):
    """Has an empty name."""

    name = ""


class LenientOptions(BaseModel):
    """Options that take any name."""

    model_config = {"extra": "allow"}


class Lenient(Right):
    """Its options ignore an unknown name."""

    name = "lenient"
    options_class = LenientOptions


class GrowingOptions(Options):
    """Options that are not what they were given."""

    steps: int = 3

    @field_validator("steps")
    @classmethod
    def doubled(cls, value: int) -> int:
        return 2 * value


class Growing(Right):
    """An option doubles whenever it is validated, so a rebuilt component differs."""

    name = "growing"
    options_class = GrowingOptions


class Unlisted(Right):
    """No hook returns it."""

    name = "unlisted"


class LenientTwin(Right):
    """Accepts options that Hydra composes and that nothing validates."""

    name = "lenient_twin"
    options_class = LenientOptions


class Heavy(Right):
    """Its plugin's top module imports numba."""

    name = "heavy"
    plugin_code = "import numba"


class Eager(Right):
    """Its plugin's top module imports the component's module, which only its use should."""

    name = "eager"
    options_class = Options
    plugin_code = f"import_module({__name__!r})"


WRONG: dict[str, type[Right]] = {
    "test_is_a_component": Nameless,
    "test_options_refuse_unknown_names": Lenient,
    "test_options_are_plain_data": Growing,
    "test_is_listed": Unlisted,
    "test_composes": LenientTwin,
    "test_listing_is_light": Heavy,
}
"""The check, and the wrong component that it catches."""
SAYS = {
    "test_is_a_component": "needs a name",
    "test_options_refuse_unknown_names": "DID NOT RAISE",
    "test_options_are_plain_data": "read from JSON",
    "test_is_listed": "no policy named 'unlisted'",
    "test_composes": "DID NOT RAISE",
    "test_listing_is_light": "imports numba",
}
"""What the check must say of it."""


CONTRACTS = [getattr(placekit_testing, name) for name in placekit_testing._HOME]


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_check_says_in_one_line_what_it_checks(contract: type) -> None:
    for name, check in checks_of(contract).items():
        assert check.__doc__, name
        assert "\n" not in check.__doc__, name


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, policy: type[Right], **fields: str) -> None:
    listed(monkeypatch, folder, "policy", policy, code=policy.plugin_code, **fields)


def test_every_check_has_a_wrong_component() -> None:
    assert list(WRONG) == list(SAYS) == list(checks_of(Contract))
    assert all(component.__doc__ for component in WRONG.values())


@pytest.mark.parametrize("name", checks_of(Contract))
def test_check_passes_for_a_right_component(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, Right)
    run_check(PolicyContract, name, Right, tmp_path)
    run_check(PolicyContract, name, partial(Right, steps=5), tmp_path)


@pytest.mark.parametrize("name", checks_of(Contract))
def test_check_catches_a_wrong_component(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if WRONG[name] is not Unlisted:
        install(monkeypatch, tmp_path, WRONG[name])
    fails(PolicyContract, name, WRONG[name], tmp_path, SAYS[name])


def test_a_fake_that_fails_for_another_reason_is_no_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not say 'numba'"):
        fails(PolicyContract, "test_is_listed", Unlisted, tmp_path, "numba")


def test_listing_does_not_import_the_component(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, Eager)
    fails(PolicyContract, "test_listing_is_light", Eager, tmp_path, f"imports {__name__}")


def test_another_kind_is_no_component_of_this_one(tmp_path: Path) -> None:
    fails(PolicyContract, "test_is_a_component", FakeTrainer, tmp_path, "FakeTrainer is no Policy")


def test_what_a_listing_may_lack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for fields, message in (
        ({"summary": " "}, "no summary"),
        ({"summary": "two\nlines"}, "more than one line"),
        ({"target": f"{__name__}:Nameless"}, "is another class"),
    ):
        with monkeypatch.context() as m:
            install(m, tmp_path, Right, **fields)
            fails(PolicyContract, "test_is_listed", Right, tmp_path, message)


def test_fakes_are_uninstalled_again(tmp_path: Path) -> None:
    before = installed().names("policy"), [name for name, _ in installed().manager.list_name_plugin()]
    with pytest.MonkeyPatch.context() as m:
        install(m, tmp_path, Right)
        assert "right" in installed().names("policy")
    assert (installed().names("policy"), [name for name, _ in installed().manager.list_name_plugin()]) == before


def test_make_must_be_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from placekit_testing import PolicyContract

        class TestNothing(PolicyContract):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-k", "test_one_device", "-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*TestNothing needs a fixture `make` that returns the component's class*"])


@pytest.mark.slow
def test_a_plugin_author_sees_which_check_failed(pytester: pytest.Pytester) -> None:
    """A right and a wrong policy, tested from a file outside of this repository."""
    pytester.makepyfile(
        """
        import numpy as np
        import pytest

        from placekit_core import Policy
        from placekit_testing import PolicyContract


        class Allowed(Policy):
            name = "allowed"

            def place(self, task, rng, state=None, checkpoint=None):
                return task.problem.placement(task.problem.allowed.argmax(axis=1))


        class First(Policy):
            name = "first"

            def place(self, task, rng, state=None, checkpoint=None):
                return task.problem.placement(np.zeros(task.problem.g, int))


        class TestAllowed(PolicyContract):
            @pytest.fixture
            def make(self):
                return Allowed


        class TestFirst(PolicyContract):
            @pytest.fixture
            def make(self):
                return First


        def test_fixtures(placekit_problem, placekit_mixed_problem, placekit_task, placekit_learnable_policy):
            assert (placekit_problem.g, placekit_mixed_problem.cluster.size) == (6, 3)
            placement = First().place(placekit_task, None)
            placekit_task.evaluate(placement.batch())
            assert placekit_task.evaluate.best.value_s > placekit_task.evaluate.session.lower_bound()
            placekit_learnable_policy.build([placekit_problem], np.random.default_rng(0))
        """
    )
    where = "not listed and not listing and not composes"
    result = pytester.runpytest_subprocess("-rA", "-k", where, "-p", "no:cacheprovider")
    checks = sum(is_claimed(PolicyContract, check) for check in checks_of(PolicyContract).values()) - 3
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 4, "those on the mixed machine"
    assert "skipped" not in outcomes
    assert outcomes["passed"] == 2 * checks - 4 + 1
    result.stdout.fnmatch_lines(["E *PlacementError: group 'op0' may not run on gpu:0"])
    result.stdout.fnmatch_lines(["FAILED *::TestFirst::test_allowed_devices*"])
    result.stdout.no_fnmatch_line("FAILED *::TestAllowed::*")


class Learnable(LearnablePolicyContract):
    """What the fake claims."""

    recomputes_log_prob = reports_kl = imitates = True


@pytest.mark.parametrize(
    ("contract", "fake"),
    [
        (BackendContract, FakeBackend),
        (BackendContract, partial(FakeBackend, compiled=True)),
        (Learnable, FakeLearnable),
        (TrainerContract, FakeTrainer),
    ],
)
def test_fakes_keep_to_their_contracts(
    contract: type[Contract], fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed(monkeypatch, tmp_path, contract.kind, type(fake()))
    for name, check in checks_of(contract).items():
        if is_claimed(contract, check):
            with contextlib.suppress(pytest.skip.Exception):  # a backend may lack what some checks are about
                run_check(contract, name, fake, tmp_path)
