"""The base of all contract classes, with the checks of every component.

A plugin's conformance test is a subclass with one fixture::

    class TestMyMethod(PolicyContract):
        @pytest.fixture
        def make(self):
            return MyMethod  # called with options as keywords; functools.partial(MyMethod, ...) for cheaper defaults

Everything else is inherited. A check is a method `check_*` that takes `make` (and maybe `tmp_path`); its docstring says
what it checks. pytest runs the checks in a few tests `test_*`, which combine related checks. If an
implementation knowingly fails a check, its test class overrides that test under `@pytest.mark.xfail(reason=..., strict=True)`.
"""

from __future__ import annotations

import functools
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from pydantic import ValidationError

from placekit_core import ConfigError, installed
from placekit_core.contracts.interfaces import Plugin
from placekit_core.run import assembly
from placekit_core.run.config import RunConfig, conf_dir
from placekit_core.run.registry import PLURAL

Make = Callable[..., Any]
"""`make(**options)` builds the component that is tested."""

F = TypeVar("F", bound=Callable[..., Any])

HEAVY = ("torch", "numba", "hydra")
"""Modules that a plugin's top module must not import."""


def needs(ability: type) -> Callable[[F], F]:
    """Skip a check for components that are not an instance of `ability`."""

    def decorate(check: F) -> F:
        @functools.wraps(check)
        def guarded(self: Contract, make: Make, **folder: Path) -> None:
            if not isinstance(make(), ability):
                pytest.skip(f"the component is not a {ability.__name__}")
            check(self, make, **folder)

        return guarded  # type: ignore[return-value]

    return decorate


def in_short(check: F) -> F:
    """Mark a check as one of the short contract: variants of a component's options can break it."""
    vars(check)["in_short"] = True
    return check


def together(doc: str, *checks: Callable[..., None]) -> Callable[..., None]:
    """A test that runs several checks, each in its own folder; it is skipped if all of them are."""

    def test(self: Contract, make: Make, tmp_path: Path) -> None:
        reasons: list[str] = []
        chosen = [check for check in checks if not self.short or hasattr(check, "in_short")]
        for check in chosen:
            try:
                run_check(self, check.__name__, make, tmp_path)
            except pytest.skip.Exception as skipped:
                reasons.append(f"{check.__name__}: {skipped}")
        if len(reasons) == len(chosen):
            pytest.skip("; ".join(reasons))

    test.__doc__ = doc
    vars(test)["checks"] = checks
    return test


def run_check(contract: Contract, name: str, make: Make, tmp_path: Path) -> None:
    """Run one check in its own folder inside `tmp_path`."""
    check, folder = getattr(contract, name), {}
    if "tmp_path" in inspect.signature(check).parameters:
        folder["tmp_path"] = tmp_path / name
        folder["tmp_path"].mkdir(parents=True, exist_ok=True)
    check(make, **folder)


class Contract:
    """Base of the contract classes: the checks that every component passes, whatever its kind."""

    kind: ClassVar[str]
    """The kind of component, one of `placekit_core.contracts.hookspecs.KINDS`."""
    interface: ClassVar[type[Plugin]]
    """The abstract base class in `placekit_core.contracts.interfaces`."""
    short: ClassVar[bool] = False
    """Run only the checks that other options of a component can break. Give each component class one full contract, and
    each further combination of its options a short one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises TypeError if a plugin's class replaces a check, or a test of checks that is not expected to fail."""
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("placekit_testing."):
            return
        tests = {n: t for base in cls.__mro__[1:] for n, t in vars(base).items() if hasattr(t, "checks")}
        for name, value in vars(cls).items():
            marks = getattr(value, "pytestmark", [])
            strict = any(m.name == "xfail" and m.kwargs.get("strict") and m.kwargs.get("reason") for m in marks)
            if (name in tests and not strict) or (name.startswith("check_") and hasattr(cls.__mro__[1], name)):
                raise TypeError(
                    f"{cls.__name__} overrides {name!r} of its contract; give a test of your own another name, or"
                    " override a test that must fail under @pytest.mark.xfail(reason=..., strict=True)"
                )
        if cls.short:
            for name, test in tests.items():
                if not any(hasattr(check, "in_short") for check in test.checks):
                    setattr(cls, name, None)  # not collected

    @pytest.fixture
    def make(self) -> Make:
        """The factory: `make(**options)` returns the component. A plugin's test class defines only this fixture."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `make` that returns the component's class")

    def check_is_a_component(self, make: Make) -> None:
        """It subclasses its kind's base class and has a name; its options have defaults, are plain data, and are checked."""
        component = make()
        assert isinstance(component, self.interface), f"{type(component).__name__} is not a {self.interface.__name__}"
        assert isinstance(component.name, str)
        assert component.name, "a component needs a name"
        cls, base = component.options_class, self.interface.options_class
        assert issubclass(cls, base), f"its options do not derive from {base.__name__}"
        assert isinstance(component.options, cls)
        cls()
        with pytest.raises(ValidationError):
            cls(no_such_option_of_anybody=1)
        options = cls.model_validate(json.loads(component.options.model_dump_json()))
        assert options == component.options, f"read from JSON, {component.options!r} are {options!r}"
        assert type(component)(options).options == component.options, "rebuilt, it has other options"

    def check_is_listed(self, make: Make) -> None:
        """One installed component has its name, class and options, and a summary of one line; `+KIND=NAME` chooses it."""
        import hydra

        from placekit_core.cli.compose import register, to_dict

        def compose(*overrides: str) -> RunConfig:
            # a configuration with this component only: the default components of a run may not be installed
            with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
                found = to_dict(hydra.compose(overrides=[f"+{self.kind}={component.name}", *overrides]))
            return RunConfig.model_construct(**found)

        component = make()
        entry = installed().get(self.kind, component.name)
        assert entry.component.config is component.options_class, "the hook names another options class"
        assert entry.load() is type(component), f"the hook's target {entry.component.target!r} is another class"
        assert entry.component.summary.strip(), "the hook has no summary"
        assert "\n" not in entry.component.summary, "the summary has more than one line"
        register(installed())
        chosen = compose()
        assert getattr(chosen, self.kind) == {"name": component.name}
        assert assembly.component(chosen, self.kind, installed())[1] == component.options_class()
        with pytest.raises(ConfigError, match="no_such_option"):
            assembly.component(compose(f"+{self.kind}.no_such_option=1"), self.kind, installed())

    def check_listing_is_light(self, make: Make) -> None:
        """Importing the plugin's top module and calling its hooks imports neither torch, numba, hydra nor the component."""
        entry = installed().get(self.kind, make().name)
        module = installed().manager.get_plugin(entry.plugin).__name__  # type: ignore[union-attr]
        target = entry.component.target.partition(":")[0]
        # options defined in the component's module import that module, too
        unwanted = {*HEAVY, *({target} - {module, entry.component.config.__module__})}
        found = sorted(unwanted & modules_of_listing(module, tuple(sys.path)))
        assert not found, f"listing {module} imports {', '.join(found)}"

    test_component = together("The component has a name, and options that are plain data.", check_is_a_component)
    test_installed = together(
        "The component is installed, and can be chosen by its name.", check_is_listed, check_listing_is_light
    )


@functools.cache
def modules_of_listing(module: str, path: tuple[str, ...]) -> frozenset[str]:
    """The modules that a plugin's top module and its hooks import in a new process; computed once per plugin."""
    hooks = [f"placekit_{plural}" for plural in PLURAL.values()]
    code = (
        f"import importlib, sys\nsys.path[:0] = {list(path)!r}\nmodule = importlib.import_module({module!r})\n"
        f"[getattr(module, hook)() for hook in {hooks!r} if hasattr(module, hook)]\n"
        f"print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.splitlines())


def checks_of(contract: type[Contract]) -> list[str]:
    """The names of the checks of a contract, in the order in which they are listed in its tests."""
    tests = [test for base in reversed(contract.__mro__) for test in vars(base).values() if hasattr(test, "checks")]
    return [check.__name__ for test in tests for check in test.checks]
