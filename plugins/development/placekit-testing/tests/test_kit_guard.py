"""The guard that keeps the checks of a contract in force: what a contract class may not do, and what it may."""

from __future__ import annotations

from typing import Any

import pytest
from placekit_testing import PolicyContract
from placekit_testing.contract import checks_of

pytest_plugins = "pytester"


@pytest.mark.skip(reason="slow")
def skipped(self: Any) -> None:
    """Stands in the place of a check."""


def test_overriding_a_check_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Wrong overrides the test 'test_budget' of its contract; only .*strict"):

        class Wrong(PolicyContract):
            def test_budget(self, make: Any) -> None:
                pass


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"test_budget": None}, "overrides the test 'test_budget'"),
        ({"test_budget": lambda self: None}, "overrides the test 'test_budget'"),
        ({"test_budget": skipped}, "overrides the test 'test_budget'"),
        ({"play": lambda self: None}, "overrides the member 'play'"),
        ({"check_one_device": lambda self: None}, "overrides the member 'check_one_device'"),
        ({"kind": "grouper"}, "overrides the member 'kind'"),
        ({"__test__": False}, "`__test__` is false"),
        ({"pytestmark": pytest.mark.skip(reason="later")}, "skipped without a condition"),
        ({"pytestmark": [pytest.mark.slow, pytest.mark.xfail]}, "xfail needs a reason and strict=True"),
    ],
)
def test_putting_checks_out_of_action_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        type("Wrong", (PolicyContract,), members)


def test_a_mixin_cannot_override_either() -> None:
    mixin = type("Mixin", (), {"test_budget": None, "_contract": True})
    with pytest.raises(TypeError, match="Mixin overrides the test 'test_budget'"):
        type("Wrong", (mixin, PolicyContract), {})


def test_only_placekit_defines_checks() -> None:
    with pytest.raises(TypeError, match="Wrong: `defines_checks` is for the contract classes of placekit"):

        class Wrong(PolicyContract, defines_checks=True):
            pass


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.xfail(strict=True),
        pytest.mark.xfail(reason="x"),
        pytest.mark.xfail(False, reason="x", strict=True),
        pytest.mark.xfail(condition=False, reason="x", strict=True),
    ],
)
def test_xfail_needs_a_reason_and_no_condition_and_is_strict(mark: pytest.MarkDecorator) -> None:
    @mark
    def check(self: Any) -> None:
        pass

    with pytest.raises(TypeError, match="xfail needs a reason and strict=True, and takes no condition"):
        type("Wrong", (PolicyContract,), {"test_budget": check})


def test_what_a_contract_class_may_do() -> None:
    class Honest(PolicyContract):
        budget = 80
        pytestmark = pytest.mark.skipif(False, reason="there is no GPU here")

        @pytest.mark.xfail(reason="needs two devices", strict=True)
        def test_budget(self, make: Any, tmp_path: Any) -> None:
            super().test_budget(make, tmp_path)

        def test_of_its_own(self) -> None:
            pass

    class Inherited(Honest):
        pass

    assert checks_of(Honest) == checks_of(Inherited) == checks_of(PolicyContract), "a plugin's own tests are no checks"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("@off\nclass TestWrong(PolicyContract):", "TestWrong overrides the test 'test_*'"),
        pytest.param(
            "@pytest.mark.skip\nclass TestWrong(PolicyContract):",
            "TestWrong puts all tests *without a condition",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "class TestWrong(Quiet, PolicyContract):",
            "Quiet overrides the test 'test_budget' of its contract*",
            marks=pytest.mark.slow,
        ),
        ("pytestmark = pytest.mark.xfail\nclass TestWrong(PolicyContract):", "*TestWrong*for its whole module: xfail*"),
        pytest.param(
            "class TestWrong(PolicyContract):\n    def play(self): ...",
            "*TestWrong overrides the member 'play'*",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_collection_refuses_what_is_done_to_a_class_later(
    lines: str, message: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        f"""
import pytest
from placekit_testing import PolicyContract

def off(cls):
    for name in [n for n in dir(cls) if n.startswith("test_")]:
        setattr(cls, name, None)
    return cls

class Quiet:
    test_budget = None
    def __init_subclass__(cls, **kwargs): ...

{lines}
    @pytest.fixture
    def make(self):
        return None
"""
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{message}*"])


def test_a_check_that_passes_under_xfail_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from placekit_testing import PolicyContract

        class TestHonest(PolicyContract):
            @pytest.fixture
            def make(self):
                return None

            @pytest.mark.xfail(reason="needs two devices", strict=True)
            def test_budget(self, make):
                pass

            @pytest.mark.xfail(reason="needs two operations", strict=True)
            def test_placements(self, make, tmp_path):
                super().test_placements(make, tmp_path)
        """
    )
    result = pytester.runpytest_subprocess("-k", "test_budget or test_placements", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, xfailed=1)
    result.stdout.fnmatch_lines(["*test_budget*", "*XPASS(strict)*needs two devices*"])
