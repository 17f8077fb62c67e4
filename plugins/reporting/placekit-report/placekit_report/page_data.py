"""Reads the data of a run back from the page that was written for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placekit_core import Summary, parse_json, parse_text, read_bytes
from placekit_report.page import render

_DATA = re.compile(r'<script type="application/json" id="placekit-data">(.*?)</script>', re.DOTALL)
_MAX_BYTES, _MAX_VALUES = 2**28, 2**26


def written(path: Path, summary: Summary) -> Mapping[str, Any] | None:
    """The run in the page at `path`; None unless the page is of this one run, whole, and made by this version."""
    try:
        text = parse_text(read_bytes(path, _MAX_BYTES))
        found = _DATA.search(text)
        data: dict[str, Any] = parse_json(found[1].encode(), _MAX_VALUES, _MAX_BYTES) if found else {}
        [run] = data["runs"]
        same = run["summary"] == summary.model_dump(mode="json") and render(data) == text
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # whatever an edited page may hold
        return None
    own: Mapping[str, Any] | None = run if same else None
    return own
