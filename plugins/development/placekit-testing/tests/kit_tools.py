"""For the conformance kit's own tests: run one check of a contract."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def run_check(contract: type, name: str, make: Callable[..., Any], tmp_path: Path) -> None:
    """Run the check `name` of `contract` on what `make` builds, in a new folder; it passes, or raises."""
    check = getattr(contract(), name)
    given = {"make": make, "tmp_path": Path(tempfile.mkdtemp(dir=tmp_path))}
    check(**{parameter: given[parameter] for parameter in inspect.signature(check).parameters})


def fails(contract: type, name: str, make: Callable[..., Any], tmp_path: Path, says: str = "") -> BaseException:
    """What the check `name` raises for a wrong implementation, which must hold the words `says`.

    Raises AssertionError if the check passes, is skipped, or fails for another reason.
    """
    error: BaseException | None = None
    try:
        run_check(contract, name, make, tmp_path)
    except (Exception, pytest.fail.Exception) as e:
        error = e
    except pytest.skip.Exception as e:
        raise AssertionError(f"{name} was skipped: {e}") from None
    assert error is not None, f"{name} does not notice that {getattr(make, '__name__', make)} is wrong"
    assert says in f"{type(error).__name__}: {error}", f"{name} fails, and does not say {says!r}: {error!r}"
    return error
