"""docs/conformance-kit.md lists every check. `python test_docs_kit.py --write`, with this file's path, makes its tables again."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

from placekit_testing.__main__ import CONTRACTS, demands, own_checks
from placekit_testing.contract import Contract

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "conformance-kit.md"
TABLE = re.compile(r"(<!-- checks of (\w+) -->\n).*?(<!-- end -->)", re.S)
TESTS = {  # the file in which the checks of a contract are tried on wrong implementations
    "Contract": "base", "ImporterContract": "importers", "GrouperContract": "groupers", "PolicyContract": "policies",
    "LearnablePolicyContract": "learnable", "TrainerContract": "trainers", "BackendContract": "backends",
}  # fmt: skip


def table(contract: type[Contract]) -> str:
    """The checks that a contract adds, what each demands, and the wrong implementation that it is known to catch."""
    wrong = importlib.import_module(f"test_kit_{TESTS[contract.__name__]}").WRONG
    rows = [(f"`{name}`", demands(check), demands(wrong[name])) for name, check in own_checks(contract).items()]
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(["| check | demands | catches |", "|---|---|---|", *lines]) + "\n"


def with_tables(text: str) -> str:
    """The page with the tables of today's code."""
    contracts = {c.__name__: c for c in CONTRACTS}
    return TABLE.sub(lambda found: found[1] + "\n" + table(contracts[found[2]]) + "\n" + found[3], text)


def test_every_contract_has_its_table() -> None:
    assert [found[2] for found in TABLE.finditer(PAGE.read_text())] == [c.__name__ for c in CONTRACTS]


def test_the_tables_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    assert with_tables(text) == text, f"run `python {Path(__file__).relative_to(ROOT)} --write`"


def test_every_class_attribute_is_on_the_page() -> None:
    for contract in CONTRACTS:
        names = {n for n in vars(contract).get("__annotations__", {}) if not n.startswith("_")}
        for name in names - {"kind", "interface"}:
            assert f"`{name}`" in PAGE.read_text(), f"{contract.__name__}.{name}"


def test_every_check_has_a_docstring_and_a_wrong_implementation_with_one() -> None:
    for contract in CONTRACTS:
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


if __name__ == "__main__":
    text = with_tables(PAGE.read_text())
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text)
    else:
        print(text)
