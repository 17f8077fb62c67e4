"""The policy of episodes in parts: its small networks, what it draws, and its gradient. This is ours, not the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling.tracing import Traced
from torch import Tensor, nn

from placekit_core import Placement, Placements, Problem
from placekit_doppler.part_moves import KINDS, NUMBERS, begin, finish
from placekit_doppler.parts import DEVICE_FEATURES, GROUP_FEATURES, Flow, View, empty_view, flow_of, see

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Seen:
    """A placement of a problem, as the policy sees it.

    Attributes:
        device, priority: [g] of the placement.
        view: of its schedule.
        flow: the graph of groups.
    """

    device: NDArray[np.int16]
    priority: NDArray[np.float32]
    view: View
    flow: Flow


@dataclass(frozen=True, eq=False)
class Changes:
    """b changes of one placement, m of whose groups may move.

    Attributes:
        placements: [b] after each change.
        kind, seed, device: [b] what was drawn: the kind, the row of `groups` where it begins, the device.
        decided: [b, 3] whether kind, seed and device had a part in the change.
        groups: [m, GROUP_FEATURES] features of the groups that may move.
        devices: [b, D, DEVICE_FEATURES] features of the devices for each part.
        may: [b, D] where each part may go.
    """

    placements: Placements
    kind: NDArray[np.int64]
    seed: NDArray[np.int64]
    device: NDArray[np.int64]
    decided: NDArray[np.bool_]
    groups: NDArray[np.float32]
    devices: NDArray[np.float32]
    may: NDArray[np.bool_]


class PartPolicy(nn.Module):
    """Three distributions: of the kind, of the group where a change begins (SEL), and of its device (PLC).

    Their inputs are features over the makespan and over means, so that nothing depends on the scale of a program or on how
    many operations it has. At first all are uniform.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.kind = nn.Parameter(torch.zeros(len(KINDS)))
        last = nn.Linear(hidden, 1), nn.Linear(hidden, 1)
        self.sel = nn.Sequential(nn.Linear(GROUP_FEATURES, hidden), nn.Tanh(), last[0])
        self.plc = nn.Sequential(nn.Linear(DEVICE_FEATURES, hidden), nn.Tanh(), last[1])
        for layer in last:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def of_group(self, groups: Tensor) -> Tensor:
        """[m] log-probabilities of the groups, from their features [m, GROUP_FEATURES]."""
        logits: Tensor = self.sel(groups).squeeze(-1)
        return torch.log_softmax(logits, 0)

    def of_device(self, devices: Tensor, may: Tensor) -> Tensor:
        """[b, D] log-probabilities of the devices, from features and where the parts may go; uniform if nowhere."""
        logits: Tensor = self.plc(devices).squeeze(-1)
        return torch.log_softmax(logits.masked_fill(~may, -1e9), -1)


def seen(problem: Problem, placement: Placement, traced: Traced, flow: Flow | None = None) -> Seen:
    """A placement with priorities whose run was `traced`; `flow`, if it was made already."""
    assert placement.priority is not None
    flow = flow_of(problem) if flow is None else flow
    view = empty_view(flow)
    device = placement.device.astype(np.int16)
    priority = placement.priority.astype(np.float32)
    see(
        flow, device, priority, traced.start_s, traced.end_s, traced.cause.astype(np.int64), int(traced.last),
        traced.copy_tensor.astype(np.int64), traced.copy_dst.astype(np.int64), view,
    )  # fmt: skip
    return Seen(device, priority, view, flow)


def draw(policy: PartPolicy, at: Seen, n: int, rng: Generator) -> Changes:
    """n changes of a placement, each by itself."""
    flow, devices = at.flow, at.flow.allowed.shape[1]
    groups = at.view.group[flow.movable]
    random = rng.random((n, NUMBERS + 3))
    with torch.no_grad():
        kind = _drawn(torch.softmax(policy.kind, 0).expand(n, -1), random[:, NUMBERS])
        row = _drawn(policy.of_group(torch.from_numpy(groups)).exp().expand(n, -1), random[:, NUMBERS + 1])
    part, count = np.zeros((n, len(at.device)), np.int64), np.zeros(n, np.int64)
    features, may = np.zeros((n, devices, DEVICE_FEATURES), np.float32), np.zeros((n, devices), np.bool_)
    begin(flow, at.view, at.device, kind, flow.movable[row], random, part, count, features, may)
    with torch.no_grad():
        to = _drawn(policy.of_device(torch.from_numpy(features), torch.from_numpy(may)).exp(), random[:, NUMBERS + 2])
    device, priority = np.tile(at.device, (n, 1)), np.tile(at.priority, (n, 1))
    decided = np.zeros((n, 3), np.bool_)
    finish(flow, at.view, kind, part, count, to, may, random, device, priority, decided)
    return Changes(Placements.of(device, priority), kind, row, to, decided, groups, features, may)


def log_prob(policy: PartPolicy, changes: Changes) -> Tensor:
    """[b, 3] log-probabilities, with autograd, of kind, seed and device; 0 where they had no part in the change."""
    rows = torch.arange(len(changes.kind))
    found = torch.stack(
        [
            torch.log_softmax(policy.kind, 0)[torch.from_numpy(changes.kind)],
            policy.of_group(torch.from_numpy(changes.groups))[torch.from_numpy(changes.seed)],
            policy.of_device(torch.from_numpy(changes.devices), torch.from_numpy(changes.may))[
                rows, torch.from_numpy(changes.device)
            ],
        ],
        dim=1,
    )
    return torch.where(torch.from_numpy(changes.decided), found, torch.zeros(()))


def gradients(
    policy: PartPolicy, changes: Sequence[Changes], weight: Sequence[Floats], entropy_weight: float = 0.0
) -> dict[str, NDArray[Any]]:
    """Gradient of sum(weight[b] * log_prob[b]) + entropy_weight * the entropy of the kinds, by parameter, to be ascended."""
    kind = torch.log_softmax(policy.kind, 0)
    objective = -entropy_weight * (kind.exp() * kind).sum()
    for each, w in zip(changes, weight, strict=True):
        objective = objective + (torch.from_numpy(w).float()[:, None] * log_prob(policy, each)).sum()
    names, parameters = zip(*policy.named_parameters(), strict=True)
    found = torch.autograd.grad(objective, parameters, allow_unused=True, materialize_grads=True)
    return {name: x.numpy() for name, x in zip(names, found, strict=True)}


def _drawn(probability: Tensor, random: Floats) -> NDArray[np.int64]:
    """[n] indices drawn by the rows of probabilities [n, k]."""
    cumulative = np.cumsum(probability.double().numpy(), axis=1)
    below = cumulative < (random * cumulative[:, -1])[:, None]
    return np.asarray(np.minimum(below.sum(axis=1), cumulative.shape[1] - 1), np.int64)
