"""The common part of all contract classes: the factory, the guard, and the checks of every component.

A plugin's conformance test is a subclass with one fixture::

    class TestMyMethod(PolicyContract):
        @pytest.fixture
        def make(self):
            return MyMethod  # called with options as keywords; functools.partial(MyMethod, ...) for cheaper defaults

Everything else is inherited. A check is a method `check_*` that takes `make` (and maybe `tmp_path`); its docstring says
what it checks. pytest runs the checks in a few tests `test_*`, each of which combines related checks. If an
implementation knowingly fails a check, the test class overrides the test under
`@pytest.mark.xfail(reason=..., strict=True)`; no other override is allowed.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from pydantic import ValidationError

from placekit_core import ConfigError, installed
from placekit_core.contracts.interfaces import Plugin
from placekit_core.run import assembly
from placekit_core.run.config import RunConfig, conf_dir
from placekit_core.run.entries import Entry
from placekit_core.run.registry import PLURAL

Make = Callable[..., Any]
"""`make(**options)` builds the component that is tested."""

F = TypeVar("F", bound=Callable[..., Any])

HEAVY = ("torch", "numba", "hydra")
"""Modules that a plugin's top module must not import."""


def hook(method: F) -> F:
    """Mark a method of a contract class that a plugin's class may override."""
    vars(method)["is_hook"] = True
    return method


def needs(*claims: str) -> Callable[[F], F]:
    """Mark a check as one for classes with all attributes in `claims` true; it is not collected for other classes.

    A separate check tests whether the claims of a class are true.
    """

    def marked(check: F) -> F:
        vars(check)["claims"] = claims
        return check

    return marked


def in_short(check: F) -> F:
    """Mark a check as one of the short contract: variants of a component's options can break it."""
    vars(check)["in_short"] = True
    return check


def is_claimed(contract: type, check: object) -> bool:
    """Whether a contract class runs this check, or at least one of the checks of this test."""
    if checks := getattr(check, "checks", ()):
        return any(is_claimed(contract, part) for part in checks)
    if getattr(contract, "short", False) and is_check(check) and not getattr(check, "in_short", False):
        return False
    return all(getattr(contract, claim) for claim in getattr(check, "claims", ()))


def is_check(method: object) -> bool:
    """Whether a method of a contract class is a check."""
    return inspect.isfunction(method) and method.__name__.startswith("check_")


def together(doc: str, *checks: Callable[..., None]) -> Callable[..., None]:
    """A test that runs several checks, each in an own folder; a failure's traceback names the check.

    Checks that do not apply to the class are left out. The test is skipped if all others are.
    """

    def test(self: Contract, make: Make, tmp_path: Path) -> None:
        claimed = [check for check in checks if is_claimed(type(self), check)]
        reasons: list[str] = []
        for check in claimed:
            given: dict[str, Any] = {"make": make}
            if "tmp_path" in inspect.signature(check).parameters:
                given["tmp_path"] = tmp_path / check.__name__
                given["tmp_path"].mkdir(parents=True)
            try:
                check(self, **given)
            except pytest.skip.Exception as skipped:
                reasons.append(f"{check.__name__}: {skipped}")
        if len(reasons) == len(claimed):
            pytest.skip("; ".join(reasons))

    test.__doc__ = doc
    vars(test)["checks"] = checks
    return test


class Contract:
    """Base of the contract classes: the checks that every component passes, whatever its kind."""

    kind: ClassVar[str]
    """The kind of component, one of `placekit_core.contracts.hookspecs.KINDS`."""
    interface: ClassVar[type[Plugin]]
    """The abstract base class in `placekit_core.contracts.interfaces`."""
    short: ClassVar[bool] = False
    """Run only the checks that other options of a component can break. Give each component class one full contract, and
    each further combination of its options a short one."""

    def __init_subclass__(cls, defines_checks: bool = False, **kwargs: Any) -> None:
        """`defines_checks` is for the contract classes of placekit. Raises TypeError if a check is disabled."""
        super().__init_subclass__(**kwargs)
        if defines_checks:
            if not cls.__module__.startswith("placekit_testing."):
                raise TypeError(f"{cls.__name__}: `defines_checks` is for the contract classes of placekit")
            _CONTRACTS.append(cls)
        elif problem := refusal(cls):
            raise TypeError(problem)

    @pytest.fixture
    def make(self) -> Make:
        """The factory: `make(**options)` returns the component. A plugin's test class defines only this fixture."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `make` that returns the component's class")

    def check_is_a_component(self, make: Make) -> None:
        """It subclasses its kind's abstract base class, its options that class's; it has a name, every option a default."""
        component = make()
        assert isinstance(component, self.interface), f"{type(component).__name__} is no {self.interface.__name__}"
        assert isinstance(component.name, str)
        assert component.name, "a component needs a name"
        base = self.interface.options_class
        assert issubclass(component.options_class, base), f"its options do not derive from {base.__name__}"
        assert isinstance(component.options, component.options_class)
        component.options_class()

    def check_options_refuse_unknown_names(self, make: Make) -> None:
        """An option that does not exist is refused, not ignored."""
        with pytest.raises(ValidationError):
            make().options_class(no_such_option_of_anybody=1)

    def check_options_are_plain_data(self, make: Make) -> None:
        """Options survive a round trip through JSON, and rebuild the component, for example in another process."""
        component = make()
        options = component.options_class.model_validate(json.loads(component.options.model_dump_json()))
        assert options == component.options, f"read from JSON, {component.options!r} are {options!r}"
        assert type(component)(options).options == component.options, "rebuilt, it has other options"

    def check_is_listed(self, make: Make) -> None:
        """Exactly one installed component has its name; it names this class, its options, and a summary of one line."""
        component = make()
        entry = entry_of(self.kind, component.name)
        assert entry.component.config is component.options_class, "the hook names another options class"
        assert entry.load() is type(component), f"the hook's target {entry.component.target!r} is another class"
        assert entry.component.summary.strip(), "the hook has no summary"
        assert "\n" not in entry.component.summary, "the summary has more than one line"

    def check_composes(self, make: Make) -> None:
        """`+KIND=NAME` composes to its name; its options get their defaults, and an option that it lacks is refused."""
        import hydra

        from placekit_core.cli.compose import register, to_dict

        def compose(*overrides: str) -> Any:
            # a configuration with this component only: the default components of a run may not be installed
            with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
                return to_dict(hydra.compose(overrides=[f"+{self.kind}={component.name}", *overrides]))

        component = make()
        register(installed())
        chosen = RunConfig.model_construct(**compose())
        assert getattr(chosen, self.kind) == {"name": component.name}
        _, options = assembly.component(chosen, self.kind, installed())
        assert options == component.options_class()
        wrong = compose(f"+{self.kind}.no_such_option=1")
        with pytest.raises(ConfigError, match="no_such_option"):
            assembly.component(RunConfig.model_construct(**wrong), self.kind, installed())

    def check_listing_is_light(self, make: Make) -> None:
        """Importing the plugin's top module and calling its hooks imports neither torch, numba, hydra nor the component."""
        entry = entry_of(self.kind, make().name)
        plugin = installed().manager.get_plugin(entry.plugin)
        assert plugin is not None
        module = plugin.__name__
        target = entry.component.target.partition(":")[0]
        # options defined in the component's module import that module, too
        unwanted = {*HEAVY, *({target} - {module, entry.component.config.__module__})}
        found = sorted(unwanted & modules_of_listing(module, tuple(sys.path)))
        assert not found, f"listing {module} imports {', '.join(found)}"

    test_component = together(
        "A component has a name and options that are plain data.",
        check_is_a_component,
        check_options_refuse_unknown_names,
        check_options_are_plain_data,
    )
    test_installed = together(
        "The component is installed, and can be chosen by its name.",
        check_is_listed,
        check_composes,
        check_listing_is_light,
    )


@cache
def modules_of_listing(module: str, path: tuple[str, ...]) -> frozenset[str]:
    """The modules that are imported with a plugin's top module and by its hooks, in a new process; found once per plugin."""
    hooks = [f"placekit_{plural}" for plural in PLURAL.values()]
    code = (
        f"import importlib, sys\nsys.path[:0] = {list(path)!r}\nmodule = importlib.import_module({module!r})\n"
        f"[getattr(module, hook)() for hook in {hooks!r} if hasattr(module, hook)]\n"
        f"print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.splitlines())


_CONTRACTS: list[type[Contract]] = [Contract]
"""The classes that define checks."""


def checks_of(contract: type, prefix: str = "check_") -> dict[str, Callable[..., Any]]:
    """The checks of a contract class by name, its own and the inherited ones, in the order of their definition.

    With the prefix `test_`: the tests that run them.
    """
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(contract.__mro__):
        if base in _CONTRACTS:
            found |= {n: f for n, f in vars(base).items() if n.startswith(prefix) and inspect.isfunction(f)}
    return found


def refusal(contract: type) -> str | None:
    """Why a plugin's contract class, or a decorator or mark on it, disables a check; None if it does not.

    A test may be skipped under a condition (`skipif`), or replaced by a method under `xfail(reason=..., strict=True)`,
    which shows when the check passes again. Class attributes may be set, except those that the checks use (`kind`,
    `interface`, methods).
    """
    name = contract.__name__
    if not getattr(contract, "__test__", True):
        return f"{name} puts all tests of its contract out of action: `__test__` is false"
    if problem := marks_refused(_marks(*reversed(contract.__mro__))):
        return f"{name} puts all tests of its contract out of action: {problem}"
    checks = checks_of(contract, "test_")
    own = {n: f for c in _CONTRACTS if issubclass(contract, c) for n, f in vars(c).items()}
    fixed = {n for n, f in own.items() if inspect.isfunction(f) and not getattr(f, "is_hook", False)}
    for member in [*checks, *sorted(fixed - {*checks, "make", "__init_subclass__"}), "kind", "interface"]:
        owner = next(base for base in contract.__mro__ if member in vars(base))
        value = vars(owner)[member]
        marks = _marks(value)
        if owner not in _CONTRACTS and not (member in checks and any(m.name == "xfail" for m in marks)):
            what = "test" if member in checks else "member"
            return (
                f"{owner.__name__} overrides the {what} {member!r} of its contract;"
                " only a test may be overridden, by a method under @pytest.mark.xfail(reason=..., strict=True)"
            )
        if problem := marks_refused(marks):
            return f"{owner.__name__} puts the test {member!r} of its contract out of action: {problem}"
    return None


def _marks(*owners: Any) -> list[pytest.Mark]:
    """The marks of classes or functions, without those that they inherit."""
    found: list[Any] = []
    for owner in owners:
        marks = getattr(owner, "__dict__", {}).get("pytestmark", [])
        found += marks if isinstance(marks, list) else [marks]
    return [getattr(mark, "mark", mark) for mark in found]


def marks_refused(marks: Iterable[pytest.Mark]) -> str | None:
    """The mistake in the marks of a class, its module, or a check; None if there is none."""
    for mark in marks:
        if mark.name == "skip":
            return "it is skipped without a condition"
        honest = mark.kwargs.get("reason") and mark.kwargs.get("strict") is True
        if mark.name == "xfail" and (mark.args or "condition" in mark.kwargs or not honest):
            return "xfail needs a reason and strict=True, and takes no condition"
    return None


def entry_of(kind: str, name: str) -> Entry:
    """The installed component. Raises PluginError if there is none, or more than one."""
    return installed().get(kind, name)
