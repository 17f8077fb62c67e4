"""Certificates of bounds: what is proven holds, and what does not follow is refused."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from placekit_scheduling import Certificate, CertificateError, all_bounds, certify, proven_s
from placekit_scheduling.bounds import certificate, checker
from placekit_testing import strategies
from pydantic import ValidationError
from schedule_problems import machine, problem_of, small_problem

from placekit_core import GraphBuilder, Placements, Problem, installed

SIMPLE = ("critical_path", "group", "work", "communication", "window")


def least_s(problem: Problem, devices: np.ndarray) -> float:
    """The least makespan of placements [b, g] that fit, infinite if none does."""
    entry = installed().get("backend", "simulator")
    measured = entry.build(entry.component.config()).open(problem).evaluate(Placements.of(devices))
    return float(np.where(measured.fits, measured.value_s, np.inf).min())


def mended(problem: Problem, found: Certificate) -> float:
    """What a certificate proves after it was a file."""
    return proven_s(problem, Certificate.model_validate_json(found.model_dump_json()))


def many(seeds: range) -> list[tuple[Problem, float, Certificate]]:
    """Small problems with a kernel, their least makespans and certificates."""
    found = []
    for seed in seeds:
        problem, devices = small_problem(np.random.default_rng(seed))
        if problem.graph.kernel.any():
            found.append((problem, least_s(problem, devices), certify(problem)))
    return found


def test_no_placement_is_faster_than_what_is_proven() -> None:
    used = set()
    for problem, least, found in many(range(150)):
        assert 0 <= mended(problem, found) <= least
        used.add(found.argument.by)
    assert used >= {"communication", "window", "group"}


def test_it_proves_about_what_the_simple_arguments_do() -> None:
    shares, joined = [], 0
    for seed in range(60):
        problem = strategies.random_problem(np.random.default_rng(seed), n=30)
        if problem.graph.kernel.any():
            bounds = all_bounds(problem, refined=False)
            found = certify(problem)
            assert mended(problem, found) <= max(bounds.values()) * (1 + 1e-9)
            shares.append(found.bound_s / max(bounds[name] for name in SIMPLE))
            joined += len(found.joins)
    assert np.median(shares) == pytest.approx(1.0, abs=1e-7)
    assert min(shares) > 0.75
    assert joined > 100


def changed(data: dict[str, Any], rng: Generator) -> None:
    """Change one number of a certificate, or a branch."""
    claims = [key for key in ("heads", "tails") if data[key]]
    what = rng.choice(["bound", "argument", *claims * 3, *["join"] * 3 * bool(data["joins"])])
    factor = float(rng.choice([0.5, 0.999, 1.001, 1.5, 3.0, 1e-320, 1e-300, 1e99, 1e300]))
    if what == "bound":
        data["bound_s"] *= factor
    elif what == "argument":
        fields = data["argument"]
        name = str(rng.choice([key for key in fields if key != "by"]))
        if isinstance(fields[name], list) and fields["by"] != "group":
            fields[name][int(rng.integers(len(fields[name])))] *= factor
        elif isinstance(fields[name], list):
            fields[name] = fields[name][: int(rng.integers(len(fields[name])))]
        else:
            fields[name] = fields[name] * factor if isinstance(fields[name], float) else int(rng.integers(20))
    elif what == "join":
        branches = data["joins"][int(rng.integers(len(data["joins"])))]["branches"]
        branch = branches[int(rng.integers(len(branches)))]
        branch[int(rng.integers(len(branch)))] = int(rng.integers(max(map(max, branches)) + 2))
    else:
        row = data[what][int(rng.integers(len(data[what])))]
        column = int(rng.integers(len(row)))
        row[column] = row[column] * factor + float(rng.choice([0.0, 0.5]))
    if rng.random() < 0.7:
        data["bound_s"] *= float(rng.choice([1.0, 1.001, 2.0]))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_whatever_is_changed_nothing_wrong_is_proven() -> None:
    """Each change is refused, or what is left proves no more than is true."""
    rng, refused = np.random.default_rng(0), 0
    cases = [case for case in many(range(150)) if np.isfinite(case[1])]
    for problem, least, found in cases:
        for _ in range(12):
            data = json.loads(found.model_dump_json())
            changed(data, rng)
            try:
                assert proven_s(problem, Certificate.model_validate(data)) <= least
            except (CertificateError, ValidationError):
                refused += 1
    assert 0.3 < refused / (12 * len(cases)) < 0.95


def two_ways() -> Problem:
    """a -> (b, c) -> d on two devices: sending takes as long as all operations, so all are on one device."""
    b = GraphBuilder("two ways")
    [a] = b.add("a", outputs=[100])
    [left], [right] = (b.add(name, inputs=[a], outputs=[100]) for name in "bc")
    b.add("d", inputs=[left, right])
    return problem_of(b.build(), machine(2, latency_s=10.0), [1.0, 2.0, 3.0, 1.0])


def test_by_hand() -> None:
    """The second rule: d waits for b and c, whose branches are one after another on its device, or 10 s apart."""
    problem = two_ways()
    found = certify(problem)
    assert found.argument.by == "communication"
    assert found.bound_s == pytest.approx(7.0, rel=1e-6)
    assert mended(problem, found) == found.bound_s
    names = list(problem.graph.op_name)
    heads = dict(zip(names, np.asarray(found.heads)[:, 0].tolist(), strict=True))
    assert heads == pytest.approx({"a": 0.0, "b": 1.0, "c": 1.0, "d": 6.0}, rel=1e-6)


def test_memory_by_hand() -> None:
    """11 of 20 bytes are on the fast device at most, so what reads 9 of them is on the slow one: 9 / 5 * 10 s."""
    b = GraphBuilder("weights")
    seconds = []
    for i in range(4):
        b.add(f"op{i}", inputs=[b.source(f"w{i}", 5)])
        seconds += [[0.0, 0.0], [1.0, 10.0]]
    problem = problem_of(b.build(), machine(1, 1, memory=11), seconds, [0, 0, 1, 1, 2, 2, 3, 3])
    found = certify(problem)
    assert found.argument.by == "work"
    assert mended(problem, found) == pytest.approx(18.0, rel=1e-5)
    prices = found.model_dump()["argument"]["memory_prices"]
    found.argument.memory_prices[:] = [2 * p for p in prices]
    with pytest.raises(CertificateError, match="it claims 1"):
        proven_s(problem, found)


Change = Callable[[dict[str, Any]], Any]
WRONG: dict[str, tuple[Change, str]] = {
    "bound": (lambda c: c.update(bound_s=7.1), r"it claims 7.1 s, and no more than 6.99999\d+ s can be proven"),
    "head": (
        lambda c: c["heads"].__setitem__(1, [1.2]),
        r"the head of 'b' on .* is said to be 1.2 s, and no more than 1.0 s can",
    ),
    "tail": (
        lambda c: c["tails"].__setitem__(0, [9.0]),
        "the tail of 'a' on .* is said to be 9.0 s, and no more than 6.0 s can",
    ),
    "no branches": (lambda c: c.update(joins=[]), "the head of 'd' on .* is said to be"),
    "other branches": (lambda c: c["joins"][0].update(branches=[[1, 0], [2, 0]]), "or an operation is in two of them"),
    "empty branch": (lambda c: c["joins"][0].update(branches=[[1], []]), "a branch is empty"),
    "no edge": (lambda c: c["joins"][0].update(branches=[[0], [2]]), "operation 3 does not wait for operation 0"),
    "operation": (lambda c: c["argument"].update(operation=17), "there is no operation 17"),
    "another graph": (
        lambda c: c["heads"].append([0.0]),
        "it has 5 operations and 1 kind of devices, this problem 4 operations and 1 kind of devices",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_follow_is_named(what: str) -> None:
    problem = two_ways()
    data = copy.deepcopy(certify(problem).model_dump())
    change, said = WRONG[what]
    change(data)
    with pytest.raises(CertificateError, match=said):
        proven_s(problem, Certificate.model_validate(data))


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            {"by": "window", "after_s": 0.0, "before_s": 0.0, "prices": [0.0, 0.0]},
            "its prices of all streams come to 0.0 s",
        ),
        ({"by": "window", "after_s": 0.0, "before_s": 0.0, "prices": [1.0]}, "prices of 1 devices, the machine has 2"),
        ({"by": "work", "prices": [1.0, 1.0], "memory_prices": []}, "prices of 0 memories, the machine has 2"),
        ({"by": "group", "groups": [0, 1]}, "2 groups are not k times 2 devices and one"),
        ({"by": "group", "groups": [0, 1, 9]}, "3 groups are not"),
    ],
)
def test_arguments_that_prove_nothing(argument: dict[str, Any], said: str) -> None:
    data = {"program": "x", "machine": "y", "bound_s": 1.0, "argument": argument}
    with pytest.raises(CertificateError, match=said):
        proven_s(two_ways(), Certificate.model_validate(data))


@pytest.mark.parametrize("price", [5e-324, 1e-310, 1e-101, 1e101, 1e306, 1.7e308])
@pytest.mark.parametrize("by", ["window", "work"])
def test_prices_at_which_numbers_round_or_overflow_are_refused(by: str, price: float) -> None:
    """Three operations of 0.6 s are 1.8 s: with a price of 5e-324, each would count as a whole unit of the smallest number."""
    b = GraphBuilder("three")
    for i in range(3):
        b.add(f"op{i}")
    problem = problem_of(b.build(), machine(1), [0.6] * 3)
    more = {"after_s": 0.0, "before_s": 0.0} if by == "window" else {"memory_prices": [0.0]}
    data = {"program": "x", "machine": "y", "bound_s": 2.9, "argument": {"by": by, "prices": [price], **more}}
    with pytest.raises((CertificateError, ValidationError)):
        proven_s(problem, Certificate.model_validate(data))
    data["argument"]["prices"], data["bound_s"] = [min(max(price, 1e-99), 1e100)], 1.8 * (1 - 1e-9)
    assert proven_s(problem, Certificate.model_validate(data)) == data["bound_s"]


def test_operations_that_take_next_to_no_time_are_refused() -> None:
    problem = problem_of(two_ways().graph, machine(2), [1.0, 1e-200, 1.0, 1.0])
    with pytest.raises(CertificateError, match="an operation takes less than 1e-100 s"):
        certify(problem)


def test_joins_of_what_is_not_there_or_twice_are_refused() -> None:
    problem = two_ways()
    for change in (lambda joins: joins.append(joins[0]), lambda joins: joins[0].update(operation=9)):
        data = certify(problem).model_dump()
        change(data["joins"])
        with pytest.raises(CertificateError, match="an operation has several lists of branches, or there is no such"):
            proven_s(problem, Certificate.model_validate(data))


def test_long_branches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = two_ways()
    found = certify(problem)
    monkeypatch.setattr(checker, "LONGEST", 1)
    with pytest.raises(CertificateError, match=r"its branches have \d operations, more than 1"):
        proven_s(problem, found)


def test_large_graphs_and_graphs_without_kernels_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "LARGEST", 3)
    with pytest.raises(CertificateError, match="'two ways' has 4 operations"):
        certify(two_ways())
    b = GraphBuilder("nothing")
    b.source("w", 1)
    with pytest.raises(CertificateError, match="'nothing' has no kernel"):
        certify(problem_of(b.build(), machine(2), [0.0]))


def test_the_checker_shares_no_code_with_what_finds_bounds() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    modules = {
        "placekit_scheduling" * (n.level > 0) or n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)
    }
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {m for m in modules if m and m.startswith("placekit_")} == {"placekit_core"}
