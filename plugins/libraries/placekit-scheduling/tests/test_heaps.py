"""heaps.py beside Python's heapq, and fields.py."""

from __future__ import annotations

import heapq
import itertools
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from numba import njit, typeof
from numpy.typing import NDArray
from placekit_scheduling.fields import builder_of, copier_of, fields, lay_out, numba_type, row_of, unpacked
from placekit_scheduling.heaps import (
    NEAR,
    SPAN,
    drop_event,
    enqueue,
    insert_event,
    pop,
    push,
    push_event,
    sift,
    without_root,
)
from placekit_scheduling.jit import UNCOUNTED

SEEDS = range(5)


def test_integers() -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        heap, size, expected = np.zeros(100, np.int64), 0, list[int]()
        for _ in range(300):
            if size and (size == len(heap) or rng.random() < 0.45):
                assert heap[0] == heapq.heappop(expected)
                size = pop(heap, size)
            else:
                key = int(rng.integers(0, 30))
                heapq.heappush(expected, key)
                size = push(heap, size, key)
            assert size == len(expected)


def test_events() -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        times, numbers, expected = np.zeros(100), np.zeros(100, np.int32), list[tuple[float, int]]()
        for number in range(300):
            if expected and (len(expected) == len(times) or rng.random() < 0.45):
                assert (times[0], numbers[0]) == heapq.heappop(expected)
                drop_event(times, numbers, len(expected))
            else:
                event = float(rng.integers(0, 9)), number  # many at the same time
                push_event(times, numbers, len(expected), *event)
                heapq.heappush(expected, event)


def test_a_sorted_list_of_events() -> None:
    """As many as a list may have, and over the end of its arrays."""
    for seed in SEEDS:
        rng, first, end = np.random.default_rng(seed), 0, 0
        times, numbers, expected = np.zeros(SPAN), np.zeros(SPAN, np.int32), list[tuple[float, int]]()
        for number in rng.permutation(2 * SPAN).tolist():
            if expected and (len(expected) == NEAR or rng.random() < 0.4):
                assert (times[first], numbers[first]) == heapq.heappop(expected)
                first += 1
            event = float(rng.integers(0, 9)), number
            first, end = insert_event(times, numbers, first, end, *event)
            heapq.heappush(expected, event)
            assert [*zip(times[first:end], numbers[first:end], strict=True)] == sorted(expected)


def test_keys_that_change() -> None:
    """After any change of one key the first is the least by (key, rank), and every position is right."""
    for seed in SEEDS:
        rng, n = np.random.default_rng(seed), 40
        heap, key, rank, position = np.zeros(n, np.int64), np.zeros(n), rng.permutation(n), np.zeros(n, np.int64)
        for i, number in enumerate(rng.permutation(n).tolist()):
            heap[i], key[number] = number, rng.integers(0, 9)
            sift(heap, key, rank, position, i + 1, i)
        for _ in range(100):
            number = int(rng.integers(n))
            key[number] = rng.integers(0, 9)
            sift(heap, key, rank, position, n, position[number])
            assert heap[0] == min(range(n), key=lambda v: (key[v], rank[v]))
            assert heap[position].tolist() == list(range(n))


def test_queues_that_share_arrays() -> None:
    """Three queues of numbers, by their keys or first come first served."""
    for seed, ranked in itertools.product(SEEDS, (False, True)):
        rng, n = np.random.default_rng(seed), 200
        head, tail = np.full(3, -1, np.int32), np.zeros(3, np.int32)
        key, child, link = rng.permutation(n), np.zeros(n, np.int32), np.zeros(n, np.int32)
        expected: list[list[tuple[int, int]]] = [[], [], []]
        for number in range(n):
            q = int(rng.integers(3))
            heapq.heappush(expected[q], (int(key[number]) if ranked else number, number))
            enqueue(q, number, ranked, head, tail, key, child, link)
            for some in range(3):
                while expected[some] and rng.random() < 0.3:
                    first = int(head[some])
                    assert first == heapq.heappop(expected[some])[1]
                    head[some] = without_root(first, key, child, link) if ranked else link[first]
                assert (head[some] < 0) == (not expected[some])


class Some(NamedTuple):
    number: int
    share: float
    flag: bool
    row: NDArray[np.int32]
    table: Annotated[NDArray[np.float64], 2]


class Arrays(NamedTuple):
    b: NDArray[np.int64]
    a: NDArray[np.float64]


def test_the_type_of_a_tuple_is_that_of_its_annotations() -> None:
    assert numba_type(Some) == typeof(Some(1, 0.5, True, np.zeros(2, np.int32), np.zeros((2, 2))))


def test_functions_of_all_fields() -> None:
    """By name, whatever the order of the fields; rows of what is stacked are views."""
    row, copy = row_of(Arrays), copier_of(Arrays)
    build = builder_of(Arrays, "values", {"a": "values.view(np.float64)", "b": "values[1:]"})

    @njit(**UNCOUNTED)
    def halved(stacked: Arrays, i: int) -> float:
        part, total = row(stacked, i), 0.0
        for k in range(part.a.shape[0]):
            part.a[k] /= 2
            total += part.a[k]
        return total + part.b[0]

    stacked = Arrays(b=np.array([[1, 2], [3, 4]]), a=np.array([[2.0, 4.0], [6.0, 8.0]]))
    assert halved(stacked, 1) == 7 + 3
    assert stacked.a.tolist() == [[2, 4], [3, 4]]
    other = Arrays(b=np.zeros((2, 2), np.int64), a=np.zeros((2, 2)))
    copy(other, stacked)
    assert [x.tolist() for x in other] == [x.tolist() for x in stacked]
    made = build(np.array([0.5, 2.0]).view(np.int64))
    assert made.a.tolist() == [0.5, 2.0]
    assert made.b.tolist() == [np.float64(2.0).view(np.int64)]


LAYOUT = [
    *fields("number", "n"),
    *fields("flag", "double loud"),
    *fields("ints", "given"),
    *fields("scratch_floats", "sums", "n"),
]


def _helper(m: Any) -> Any:
    return m.given[0]


def _total(m: Any, start: int) -> float:
    """Sums of what is given."""
    total = float(start + first(m))
    for i in range(m.n):
        if not m.double and not m.loud:
            total += m.given[i]
        elif m.double or m.loud:
            total += 2 * m.given[i] if m.double else 3 * m.given[i]
        m.sums[i] = total
    return total


first = unpacked(LAYOUT, _helper, name="first")


@pytest.mark.slow
def test_a_function_of_all_fields_and_its_variants() -> None:
    """A variant in which flags are known gives what the function gives that reads them, and has no more arguments."""
    for double, loud in ((False, False), (True, False), (False, True)):
        flags = {"double": double, "loud": loud}
        packed = lay_out(LAYOUT, {"n": 3, **flags}, {"given": np.array([5, 7, 9])}, {"n": 3})
        expected = 1 + 5 + (2 if double else 3 if loud else 1) * (5 + 7 + 9)
        for name, known in (("any", {}), ("double", {"double": double}), ("both", flags)):
            function = unpacked(LAYOUT, _total, name=f"total_{name}_{double}_{loud}", known=known)
            sums = np.zeros(packed.scratch_floats)
            assert function(packed.ints, packed.floats, np.zeros(packed.scratch_ints, np.int32), sums, 1) == expected
            assert sums[-1] == expected
            assert function.py_func.__doc__ == "Sums of what is given."
