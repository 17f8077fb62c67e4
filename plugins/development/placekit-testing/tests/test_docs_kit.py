"""Every check says what it demands and is tried on a wrong implementation; the page of the kit names every class attribute."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from placekit_testing.__main__ import CONTRACTS, demands, own_checks
from placekit_testing.contract import Contract

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "conformance-kit.md"
TESTS = {  # the file in which the checks of a contract are tried on wrong implementations
    "Contract": "base", "ImporterContract": "importers", "GrouperContract": "groupers", "PolicyContract": "policies",
    "LearnablePolicyContract": "learnable", "TrainerContract": "trainers", "BackendContract": "backends",
}  # fmt: skip


def test_every_class_attribute_is_on_the_page() -> None:
    for contract in CONTRACTS:
        names = {n for n in vars(contract).get("__annotations__", {}) if not n.startswith("_")}
        for name in names - {"kind", "interface"}:
            assert f"`{name}`" in PAGE.read_text(), f"{contract.__name__}.{name}"


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.__name__)
def test_every_check_has_a_docstring_and_a_wrong_implementation_with_one(contract: type[Contract]) -> None:
    wrong = importlib.import_module(f"test_kit_{TESTS[contract.__name__]}").WRONG
    for name, check in own_checks(contract).items():
        assert demands(check).endswith("."), name
        assert demands(wrong[name]).endswith("."), name


def test_the_list_of_checks_is_printed_without_a_test_run() -> None:
    command = [sys.executable, "-m", "placekit_testing"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    for contract in CONTRACTS:
        assert f"{contract.__name__}: {len(own_checks(contract))} checks" in done.stdout
        assert all(f"  {name}\n" in done.stdout for name in own_checks(contract))
