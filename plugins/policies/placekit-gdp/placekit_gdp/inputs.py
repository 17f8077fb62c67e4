"""A problem as the network sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from placekit_learn.op_types import type_shares
from placekit_learn.torch_features import positional_encoding
from torch import Tensor

from placekit_core import Problem

SIZES = 4
"""Features of a group that are sizes: run time, output bytes, input bytes, persistent bytes."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """The g groups of a problem, in topological order, for a network with room for D devices.

    Attributes:
        order: [g] group at each place of the order.
        type_bucket: [V] embedding of each type in the graph's vocabulary.
        type_share: [g, V] share of each type in the group's operations.
        numbers: [g, features(D, octaves)] run time on each device, `SIZES`, and sines and cosines of the place.
        source, target: [e] neighbours: the group at place `source` sends to the one at `target`. Every edge of the
            quotient graph counts in both directions, and edges between the same groups count once.
        allowed: [g, D] whether the device may run the group; none beyond the machine's own devices may.
    """

    order: NDArray[np.int32]
    type_bucket: Tensor
    type_share: Tensor
    numbers: Tensor
    source: Tensor
    target: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, problem: Problem, devices: int, buckets: int, octaves: int) -> Inputs:
        """The inputs that a problem gives a network with room for this many devices."""
        graph, g = problem.grouped, problem.g
        order = graph.topological_order
        place = np.empty(g, np.int64)
        place[order] = np.arange(g)
        u, v = place[graph.tensor_producer[graph.input_tensor]], place[graph.edge_op]
        both = np.unique(np.concatenate([v * g + u, u * g + v]))
        allowed = np.zeros((g, devices), np.bool_)
        allowed[:, : problem.cluster.size] = problem.allowed[order]
        bucket, share = type_shares(problem, place[problem.grouping.group_of], buckets)
        numbers = torch.as_tensor(_numbers(problem, devices)[order])
        return cls(
            order=order.astype(np.int32),
            type_bucket=torch.as_tensor(bucket),
            type_share=torch.as_tensor(share),
            numbers=torch.cat([numbers, positional_encoding(g, octaves)], dim=1),
            source=torch.as_tensor(both % g),
            target=torch.as_tensor(both // g),
            allowed=torch.as_tensor(allowed),
        )


def features(devices: int, octaves: int) -> int:
    """Number of the features in `Inputs.numbers`."""
    return devices + SIZES + 2 * octaves


def _numbers(problem: Problem, devices: int) -> NDArray[np.float32]:
    """[g, D + SIZES] features of the groups, in the order of their numbers, without the place."""
    graph = problem.grouped
    time_s = np.where(problem.allowed, problem.group_s, np.nan)
    mean_s = np.nanmean(time_s, axis=1)
    found = np.zeros((problem.g, devices + SIZES))
    found[:, : problem.cluster.size] = _scaled(np.nan_to_num(time_s), mean_s.mean())
    output = np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.n)
    read = np.bincount(graph.edge_op, graph.tensor_bytes[graph.input_tensor], minlength=graph.n)
    for column, values in enumerate((mean_s, output, read, problem.group_persistent_bytes), devices):
        found[:, column] = _scaled(values, values.mean())
    return found.astype(np.float32)


def _scaled(values: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """log(1 + x / mean): independent of the unit and of the graph's size."""
    return np.log1p(values / mean) if mean > 0 else np.zeros_like(values)
