"""Every option of a component is there because somebody sets it."""

from __future__ import annotations

import re

from placekit_core import installed
from tests.repo import ROOT, tracked

IN_YAML = re.compile(r"[\s{,]([\w.]+): ")
IN_CODE = re.compile(r"\b(\w+)=(?!=)|[\"'](\w+)[\"']: ")
IN_COMMANDS = re.compile(r"\b\w+\.([\w.]+)=|\b(\w+)=")


SET_ELSEWHERE = {
    "max_ideals": "policy portfolio sets it for its start from `chain`",
    "promising": "rho of Post's equation 10, named by the paper",
}


def options_that_are_set() -> set[str]:
    """Names of options that a preset, a command of a document, a benchmark or a test sets; the path of a nested one counts."""
    found: set[str] = set()
    for path in tracked():
        parts = {*path.relative_to(ROOT).parts}
        if path.suffix == ".yaml" and "conf" in parts:
            hits = [(m,) for m in IN_YAML.findall("\n" + path.read_text(encoding="utf-8"))]
            hits += IN_COMMANDS.findall(path.read_text(encoding="utf-8"))
        elif path.suffix == ".py" and parts & {"tests", "benchmarks"}:
            hits = IN_CODE.findall(path.read_text(encoding="utf-8"))
            hits += IN_COMMANDS.findall(path.read_text(encoding="utf-8"))
        elif path.suffix == ".md":
            hits = IN_COMMANDS.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        found.update(word for hit in hits for name in hit for word in name.split("."))
    return found


def test_every_option_is_set_somewhere() -> None:
    found = options_that_are_set() | SET_ELSEWHERE.keys()
    unset = [
        f"{entry.kind}={entry.component.name}: {option}"
        for entry in installed().all()
        for option in entry.component.config.model_fields
        if option not in found
    ]
    assert unset == [], "an option that nobody sets is a constant with a comment"
