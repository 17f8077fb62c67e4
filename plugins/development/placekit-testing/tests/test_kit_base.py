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
from placekit_testing.contract import checks_of, is_claimed, needs, together
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
    "check_is_a_component": Nameless,
    "check_options_refuse_unknown_names": Lenient,
    "check_options_are_plain_data": Growing,
    "check_is_listed": Unlisted,
    "check_composes": LenientTwin,
    "check_listing_is_light": Heavy,
}
"""The check, and the wrong component that it catches."""
SAYS = {
    "check_is_a_component": "needs a name",
    "check_options_refuse_unknown_names": "DID NOT RAISE",
    "check_options_are_plain_data": "read from JSON",
    "check_is_listed": "no policy named 'unlisted'",
    "check_composes": "DID NOT RAISE",
    "check_listing_is_light": "imports numba",
}
"""What the check must say of it."""


CONTRACTS = [getattr(placekit_testing, name) for name in placekit_testing._HOME]


def test_every_check_says_in_one_line_what_it_checks() -> None:
    for contract in CONTRACTS:
        for name, check in (checks_of(contract) | checks_of(contract, "test_")).items():
            assert check.__doc__, name
            assert "\n" not in check.__doc__, name


def test_every_check_is_in_one_test() -> None:
    for contract in CONTRACTS:
        tests = checks_of(contract, "test_").values()
        run = [check.__name__ for test in tests for check in test.checks]  # type: ignore[attr-defined]
        assert sorted(run) == sorted(checks_of(contract)), contract.__name__


class TestTogether:
    """A test of several checks."""

    class Claims(PolicyContract):
        """A contract class that does not claim what one check needs."""

        claimed = False

    @staticmethod
    def check_passes(self: Any, make: Any) -> None:
        """It passes."""

    @staticmethod
    def check_skipped(self: Any, make: Any, tmp_path: Path) -> None:
        """It is skipped, and has a folder of its own."""
        pytest.skip(f"nothing in {tmp_path.name}")

    @staticmethod
    def check_fails(self: Any, make: Any) -> None:
        """It fails."""
        raise AssertionError("wrong")

    def test_a_check_that_fails_fails_the_test(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="wrong"):
            together("All.", self.check_passes, self.check_skipped, self.check_fails)(self.Claims(), None, tmp_path)

    def test_it_is_skipped_only_if_all_checks_are(self, tmp_path: Path) -> None:
        together("All.", self.check_skipped, self.check_passes)(self.Claims(), None, tmp_path / "a")
        with pytest.raises(pytest.skip.Exception, match="check_skipped: nothing in check_skipped"):
            together("All.", self.check_skipped)(self.Claims(), None, tmp_path / "b")

    def test_checks_that_do_not_apply_are_left_out(self, tmp_path: Path) -> None:
        @needs("claimed")
        def unclaimed(self: Any, make: Any) -> None:
            raise AssertionError("not claimed")

        both = together("All.", unclaimed, self.check_passes)
        both(self.Claims(), None, tmp_path)
        assert is_claimed(self.Claims, both)
        assert not is_claimed(self.Claims, together("All.", unclaimed))

    def test_a_short_contract_runs_its_own_tests_and_marked_checks(self) -> None:
        class Short(PolicyContract):
            short = True

            def test_of_its_own(self) -> None:
                pass

        tests = checks_of(PolicyContract, "test_")
        assert is_claimed(Short, Short.test_of_its_own)
        assert {name for name, test in tests.items() if is_claimed(Short, test)} == {
            "test_placements", "test_memory_and_failures", "test_same_results", "test_budget",
        }  # fmt: skip
        assert not is_claimed(Short, PolicyContract.check_one_device)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, policy: type[Right], **fields: str) -> None:
    listed(monkeypatch, folder, "policy", policy, code=policy.plugin_code, **fields)


def test_every_check_has_a_wrong_component() -> None:
    assert list(WRONG) == list(SAYS) == list(checks_of(Contract))
    assert all(component.__doc__ for component in WRONG.values())


def test_checks_pass_for_a_right_component(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, Right)
    for name in checks_of(Contract):
        run_check(PolicyContract, name, Right, tmp_path)
        run_check(PolicyContract, name, partial(Right, steps=5), tmp_path)


def test_checks_catch_wrong_components(tmp_path: Path) -> None:
    for name, wrong in WRONG.items():
        with pytest.MonkeyPatch.context() as m:
            if wrong is not Unlisted:
                install(m, tmp_path, wrong)
            fails(PolicyContract, name, wrong, tmp_path, SAYS[name])


def test_a_fake_that_fails_for_another_reason_is_no_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not say 'numba'"):
        fails(PolicyContract, "check_is_listed", Unlisted, tmp_path, "numba")


def test_listing_does_not_import_the_component(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, Eager)
    fails(PolicyContract, "check_listing_is_light", Eager, tmp_path, f"imports {__name__}")


def test_another_kind_is_no_component_of_this_one(tmp_path: Path) -> None:
    fails(PolicyContract, "check_is_a_component", FakeTrainer, tmp_path, "FakeTrainer is no Policy")


def test_what_a_listing_may_lack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for fields, message in (
        ({"summary": " "}, "no summary"),
        ({"summary": "two\nlines"}, "more than one line"),
        ({"target": f"{__name__}:Nameless"}, "is another class"),
    ):
        with monkeypatch.context() as m:
            install(m, tmp_path, Right, **fields)
            fails(PolicyContract, "check_is_listed", Right, tmp_path, message)


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
    result = pytester.runpytest_subprocess("-k", "test_budget", "-p", "no:cacheprovider")
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
    where = "not installed"
    result = pytester.runpytest_subprocess("-rA", "-k", where, "-p", "no:cacheprovider")
    tests = sum(is_claimed(PolicyContract, test) for test in checks_of(PolicyContract, "test_").values()) - 1
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 2, "those that place on the mixed machine"
    assert "skipped" not in outcomes
    assert outcomes["passed"] == 2 * tests - 2 + 1
    result.stdout.fnmatch_lines(["E *PlacementError: group 'op0' may not run on gpu:0"])
    result.stdout.fnmatch_lines(["FAILED *::TestFirst::test_placements*"])
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
