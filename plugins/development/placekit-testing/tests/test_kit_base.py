"""The checks of every component, tests of checks, and the kit as a plugin author meets it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import placekit_testing
import pytest
from kit_tools import outcome, own_checks
from numpy.random import Generator
from placekit_testing import BackendContract, Contract, LearnablePolicyContract, PolicyContract, TrainerContract
from placekit_testing.contract import checks_of, in_short, run_check, together
from placekit_testing.fakes import FakeBackend, FakeLearnable, FakeTrainer
from placekit_testing.registries import listed
from pydantic import BaseModel, field_validator

from placekit_core import Options, Placement, Policy, Task, installed

pytest_plugins = "pytester"
CONTRACTS = [getattr(placekit_testing, name) for name in placekit_testing._HOME]


class RightOptions(Options):
    """Options of the right policy."""

    steps: int = 3


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


class LenientOptions(Options):
    """Options that take any name."""

    model_config: ClassVar = {"extra": "allow"}


class Lenient(Right):
    """Its options ignore an unknown name."""

    options_class = LenientOptions


class GrowingOptions(Options):
    """Options that double whenever they are validated, so a rebuilt component differs."""

    steps: int = 3

    @field_validator("steps")
    @classmethod
    def doubled(cls, value: int) -> int:
        return 2 * value


class Growing(Right):
    """A rebuilt component differs."""

    options_class = GrowingOptions


class Heavy(Right):
    """Its plugin's top module imports numba."""

    plugin_code = "import numba"


class Eager(Right):
    """Its plugin's top module imports the component's module, which only its use should."""

    options_class = Options
    plugin_code = f"import_module({__name__!r})"


COMPONENT, LISTED, LIGHT = own_checks(Contract, object)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "wrong", "fields", "says"),
    [
        (COMPONENT, Nameless, {}, "needs a name"),
        (COMPONENT, Lenient, {}, "DID NOT RAISE"),
        (COMPONENT, Growing, {}, "read from JSON"),
        (COMPONENT, FakeTrainer, {}, "FakeTrainer is not a Policy"),
        (LISTED, Right, None, "no policy named 'right'"),
        (LISTED, Right, {"summary": " "}, "no summary"),
        (LISTED, Right, {"summary": "two\nlines"}, "more than one line"),
        (LISTED, Right, {"target": f"{__name__}:Nameless"}, "is another class"),
        (LISTED, Lenient, {}, "DID NOT RAISE"),
        (LIGHT, Heavy, {}, "imports numba"),
        (LIGHT, Eager, {}, f"imports {__name__}"),
    ],
)
def test_finds_planted_bugs(
    name: str, wrong: Any, fields: Any, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if fields is not None and issubclass(wrong, Right):
        listed(monkeypatch, tmp_path, "policy", wrong, code=wrong.plugin_code, **fields)
    assert says in outcome(PolicyContract, name, wrong, tmp_path)


def test_passes_for_a_right_component_which_is_then_uninstalled(tmp_path: Path) -> None:
    before = installed().names("policy"), [name for name, _ in installed().manager.list_name_plugin()]
    with pytest.MonkeyPatch.context() as m:
        listed(m, tmp_path, "policy", Right)
        for name in checks_of(Contract):
            run_check(PolicyContract(), name, Right, tmp_path)
            run_check(PolicyContract(), name, partial(Right, steps=5), tmp_path)
    assert (installed().names("policy"), [name for name, _ in installed().manager.list_name_plugin()]) == before


def test_every_check_is_in_one_test_and_has_a_line_that_says_what_it_demands() -> None:
    for contract in CONTRACTS:
        names = checks_of(contract)
        assert sorted(names) == sorted(n for n in dir(contract) if n.startswith("check_")), contract.__name__
        for name in names:
            assert "\n" not in (getattr(contract, name).__doc__ or "\n"), name


def test_the_list_of_checks_is_printed() -> None:
    done = subprocess.run([sys.executable, "-m", "placekit_testing"], capture_output=True, text=True, check=True)
    assert all(f"  {name}\n" in done.stdout for contract in CONTRACTS for name in checks_of(contract))


class Checked(Contract):
    """A contract with checks that pass, fail, or are skipped."""

    def check_passes(self, make: Any) -> None:
        """It passes."""

    def check_skipped(self, make: Any, tmp_path: Path) -> None:
        """It is skipped, and has a folder of its own."""
        pytest.skip(f"nothing in {tmp_path.name}")

    @in_short
    def check_fails(self, make: Any) -> None:
        """It fails."""
        raise AssertionError("wrong")

    test_all = together("All.", check_passes, check_skipped, check_fails)
    test_good = together("Good.", check_passes, check_skipped)
    test_skipped = together("Skipped.", check_skipped)


def test_a_test_fails_if_a_check_fails_and_is_skipped_if_all_are(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="wrong"):
        Checked().test_all(None, tmp_path)
    Checked().test_good(None, tmp_path)
    with pytest.raises(pytest.skip.Exception, match="check_skipped: nothing in check_skipped"):
        Checked().test_skipped(None, tmp_path)


def test_a_short_contract_runs_its_own_tests_and_marked_checks() -> None:
    class Short(PolicyContract):
        short = True

        def test_of_its_own(self) -> None:
            pass

    tests = {name for name in dir(Short) if name.startswith("test_") and getattr(Short, name) is not None}
    assert tests == {"test_of_its_own", "test_placements", "test_same_results", "test_budget"}


@pytest.mark.parametrize("name", ["test_budget", "check_groups"])
def test_checks_are_not_replaced(name: str) -> None:
    for value in (None, lambda self: None, pytest.mark.xfail(reason="later")(lambda self: None)):
        with pytest.raises(
            TypeError, match=f"Wrong overrides '{name}' of its contract; give a test of your own another"
        ):
            type("Wrong", (PolicyContract,), {name: value})


def test_a_known_failure_is_an_xfail_that_shows_when_it_passes(pytester: pytest.Pytester) -> None:
    """Outside of this repository, too; and a class without `make` gets an error that names the fixture."""
    pytester.makepyfile(
        """
        import numpy as np
        import pytest
        from placekit_core import Policy
        from placekit_testing import PolicyContract

        class First(Policy):
            name = "first"

            def place(self, task, rng):
                return task.problem.placement(np.zeros(task.problem.g, int))

        class TestNothing(PolicyContract):
            pass

        class TestFirst(PolicyContract):
            @pytest.fixture
            def make(self):
                return First

            @pytest.mark.xfail(reason="needs two devices", strict=True)
            def test_budget(self, make):
                pass

            @pytest.mark.xfail(reason="takes the first device, allowed or not", strict=True)
            def test_placements(self, make, tmp_path):
                super().test_placements(make, tmp_path)
        """
    )
    result = pytester.runpytest_subprocess("-k", "test_budget or test_placements", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, xfailed=1, errors=2)
    result.stdout.fnmatch_lines(["*test_budget*", "*XPASS(strict)*needs two devices*"])
    result.stdout.fnmatch_lines(["*TestNothing needs a fixture `make` that returns the component's class*"])


@pytest.mark.parametrize(
    ("contract", "fake"),
    [
        (BackendContract, FakeBackend),
        (BackendContract, partial(FakeBackend, compiled=True)),
        (LearnablePolicyContract, FakeLearnable),
        (TrainerContract, FakeTrainer),
    ],
)
def test_fakes_keep_to_their_contracts(
    contract: type[Contract], fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed(monkeypatch, tmp_path, contract.kind, type(fake()))
    for name in checks_of(contract):
        with contextlib.suppress(pytest.skip.Exception):  # a backend may lack what some checks are about
            run_check(contract(), name, fake, tmp_path)
