"""The page as text: it is one file, shows data as it is, and has every number without scripts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from made_report import HOSTILE, report
from placekit_report.page import render
from placekit_report.page.markup import breakable
from placekit_report.page.page import FOLDER, SCRIPTS, scripts, sha256, styles

LIMIT = 155_000


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


@pytest.mark.parametrize(
    "shape", [{}, {"programs": 3}, {"runs": 2}, {"devices": 1}, {"runs": 2, "programs": 2}], ids=str
)
def test_data_is_embedded_as_it_is(shape: dict[str, int]) -> None:
    data = report(**shape)
    assert embedded(render(data)) == data


def test_no_name_becomes_an_element() -> None:
    data = report(events=50, runs=2)
    data["title"] = data["command"] = data["runs"][0]["name"] = HOSTILE
    data["runs"][0]["programs"][0]["devices"]["name"][0] = HOSTILE
    data["runs"][0]["programs"][0]["notes"] = [HOSTILE]
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


def test_the_page_without_data_is_small() -> None:
    data = report(events=50)
    own = len(render(data).encode()) - len(json.dumps(data))
    assert own < LIMIT
    assert len((scripts() + styles()).encode()) < LIMIT - 20_000


def test_every_script_is_in_the_page() -> None:
    assert set(SCRIPTS) == {p.name for p in FOLDER.glob("*.js")}
    assert (FOLDER / "vendor/LICENSE").read_text() in scripts()


def test_numbers_stand_in_the_tables_as_the_same_doubles() -> None:
    data = report(events=50, devices=3)
    [program] = data["runs"][0]["programs"]
    found = set(read(render(data)).values)
    wanted = [program["value_s"], program["bound_s"], program["gap"], program["headroom"]["bytes"]]
    wanted += [v for v in program["baselines"]["value_s"] if v is not None]
    wanted += (
        program["devices"]["peak_bytes"]
        + program["devices"]["compute_s"]
        + program["timeline"]["critical_parts"]["seconds"]
    )
    wanted += program["modules"]["seconds"] + program["cut"]["bytes"]
    wanted += [b for m in program["memory"]["device"] for b in [m["peak_bytes"], *m["holders"]["bytes"]]]
    wanted += [s["best_s"][-1] for s in program["search"]]
    wanted += program["change"]["moves"]["value_s"] + program["change"]["resources"]["value_s"]
    assert [x for x in wanted if x not in found] == []


def test_what_is_missing_is_said() -> None:
    """A run whose program could not be opened again: no timeline, no modules, no memory, nulls in the columns."""
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    for key in ("timeline", "memory", "change", "headroom", "bound_s", "gap"):
        program[key] = None
    devices = program["devices"]
    devices |= {key: [None] * 2 for key in devices if key not in ("name", "kind", "peak_bytes")}
    program["modules"] = {key: [] for key in program["modules"]}
    program["cut"] = None
    program["search"][0]["best_s"] = [None] * 60
    data["runs"][0]["notes"] = ["the program could not be opened again: it is gone"]
    text = read(render(data)).text
    assert "could not be opened again" in text
    assert "nothing is proven" in text
    assert "Timeline" not in text
    assert "–the program could not be opened again" in text  # and so nobody knows the memory of its devices


def test_nothing_that_fits_is_said() -> None:
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    program |= {"value_s": None, "fits": False, "gap": None, "timeline": None, "memory": None, "change": None}
    assert "does not fit" in read(render(data)).text


def test_measurements_that_failed_are_no_misfit() -> None:
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    program |= {
        "value_s": None,
        "fits": False,
        "error": "the device is gone",
        "gap": None,
        "timeline": None,
        "memory": None,
    }
    text = read(render(data)).text
    assert "failed" in text
    assert "this rundoes not fit" not in text
    assert "this runfailed" in text


def test_baselines_are_compared_in_words() -> None:
    text = read(render(report(events=50))).text
    assert "this run is" in text
    assert "12.0% faster than it" in text
    assert re.search(r"layers in equal parts[\d.]+ ms ± [\d.]+ µs12.0% faster than it", text)


def test_a_path_that_does_not_set_the_value_is_no_lead() -> None:
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    assert "critical path. Of the resources" in read(render(data)).text
    program["objective"] = "throughput"
    text = read(render(data)).text
    assert "Of the resources" not in text
    assert "time per micro-batch" in text


def test_edges_of_micro_batches_and_of_no_schedule() -> None:
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    program["cut"]["micro_batch"] = True
    assert "Of the first micro-batch" in read(render(data)).text
    program["cut"] = None
    assert "Cut edges" not in read(render(data)).text


def test_programs_that_are_not_compared_are_named() -> None:
    data = report(events=50, runs=2, programs=2)
    data["runs"][1]["programs"][0]["program"] = "other"
    text = read(render(data)).text
    assert "only A has 'branch_0': not shown" in text
    assert "only B has 'other': not shown" in text
    assert text.count("Programs of this run") == 2
    data["runs"][1]["programs"][1]["program"] = "another"
    text = read(render(data)).text
    assert "the runs have no program in common: 'branch_0' of A stands beside 'other' of B" in text
    assert "only A has 'branch_1': not shown" in text


def test_two_runs_show_their_differences_and_what_moved() -> None:
    data = report(events=300, devices=2, runs=2)
    a, b = (run["programs"][0] for run in data["runs"])
    b["modules"] = json.loads(json.dumps(a["modules"]))
    i = b["modules"]["name"].index("layers.1")
    for k in [i, *(j for j, parent in enumerate(b["modules"]["parent"]) if parent == i)]:
        b["modules"]["device_seconds"][k].reverse()
    page = render(data)
    found = read(page)
    assert "Modules that moved: 1" in found.text
    assert re.search(r"layers\.<wbr>1</th><td>rtx4090:0 → rtx3090:0</td>", page)
    assert abs(b["value_s"] - a["value_s"]) in found.values
    assert re.search(r"policy</th><td>portfolio</td><td>etf</td>", page)


def test_runs_of_which_one_has_no_modules() -> None:
    """Its program could not be opened again, and it has no page."""
    data = report(events=50, runs=2)
    for run in data["runs"]:
        [program] = run["programs"]
        program["modules"] = {key: [] for key in program["modules"]}
        program["timeline"] = None
        text = read(render(data)).text
        assert "Differences" in text
        assert "What moved" not in text


def test_two_networks_have_no_module_in_common() -> None:
    data = report(events=50, runs=2)
    names = data["runs"][1]["programs"][0]["modules"]["name"]
    names[1:] = [f"other.{i}" for i in range(len(names) - 1)]
    text = read(render(data)).text
    assert "The networks have no module in common." in text
    assert "Modules that moved" not in text


def test_a_module_on_several_devices_moved() -> None:
    data = report(events=50, runs=2)
    a, b = (run["programs"][0] for run in data["runs"])
    for program, on in ((a, [0.8, 0.2]), (b, [0.25, 0.75])):
        program["modules"] = {"name": [""], "parent": [-1], "depth": [0], "seconds": [1.0], "bytes": [8], "operations": [1],
                              "device_seconds": [on]}  # fmt: skip
    text = read(render(data)).text
    assert "(whole network)80% rtx4090:0 + 20% rtx3090:0 → 75% rtx3090:0 + 25% rtx4090:0" in text
    assert "more than half of its seconds" in text


def test_what_binds_is_told_with_what_gives_the_most() -> None:
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    resources = program["change"]["resources"]
    text = read(render(data)).text
    assert f"Of the resources below, one gives the most: {resources['name'][0]} (−20.0%)." in text
    resources["value_s"] = [program["value_s"]] * len(resources["name"])
    assert "More of a single resource makes it no faster." in read(render(data)).text


def test_lines_of_names_break_after_marks() -> None:
    assert breakable("branch_pool.1x1<b>_") == "branch_<wbr>pool.<wbr>1x1&lt;b&gt;_"


def test_one_search_is_above_no_other() -> None:
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    assert "above the best" in read(render(data)).text
    program["search"] = program["search"][:1]
    assert "above the best" not in read(render(data)).text


def test_changes_are_relative_to_what_is_simulated_now() -> None:
    """Of a measured run, that is another value than its own."""
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    change = program["change"]
    change |= {"now_s": 2 * change["moves"]["value_s"][0], "reason": "links are not looked at"}
    change["moves"]["text"] = "all 12 moves were tried"
    found = read(render(data))
    assert "−50.0%" in found.text
    assert "all 12 moves were tried" in found.text
    assert "links are not looked at" in found.text


def test_one_evaluation_is_no_curve() -> None:
    data = report(events=50)
    assert "data-search" in render(data)
    [program] = data["runs"][0]["programs"]
    program["search"] = [{key: x[:1] if isinstance(x, list) else x for key, x in program["search"][0].items()}]
    assert "data-search" not in {name for name, _ in read(render(data)).attributes}


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
    data["runs"][0]["programs"][0]["gap"] = gap
    found = read(render(data))
    assert text in found.text
    assert gap in found.values


def test_the_device_of_a_module_is_read_aloud() -> None:
    data = report(events=50)
    [program] = data["runs"][0]["programs"]
    names, on = program["devices"]["name"], program["modules"]["device_seconds"]
    told = [name for key, name in read(render(data)).attributes if key == "aria-label" and name in names]
    assert len(told) == sum(any(seconds) for seconds in on)
    assert told[0] == names[on[0].index(max(on[0]))]


def test_many_devices_are_folded() -> None:
    text = read(render(report(events=200, devices=20))).text
    assert "12 more devices" in text  # their memory
    assert "4 more" in text


def test_programs_of_two_runs_are_paired_by_name() -> None:
    data = report(events=50, runs=2, programs=3)
    data["runs"][1]["programs"].reverse()
    page = render(data)
    assert re.findall(r'data-of="(\d\.\d)"', page)[:2] == ["0.0", "1.2"]
    assert len(re.findall("<article", page)) == 3


def test_numbers_that_are_not_finite_are_refused() -> None:
    data = report(events=50)
    data["runs"][0]["programs"][0]["seconds"] = float("nan")
    with pytest.raises(ValueError, match="JSON compliant"):
        render(data)
