"""`python -m placekit_testing` lists every contract, its checks, and what each check demands."""

from __future__ import annotations

import placekit_testing
from placekit_testing.contract import checks_of


def main() -> None:
    """Print all checks; those that a contract inherits are listed once, where they are defined."""
    for name in ("Contract", *(n for n in placekit_testing._HOME if n != "Contract")):
        contract = getattr(placekit_testing, name)
        print(name if name == "Contract" else f"{name}, besides the checks of {contract.__mro__[1].__name__}")
        for check in checks_of(contract):
            if check in vars(contract):
                print(f"  {check}\n      {getattr(contract, check).__doc__}")


if __name__ == "__main__":
    main()
