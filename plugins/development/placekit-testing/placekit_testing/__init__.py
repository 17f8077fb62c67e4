"""Tests for plugins: a contract class for each kind of component, random problems (`strategies`), and `new-plugin`.

See docs/conformance-kit.md. Importing this module is light; the contract classes are loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from placekit_core import Command, hookimpl

if TYPE_CHECKING:
    from placekit_testing.backends import BackendContract as BackendContract
    from placekit_testing.contract import Contract as Contract
    from placekit_testing.groupers import GrouperContract as GrouperContract
    from placekit_testing.importers import ImporterContract as ImporterContract
    from placekit_testing.learnable import LearnablePolicyContract as LearnablePolicyContract
    from placekit_testing.policies import PolicyContract as PolicyContract
    from placekit_testing.trainers import TrainerContract as TrainerContract

_HOME = {
    "BackendContract": "backends",
    "Contract": "contract",
    "GrouperContract": "groupers",
    "ImporterContract": "importers",
    "LearnablePolicyContract": "learnable",
    "PolicyContract": "policies",
    "TrainerContract": "trainers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_testing.{_HOME[name]}"), name)


@hookimpl
def placekit_commands() -> list[Command]:
    """`new-plugin`."""
    return [
        Command(
            name="new-plugin",
            usage="KIND NAME [DIR] [--learnable]",
            summary="write a package with a working component",
            target="placekit_testing.new_plugin:main",
            group="install and extend",
        )
    ]
