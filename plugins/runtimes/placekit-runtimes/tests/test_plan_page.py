"""A plan as HTML: well formed, with the figures of the plan, and safe to open whatever a model's files are named."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from placekit_runtimes.planning.page import SCRIPT, STYLE, fragment, page
from placekit_runtimes.planning.plan import Plan, plan
from placekit_runtimes.planning.strategies import Row
from placekit_runtimes.planning.text import speed

HOSTILE = "</pre></style></script><img src=x onerror=alert(1)>&\"'\udcff"
CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 1000, "intermediate_size": 512, "moe_intermediate_size": 128, "num_experts": 4,
    "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
VOID = {"meta"}


class Reader(HTMLParser):
    """Elements with their attributes and text; fails if one is not closed, or closed out of order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.text[tag][-1] += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def values(self) -> set[float]:
        return {float(x["value"] or "nan") for x in self.named("data")}

    def fills(self, row: str) -> list[str | None]:
        """Colours of a row of the picture of layers, whose label begins so."""
        labels = [i for i, (_, x) in enumerate(self.elements) if (x.get("aria-label") or "").startswith(f"{row}: ")]
        assert len(labels) == 1
        rest = self.elements[labels[0] + 1 :]
        end = next(i for i, (tag, _) in enumerate(rest) if tag not in ("rect", "title"))
        return [x["fill"] for tag, x in rest[:end] if tag == "rect"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A mixture of experts of six layers that fits everywhere."""
    folder: Path = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    machine = "rtx4090 + rtx3060 + 64GB ddr5-5600"
    return plan(str(folder), machine, weights="q8_0", context=512, prompt=64, generate=16)


@pytest.fixture(scope="module")
def divided(small: Plan) -> Plan:
    """Layers 0-3 on the first GPU, 4 and 5 on the second one, the experts of layers 0 and 4 in host memory."""
    q, strategies = small.question, small.strategies["llamacpp"]
    first, second = q.gpus
    assert q.cpu is not None
    home, experts = [first] * 4 + [second] * 3, [q.cpu, first, first, first, q.cpu, second]
    split = strategies.steps.layout.split(home, q.cpu, experts)
    return dataclasses.replace(small, rows=[strategies.row("divided", split, best=True), *small.rows[1:]])


def renamed(found: Plan, name: str) -> Plan:
    """The plan with this name of the model, its file, the machine, its devices and its strategies."""
    cluster = found.question.cluster.model_copy(update={"name": name})
    cluster.__dict__["device_names"] = [name] * cluster.size  # a cached property
    question = dataclasses.replace(found.question, cluster=cluster, name=name, file=name)
    strategies = copy.copy(found.strategies["llamacpp"])
    strategies.steps = copy.copy(strategies.steps)
    strategies.question = strategies.steps.question = question
    rows = [dataclasses.replace(row, name=name) for row in found.rows]
    refused = Row("llamacpp", name, None, error=name)
    return dataclasses.replace(found, question=question, strategies={"llamacpp": strategies}, rows=[*rows, refused])


def test_page_and_fragment_are_well_formed_and_need_nothing_from_elsewhere(divided: Plan) -> None:
    whole, part = page(divided), fragment(divided)
    for html in (whole, part):
        found = Reader(html)
        names = {name for _, attributes in found.elements for name in attributes}
        assert not names & {"src", "href", "style", "action", "xlink:href"}
        assert not re.search(r"(https?:)?//\w|url\(|@import", html)
        assert len(found.named("svg")) == sum(
            "aria-label" in x or x.get("aria-hidden") == "true" for x in found.named("svg")
        )
    assert Reader(part).text.get("script") is None
    assert Reader(part).named("button") == []
    assert Reader(whole).text["script"] == [SCRIPT]
    assert Reader(whole).text["style"] == Reader(part).text["style"] == [STYLE]
    policy = Reader(whole).named("meta")[1]["content"] or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert divided._repr_html_() == part


def test_rules_of_the_style_stay_inside_the_plan() -> None:
    """In a notebook, they must not change other cells."""
    rules = re.sub(r"@media[^{]*\{|^\}$", "", STYLE, flags=re.M)
    selectors = [rule.rpartition("}")[2].strip() for rule in rules.split("{")[:-1]]
    assert selectors
    for selector in selectors:
        outside = re.sub(r":is\([^)]*\)", "", selector)
        assert all(".placekit-plan" in part for part in outside.split(",")), selector


def test_figures_are_those_of_the_plan(divided: Plan) -> None:
    values, o = Reader(page(divided)).values, divided.question.options
    wanted = [divided.answer_s(row) for row in divided.rows] + [o.users / row.decode_s for row in divided.rows]
    wanted += [o.prompt / row.prompt_s for row in divided.rows]
    memory = divided.best.memory
    assert memory is not None
    used = memory.used > 0
    wanted += [x for part in (memory.weights, memory.cache, memory.compute, memory.free) for x in part[used].tolist()]
    assert values == set(wanted)
    text = Reader(page(divided)).text
    assert divided.verdict in text["p"][1]
    assert "simulated" in text["p"][1]
    assert text["pre"] == [divided.llama_cpp()]
    bound = divided.decode_bound_s
    assert bound
    assert any(f"more than {speed(o.users / bound)} tokens/s" in note for note in text["li"])
    assert any(note.startswith("accuracy: ") for note in text["li"])


def test_bars_of_memory_are_in_proportion(divided: Plan) -> None:
    found, memory = Reader(page(divided)), divided.best.memory
    assert memory is not None
    of = [i for i, (tag, _) in enumerate(found.elements) if tag == "figure"]
    used = np.flatnonzero(memory.used > 0).tolist()
    assert len(of) == len(used)
    for begin, d in zip(of, used, strict=True):
        bar = [x for tag, x in found.elements[begin : begin + 10] if tag == "rect"][:3]
        shares = np.asarray([memory.weights[d], memory.cache[d], memory.compute[d]]) / (memory.used[d] + memory.free[d])
        widths = [float((x["width"] or "").rstrip("%")) for x in bar]
        np.testing.assert_allclose(widths, 100 * shares, rtol=1e-3, atol=1e-9)
        starts = [float((x["x"] or "").rstrip("%")) for x in bar]
        np.testing.assert_allclose(starts, 100 * np.append(0, np.cumsum(shares)[:-1]), rtol=1e-3, atol=1e-9)


def test_cells_have_the_colours_of_their_devices(divided: Plan) -> None:
    found = Reader(page(divided))
    layers, experts = found.fills("layers"), found.fills("experts")
    assert layers == [layers[0]] * 4 + [layers[-1]] * 3
    host = experts[0]
    assert experts == [host, *[layers[0]] * 3, host, layers[-1]]
    assert len({layers[0], layers[-1], host}) == 3
    legend = [x for x in found.text["li"] if ": " in x and ("layers" in x or "embedding" in x) and "split" not in x]
    names = divided.question.cluster.device_names
    assert sorted(legend) == sorted(
        [
            f"{names[0]}: layers 0-3, experts of layers 1-3",
            f"{names[1]}: layers 4-5, experts of layers 5, output",
            f"{names[2]}: experts of layers 0, 4, embedding",
        ]
    )


def test_copied_weights_have_a_row(small: Plan) -> None:
    q, strategies = small.question, small.strategies["llamacpp"]
    layout, gpu = strategies.steps.layout, small.question.gpus[0]
    split = layout.split([gpu] * 7, gpu)
    moved = dataclasses.replace(split, held=np.where(layout.layer == 2, q.cpu, split.held), streams=True)
    found = Reader(fragment(dataclasses.replace(small, rows=[strategies.row("streams", moved, best=True)])))
    weights = found.fills("weights")
    assert len(weights) == 6
    assert [i for i, x in enumerate(weights) if x != weights[0]] == [2]


@pytest.mark.parametrize("show", [page, fragment])
def test_no_name_becomes_an_element(divided: Plan, show: Callable[[Plan], str]) -> None:
    html = show(renamed(divided, HOSTILE))
    html.encode()
    found, plain = Reader(html), Reader(show(renamed(divided, "name")))
    assert [(tag, [*x]) for tag, x in found.elements] == [(tag, [*x]) for tag, x in plain.elements]
    shown = HOSTILE.replace("\udcff", "?")
    assert found.text["th"].count(shown) == len(divided.rows) + 1
    for tag in ("p", "li", "title", "td", "figure"):
        assert any(shown in x for x in found.text[tag]), tag
    assert "<img src=x" in found.text["pre"][0]  # quoted for a shell
    assert any(shown in (x.get("aria-label") or "") for x in found.named("svg"))


def test_a_plan_that_does_not_fit_says_what_each_row_lacks(small: Plan) -> None:
    q, strategies = small.question, small.strategies["llamacpp"]
    rows = []
    for name, device in (("first", q.gpus[0]), ("second", q.gpus[1])):
        row = strategies.row(name, strategies.steps.layout.split([device] * 7, device))
        assert row.memory is not None
        free = row.memory.free.copy()
        free[device] = -(2.0**30) * (1 + device)
        rows.append(dataclasses.replace(row, memory=dataclasses.replace(row.memory, free=free), error="too much"))
    rows.append(Row("llamacpp", "third", None, error="it cannot run there"))
    for show in (page, fragment):
        found = Reader(show(dataclasses.replace(small, rows=rows)))
        cells, names = found.text["td"], q.cluster.device_names
        for d, row in zip(q.gpus, rows, strict=False):
            assert f"does not fit: {1 + d}.00 GiB missing on {names[d]}" in cells, row.name
        assert "it cannot run there" in cells
        assert "does not fit" in found.text["p"][1]
        assert "pre" not in found.text
        assert found.values == set()


def test_rows_that_lack_memory_stand_beside_those_that_fit(divided: Plan) -> None:
    row = divided.rows[1]
    assert row.memory is not None
    lacking = dataclasses.replace(row.memory, free=np.asarray([-(2.0**29), -(2.0**31), 1.0]))
    rows = [divided.rows[0], dataclasses.replace(row, name="full", memory=lacking, error="2.50 GiB missing")]
    found, names = Reader(fragment(dataclasses.replace(divided, rows=rows))), divided.question.cluster.device_names
    assert f"does not fit: 512.0 MiB missing on {names[0]}, 2.00 GiB missing on {names[1]}" in found.text["td"]
    assert found.text["th"][-1] == "full"
