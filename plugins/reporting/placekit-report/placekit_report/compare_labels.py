"""Labels of rows: the policy, and the options in which the runs of a table differ."""

from __future__ import annotations

import re
from typing import Any

from placekit_core import Registry, Summary
from placekit_core.run.assembly import SECTIONS, kind_of
from placekit_core.run.config import CHANGES_NO_RESULT
from placekit_report.compare_identity import problems, row_key, table_key

NUMBERED = re.compile(r" \(\d+ of \d+\)$")
"""The end of a label of rows that would be called the same."""


def labels(results: list[Summary], registry: Registry) -> list[str]:
    """Policies, with the choices and options in which runs on one program, machine and backend differ.

    If one run differs in a section, every run of the same place names its choice in it. Rows that would still have the same
    label are numbered, for example rows of two versions of the code.
    """
    found = []
    for r in results:
        rivals = [x for x in results if table_key(x) == table_key(r)]
        found.append(" ".join([r.policy, *_differences(r, rivals, registry)]))
    same_label: dict[tuple[str, ...], list[int]] = {}
    for i, (r, label) in enumerate(zip(results, found, strict=True)):
        same_label.setdefault((*table_key(r), r.status, label), []).append(i)
    for same in same_label.values():
        kinds = list(dict.fromkeys(row_key(results[i]) for i in same))
        for i in same if len(kinds) > 1 else ():
            found[i] += f" ({kinds.index(row_key(results[i])) + 1} of {len(kinds)})"
    return found


def _differences(result: Summary, rivals: list[Summary], registry: Registry) -> list[str]:
    """The choices and options of a run in which its rivals differ from it.

    For its policy: the options in which other runs of the same policy differ. For a section where rivals have another
    component: the component's name, and its options that are not the defaults or that differ between its runs.
    """
    hidden = CHANGES_NO_RESULT | {"seed", "workload"}
    sections = [("cluster", "cluster"), ("graph", "importer")]
    hidden |= {s for kind, s in sections if all(problems(x)[kind] == problems(result)[kind] for x in rivals)}
    found = []
    for section, own in sorted(result.config.items()):
        if section in hidden:
            continue
        others = [_flat(x.config.get(section), section) for x in rivals]
        values, name = _flat(own, section), f"{section}.name"
        if any(o.get(name) != values.get(name) for o in others):
            others = [o for o in others if o.get(name) == values[name]]
            if section != "policy":  # the label begins with the policy's name, and no other policy has its options
                found.append(f"{section}={values[name]}")
                others += [_flat(d, section) for d in _defaults(section, str(values[name]), registry)]
        differ = [k for k in sorted(values) if k != name and any(o.get(k) != values[k] for o in others)]
        found += [f"{k}={_short(values[k])}" for k in differ]
    return found


def _flat(data: object, prefix: str) -> dict[str, object]:
    if not isinstance(data, dict):
        return {prefix: data}
    return {k: v for key, value in data.items() for k, v in _flat(value, f"{prefix}.{key}").items()}


def _defaults(section: str, name: str, registry: Registry) -> list[dict[str, Any]]:
    """The defaults of a component; none if its plugin is not installed here."""
    entries = registry.entries.get((kind_of(section), name), []) if section in SECTIONS else []
    return [e.component.config().model_dump(mode="json") for e in entries]


def _short(value: object) -> str:
    """An option's value as text; a long list as its first value and length, other long texts without the middle."""
    text = "default" if value is None else str(value)
    if len(text) <= 40:
        return text
    if isinstance(value, list) and len(f"{value[0]}") <= 30:
        return f"[{value[0]}, ... {len(value)} values]"
    return f"{text[:18]}...{text[-19:]}"
