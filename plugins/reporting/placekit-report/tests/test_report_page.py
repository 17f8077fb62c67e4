"""The page as text: it is one file, shows data as it is, and has every number without scripts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from made_report import DEVICE_MAP, HOSTILE, report
from placekit_report.page import render
from placekit_report.page.page import scripts, sha256, styles
from placekit_report.page.search_chart import search_chart


class Reader(HTMLParser):
    """Elements, their attributes, the text outside of scripts, and the values of `<data>`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.values: list[float] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag == "data":
            self.values.append(float(dict(attrs)["value"] or "nan"))

    def handle_data(self, data: str) -> None:
        if self.names[-1:] != ["script"] and self.names[-1:] != ["style"]:
            self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="placekit-data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


@pytest.mark.parametrize("shape", [{}, {"programs": 3}, {"devices": 1}], ids=str)
def test_data_is_embedded_as_it_is(shape: dict[str, int]) -> None:
    data = report(**shape)
    assert embedded(render(data)) == data


def test_no_name_becomes_an_element() -> None:
    data = report(events=50)
    data["title"] = data["run"]["name"] = HOSTILE
    data["run"]["programs"][0]["devices"]["name"][0] = HOSTILE
    data["run"]["programs"][0]["notes"] = [HOSTILE]
    page = render(data)
    found = read(page)
    assert "img" not in found.names
    assert found.names.count("script") == 2
    assert HOSTILE in found.text
    assert "onerror" not in {name for name, _ in found.attributes}


def test_a_page_names_no_address_and_allows_only_its_own_code() -> None:
    page = render(report(events=50))
    assert re.findall(r"(?:https?:)?//[\w-]+\.\w+", page) == []
    assert not {"src", "href", "style", "action"} & {name for name, _ in read(page).attributes}
    policy = dict(read(page).attributes)["content"] and re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    rules = policy[1].replace("&#x27;", "'")
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules
    assert {sha256(scripts()), sha256(styles())} == set(re.findall(r"sha256-[\w+/=]+", rules))
    assert f"<script>{scripts()}</script>" in page
    assert f"<style>{styles()}</style>" in page


def test_numbers_stand_in_the_tables_as_the_same_doubles() -> None:
    data = report(events=50, devices=3)
    [program] = data["run"]["programs"]
    found = set(read(render(data)).values)
    wanted = [program["value_s"], program["bound_s"], program["gap"], program["headroom"]["bytes"]]
    wanted += [v for v in program["baselines"]["value_s"] if v is not None]
    wanted += (
        program["devices"]["peak_bytes"]
        + program["devices"]["compute_s"]
        + program["timeline"]["critical_parts"]["seconds"]
    )
    wanted += program["modules"]["seconds"] + program["cut"]["bytes"]
    change = program["change"]
    tried = change["moves"]["value_s"] + change["resources"]["value_s"]
    wanted += [v for v in tried if v < 0.9995 * change["now_s"]]  # the others would read as 0.0%, or make it slower
    left_out = set(tried) - set(wanted)
    assert left_out
    assert not left_out & found
    assert [x for x in wanted if x not in found] == []


def test_what_is_missing_is_said() -> None:
    """A run that found no placement: no timeline, no modules, nulls in the columns."""
    data = report(events=50)
    [program] = data["run"]["programs"]
    for key in ("timeline", "change", "headroom", "bound_s", "gap"):
        program[key] = None
    devices = program["devices"]
    devices |= {key: [None] * 2 for key in devices if key not in ("name", "kind", "peak_bytes")}
    program["modules"] = {key: [] for key in program["modules"]}
    program["cut"] = None
    program["search"]["best_s"] = [None] * 60
    data["run"]["notes"] = ["the run failed: it shows what was found"]
    text = read(render(data)).text
    assert "the run failed" in text
    assert "nothing is proven" in text
    assert "Timeline" not in text
    assert "–no device has a limit, or no placement was measured" in text


def test_a_path_that_does_not_set_the_value_is_no_lead() -> None:
    data = report(events=50)
    [program] = data["run"]["programs"]
    assert "critical path. What helps most" in read(render(data)).text
    program["objective"] = "throughput"
    text = read(render(data)).text
    assert "Busiest" not in text
    assert "time per micro-batch" in text


def test_the_busiest_device_is_told_with_what_gives_the_most() -> None:
    data = report(events=50)
    [program] = data["run"]["programs"]
    resources = program["change"]["resources"]
    text = read(render(data)).text
    assert "Busiest: rtx4090:0 computes during 90.0% of the step; " in text
    assert f"What helps most: {resources['name'][0]} (−20.0%)." in text
    resources["value_s"] = [program["value_s"]] * len(resources["name"])
    assert "More of a single resource makes it no faster." in read(render(data)).text


def test_rows_that_do_not_matter_are_left_out() -> None:
    data = report(events=50)
    parts = data["run"]["programs"][0]["timeline"]["critical_parts"]
    parts["name"].append("hardly anything")
    parts["seconds"].append(1e-5 * sum(parts["seconds"]))
    text = read(render(data)).text
    assert "hardly anything" not in text
    assert "rtx4090:0 -> rtx3090:020.0%" in text
    assert "rtx3090:0 -> rtx4090:0" not in text, "a link that hardly sends"


def test_exports_are_text_to_copy() -> None:
    page = render(report(events=50))
    found = read(page)
    assert f"{DEVICE_MAP}as fast as the placement" in found.text
    assert found.names.count("pre") == 2
    assert page.count('<button type="button" class="copy" hidden') == 2, "without scripts, a button would do nothing"
    data = report(events=50)
    data["run"]["programs"][0]["exports"][0]["name"] = ""
    assert "accelerateCopy" in read(render(data)).text, "`placekit apply` has no such format"
    data["run"]["programs"][0]["exports"] = []
    assert "Use this placement" not in read(render(data)).text


def test_changes_are_relative_to_what_is_simulated_now() -> None:
    """Of a measured run, that is another value than its own."""
    data = report(events=50)
    [program] = data["run"]["programs"]
    change = program["change"]
    change |= {"now_s": 2 * change["moves"]["value_s"][0], "reason": "links are not looked at"}
    change["moves"]["text"] = "all 12 moves were tried"
    found = read(render(data))
    assert "−50.0%" in found.text
    assert "all 12 moves were tried" in found.text
    assert "links are not looked at" in found.text


def test_values_have_the_unit_of_the_objective() -> None:
    data = report(events=50)
    [program] = data["run"]["programs"]
    program |= {"unit": "J", "value_s": 3.25, "objective": "energy"}
    assert "3.25 J" in read(render(data)).text


def test_a_search_is_a_curve() -> None:
    page = render(report(events=50))
    assert page.count("<polyline") == 1
    assert "proven bound</text>" in page
    data = report(events=50)
    [program] = data["run"]["programs"]
    program["search"] |= {"evaluations": [1], "best_s": [program["value_s"]]}
    assert "<polyline" not in render(data), "one evaluation is no curve"


@pytest.mark.parametrize(
    ("gap", "text"),
    [
        (0.0, "reached: no placement of these groups is faster"),
        (1e-9, "within rounding"),
        (1e-4, "within 0.1%"),
        (0.25, "25.0% above it: at most 20.0% is left to gain with these groups"),
    ],
)
def test_a_gap_is_told_in_words(gap: float, text: str) -> None:
    data = report(events=50)
    data["run"]["programs"][0]["gap"] = gap
    found = read(render(data))
    assert text in found.text
    assert gap in found.values


def test_numbers_that_are_not_finite_are_refused() -> None:
    data = report(events=50)
    data["run"]["programs"][0]["seconds"] = float("nan")
    with pytest.raises(ValueError, match="JSON compliant"):
        render(data)


def test_the_axis_of_a_search_does_not_zoom_into_rounding() -> None:
    """A bound that is proven but for the last digits is at the same place as the value."""

    def labels(values: list[float], bound: float) -> set[str]:
        drawn = search_chart([{"label": "a", "evaluations": [1, 9], "best_s": values}], bound, "s")
        return set(re.findall(r'class="end">([^<]* s)<', str(drawn)))

    assert labels([1.0, 1.0], 1.0 - 1e-9) == {"1 s", "1.05 s"}
