"""`python -m placekit_testing` lists every contract, its checks, and what each check demands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placekit_testing import (
    BackendContract,
    Contract,
    GrouperContract,
    ImporterContract,
    LearnablePolicyContract,
    PolicyContract,
    TrainerContract,
)
from placekit_testing.contract import checks_of

CONTRACTS: tuple[type[Contract], ...] = (
    Contract, ImporterContract, GrouperContract, PolicyContract, LearnablePolicyContract, TrainerContract, BackendContract,
)  # fmt: skip


def own_checks(contract: type[Contract]) -> dict[str, Callable[..., Any]]:
    """The checks that a contract adds to the contract that it extends."""
    inherited = checks_of(contract.__mro__[1])
    return {name: check for name, check in checks_of(contract).items() if name not in inherited}


def demands(check: Callable[..., Any]) -> str:
    """What a check demands: the first paragraph of its docstring, on one line."""
    return " ".join((check.__doc__ or "").strip().partition("\n\n")[0].split())


def main() -> None:
    """Print all checks."""
    for contract in CONTRACTS:
        of = "every component" if contract is Contract else f"besides those of {contract.__mro__[1].__name__}"
        checks = own_checks(contract)
        print(f"{contract.__name__}: {len(checks)} checks, {of}")
        for name, check in checks.items():
            print(f"  {name}\n      {demands(check)}")


if __name__ == "__main__":
    main()
