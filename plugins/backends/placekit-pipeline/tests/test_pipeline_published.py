"""The graphs that Tarnawski et al. published: their splits score as published, and `chain` finds the contiguous optima."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pipeline_reference as reference
import pytest
from placekit_pipeline.blocking import BlockingLatency
from placekit_pipeline.chain import ChainPolicy
from placekit_pipeline.max_load import MaxLoad

from placekit_core import Backend, Placements, Problem, Task
from placekit_core.run.evaluator import BudgetedEvaluator

MsrImporter = pytest.importorskip("placekit_formats.msr").MsrImporter
PUBLISHED = Path(os.environ.get("PLACEKIT_SAMPLES", ""), "msr")
pytestmark = pytest.mark.skipif("PLACEKIT_SAMPLES" not in os.environ, reason="PLACEKIT_SAMPLES is not set")


def load(name: str) -> Problem:
    [program] = MsrImporter(path=str(PUBLISHED / name)).load()
    assert program.cluster is not None
    return Problem.of(program.graph, program.cluster, None, program.costs)


@pytest.mark.parametrize(("name", "published_ms"), [("inference", 20.08), ("training", 49.40)])
def test_the_experts_split_scores_as_published(name: str, published_ms: float) -> None:
    problem = load(f"throughput/layer_bert24_{name}.json")
    forward = (np.asarray(problem.graph.columns["node_id"]) - 1) % 32 + 1  # node i + 32 is the gradient of node i
    stage = np.clip((forward - 5) // 4, 0, 5)  # the expert's: nodes 1-8, 9-12, 13-16, 17-20, 21-24, 25-32
    device = np.zeros(problem.g, np.int16)
    device[problem.grouping.group_of] = stage
    measured = MaxLoad().open(problem).evaluate(Placements.of(device[None]))
    assert measured.value_s[0] * 1e3 == pytest.approx(published_ms, abs=0.005)
    assert measured.value_s[0] == pytest.approx(reference.max_load(problem, device)[0], rel=1e-12)


@pytest.mark.parametrize(
    ("name", "backend", "optimum_ms"),
    [
        ("throughput/layer_bert24_inference.json", MaxLoad, 17.790),
        ("throughput/layer_bert24_training.json", MaxLoad, 41.746),
        pytest.param("throughput/operator_bert3_inference.json", MaxLoad, 27.919, marks=pytest.mark.slow),
        ("latency/layer_bert24_inference.json", BlockingLatency, 100.219),
    ],
)
def test_chain_finds_the_best_contiguous_split(name: str, backend: type[Backend], optimum_ms: float) -> None:
    problem = load(name)
    session = backend().open(problem)
    evaluator = BudgetedEvaluator(problem, session, objective=backend().objective)
    found = ChainPolicy().place(Task(problem, evaluator), np.random.default_rng(0))
    measured = session.evaluate(found.batch())
    assert measured.fits[0]
    assert measured.value_s[0] * 1e3 == pytest.approx(optimum_ms, abs=0.0006)
    expected = reference.max_load if backend is MaxLoad else reference.blocking_latency
    value_s, peaks = expected(problem, found.device)
    assert measured.value_s[0] == pytest.approx(value_s, rel=1e-12)
    assert measured.peak_bytes[0].tolist() == peaks
    bound = session.lower_bound()
    assert bound is not None
    assert bound <= measured.value_s[0]
