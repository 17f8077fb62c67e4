"""Episodes of the dual policy in plain torch, decision by decision: Algorithm 3 of Yao et al. 2026 (`policy.engine=plain`).

Each step of an episode

1. passes messages over the graph: in the first step only (section 5.3), or in every one (`message_passing=per_step`, H.3);
2. selects an operation by SEL's softmax over the candidates, all of whose predecessors are placed (5.2);
3. computes the features of the devices (D.2), and places the operation by PLC's softmax over those with room (5.2).

`network.py` has the networks, `features.py` the static features (D.1). `episodes.py` and `steps.py` are the compiled twin.
Shapes: the graph has n operations and t tensors. k of the operations are kernels, and T = k steps place one each. D devices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from placekit_scheduling import ListScheduler
from torch import Tensor
from torch.distributions import Categorical

from placekit_doppler.arrays import FEATURES, GREEDY, NEAR, NEAR_BEST, SAMPLE, Episode, Follow
from placekit_doppler.features import standardised
from placekit_doppler.network import Dual
from placekit_doppler.prepared import Prepared
from placekit_doppler.steps import uniform


def episode(dual: Dual, ready: Prepared, e: Episode, decide: Repeat) -> tuple[Tensor, Tensor]:
    """[T] log-probabilities of the decisions of an episode, of SEL's and PLC's together, and [T] their entropies.

    `decide` makes the decisions. Decisions that the networks do not make add 0. Both results have gradients.
    """
    state, log_prob, entropy = State(ready), torch.zeros(ready.steps), torch.zeros(ready.steps)
    weights = torch.from_numpy(e.weights)  # `Doppler`'s noise; 0 in the paper
    for step in range(ready.steps):
        if step == 0 or dual.dynamic:
            score, own, h = dual(ready.inputs, state.dynamic() if dual.dynamic else None)

        candidates = state.candidates
        numbers = state.number[candidates]
        pi_sel = _softmax(score[numbers] + ready.inputs.static[numbers] @ weights[FEATURES:])
        op, counted = decide.sel(state, step, pi_sel.probs)
        if counted is not None:
            log_prob[step] += pi_sel.log_prob(torch.tensor(candidates.index(counted)))
            entropy[step] += pi_sel.entropy()

        devices, features = decide.observed(state, step, op)
        placed = state.on_device() @ h
        logits = dual.place_logits(own[state.number[op]], placed, features) + features @ weights[:FEATURES]
        pi_plc = _softmax(logits[devices])
        device, counted = decide.plc(state, step, devices, pi_plc.probs)
        if counted is not None:
            log_prob[step] += pi_plc.log_prob(torch.tensor(devices.index(counted)))
            entropy[step] += pi_plc.entropy()

        state.place(op, device)
    e.group_device[:] = state.scheduler.devices()
    return log_prob, entropy


def _softmax(logits: Tensor) -> Any:
    return Categorical(logits=logits, validate_args=False)


class State:
    """The state of an episode (section 5.1): the candidates, and what the features of the devices depend on.

    Attributes:
        scheduler: a list schedule of the operations placed so far.
        candidates: the operations that can be placed next: all of their predecessors are placed.
        device: [n] device of each operation placed so far; otherwise -1.
        number: [n] number of each kernel among the k kernels.
    """

    def __init__(self, ready: Prepared) -> None:
        n = ready.problem.graph.n
        self.ready, self.problem, self.setting = ready, ready.problem, ready.setting
        self.scheduler = ListScheduler(ready.problem)
        self.candidates: list[int] = self.scheduler.ready.tolist()
        self.device, self.number = np.full(n, -1), np.zeros(n, np.int64)
        self.number[ready.features.op] = np.arange(ready.steps)

    def place(self, op: int, device: int) -> None:
        """Place a candidate."""
        before = set(self.candidates)
        self.scheduler.place(op, device)
        self.device[op] = device
        # the order of `steps.py`, so that the same random numbers select the same operations
        self.candidates[self.candidates.index(op)] = self.candidates[-1]
        self.candidates = self.candidates[:-1] + [v for v in self.scheduler.ready.tolist() if v not in before]

    def on_device(self) -> Tensor:
        """[D, k] ones for the operations that are on each device."""
        return torch.from_numpy(
            self.device[self.ready.features.op] == np.arange(self.problem.cluster.size)[:, None]
        ).float()

    def dynamic(self) -> Tensor:
        """[k, DYNAMIC] of each operation: 1 if it is placed, its start and finish over the makespan so far; otherwise 0."""
        op, s = self.ready.features.op, self.scheduler
        placed, unit = self.device[op] >= 0, s.makespan_s or 1.0
        columns = [placed, np.where(placed, s.start_s[op], 0.0) / unit, np.where(placed, s.finish_s[op], 0.0) / unit]
        return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))

    def devices(self, op: int) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """[D] whether a candidate may go to each device, and [D, FEATURES] the features of the devices (D.2).

        Each feature is standardized over the devices where the operation may go, so that its unit cancels out; elsewhere it is 0.
        """
        graph, s, each = self.problem.graph, self.scheduler, np.arange(self.problem.cluster.size)
        start_s = s.earliest_start(op)
        may = np.isfinite(start_s)
        u = graph.tensor_producer[graph.inputs(op)]
        u = u[graph.kernel[u]]  # predecessors, each as often as the operation reads tensors of it
        here = self.device[u, None] == each
        first_s = np.where(here, s.start_s[u, None], np.inf).min(axis=0, initial=np.inf)
        columns = [
            # the paper's
            np.where(self.device[:, None] == each, self.problem.op_s, 0.0).sum(axis=0),
            np.where(here, self.setting.cost[u, None], 0.0).sum(axis=0),
            np.where(here.any(axis=0), first_s, 0.0),
            np.where(here, s.finish_s[u, None], 0.0).max(axis=0, initial=0.0),
            start_s,
            # ours, see `FEATURES`
            self.problem.op_s[op],
            *self._transfers(op),
            (self.device[self.setting.kind == self.setting.kind[op], None] == each).sum(axis=0),
        ]
        features = np.zeros((len(each), FEATURES), np.float32)
        features[may] = standardised(np.stack(columns, axis=1)[may], 1e-6)
        features[:, ~self.setting.seen] = 0
        return may, features

    def _transfers(self, op: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[D] seconds of the transfers that a candidate needs on each device, and that its readers save there."""
        graph, routes, s = self.problem.graph, self.problem.cluster.routes, self.scheduler
        home = s.group_device[self.problem.grouping.group_of[graph.tensor_producer]]  # [t]; -1 if it has no device yet
        there = (home[:, None] == np.arange(self.problem.cluster.size)) | (s.arrival_s >= 0)  # [t, D]
        size = graph.tensor_bytes[:, None]
        read = np.array([t for t in graph.inputs(op) if home[t] >= 0], np.int64)
        needed_s = routes.latency_s[home[read]] + size[read] * routes.s_per_byte[home[read]]
        readers = graph.edge_op[np.isin(graph.input_tensor, graph.outputs(op))]
        inputs = [t for reader in readers for t in graph.inputs(reader)]
        beside = np.array([t for t in inputs if graph.tensor_producer[t] != op and home[t] >= 0], np.int64)
        return (
            np.where(there[read], 0.0, needed_s).sum(axis=0),
            np.where(there[beside], size[beside] * routes.s_per_byte.mean(), 0.0).sum(axis=0),
        )

    def highest(self) -> list[int]:
        """The candidates of highest b-level: the critical path selects one of them."""
        level = self.setting.level[self.candidates]
        return [v for v, b in zip(self.candidates, level, strict=True) if b >= level.max() * (1 - NEAR)]

    def soonest(self, op: int) -> list[int]:
        """The devices where a candidate starts earliest and, of these, ends earliest: the critical path takes one of them."""
        start_s, op_s = self.scheduler.earliest_start(op), self.problem.op_s[op]
        near = NEAR * max(start_s.min(), self.setting.scale)
        first = start_s <= start_s.min() + near
        return list(np.flatnonzero(first & (op_s <= op_s[first].min() + near)))


class Repeat:
    """The decisions of an episode `e` once more; with `labels`, its labels are counted, not its decisions."""

    def __init__(self, e: Episode, labels: bool = False) -> None:
        self.e = e
        self.op, self.device = (e.label_op, e.label_device) if labels else (e.op, e.device)

    def sel(self, state: State, step: int, p: Tensor) -> tuple[int, int | None]:
        """The operation of a step, and the one whose log-probability counts, if SEL decided by the probabilities `p`."""
        return self.e.op[step], self.op[step] if self.e.drawn[step, 0] else None

    def observed(self, state: State, step: int, op: int) -> tuple[list[int], Tensor]:
        """The devices where the operation may go, and [D, FEATURES] features of all."""
        return list(np.flatnonzero(self.e.may[step])), torch.from_numpy(self.e.features[step])

    def plc(self, state: State, step: int, devices: list[int], p: Tensor) -> tuple[int, int | None]:
        """The device of a step, and the one whose log-probability counts, if PLC decided by the probabilities `p`."""
        return self.e.device[step], self.device[step] if self.e.drawn[step, 1] else None


class Draw(Repeat):
    """The decisions of a new episode, which are written to `e`.

    SEL and PLC take the likeliest or, with probability `explore`, any (`GREEDY`: the ε-greedy approach of section 5.2) or one
    by its probability (`SAMPLE`). With `NEAR_BEST`, they decide with probability `explore`, by the probabilities; otherwise
    the placement `follow` does. The critical path decides in place of an SEL or PLC that is not learned. With `teach`, the
    labels are its decisions in the same states (stage I, equation 2).
    """

    def __init__(self, e: Episode, seed: np.uint64, explore: float, how: int, follow: Follow, teach: bool) -> None:
        super().__init__(e)
        self.random = np.array([seed])
        self.explore, self.how, self.follow, self.teach = explore, how, follow, teach
        self.near = how == NEAR_BEST

    def sel(self, state: State, step: int, p: Tensor) -> tuple[int, int | None]:
        learned = state.setting.learned_sel
        drawn = learned and (not self.near or self._chance() < self.explore)
        if drawn:
            op = self._draw(state.candidates, p)
        elif self.near:
            op = min(state.candidates if learned else state.highest(), key=lambda v: self.follow.rank[v])
        else:
            op = self._one_of(state.highest(), self.explore > 0)
        self.e.op[step], self.e.drawn[step, 0] = op, drawn
        return super().sel(state, step, p)

    def observed(self, state: State, step: int, op: int) -> tuple[list[int], Tensor]:
        self.e.may[step], self.e.features[step] = state.devices(op)
        return super().observed(state, step, op)

    def plc(self, state: State, step: int, devices: list[int], p: Tensor) -> tuple[int, int | None]:
        op, drawn = self.e.op[step], False
        soonest, followed = state.soonest(op), self.follow.device[op]
        if len(devices) == 1 or not state.setting.learned_plc:
            device = followed if self.near and followed in soonest else self._one_of(soonest, self.explore > 0)
        elif self.near and followed in devices and self._chance() >= self.explore:
            device = followed
        else:
            device, drawn = self._draw(devices, p), True
        self.e.device[step], self.e.drawn[step, 1] = device, drawn
        self.e.label_op[step] = self._one_of(state.highest(), True) if self.teach else op
        self.e.label_device[step] = self._one_of(soonest, True) if self.teach else device
        return super().plc(state, step, devices, p)

    def _draw(self, choices: list[int], p: Tensor) -> int:
        explore, how = (1.0, SAMPLE) if self.near else (self.explore, self.how)
        if explore <= 0 or len(choices) == 1 or self._chance() >= explore:
            return choices[int(p.argmax())]
        below = (torch.full_like(p, 1 / len(p)) if how == GREEDY else p).cumsum(0)
        return choices[min(int((below <= self._chance()).sum()), len(p) - 1)]

    def _one_of(self, ties: list[int], at_random: bool) -> int:
        return ties[int(self._chance() * len(ties))] if at_random else min(ties)

    def _chance(self) -> float:
        """The next random number in [0, 1)."""
        return float(uniform(self.random))


def run(
    dual: Dual, ready: Prepared, e: Episode, seed: NDArray[np.uint64], explore: float, how: int, follow: Follow, teach: bool
) -> None:  # fmt: skip
    """Fill n episodes, `e` with a leading dimension n, as `episodes.run_all` does. `seed`: [n]."""
    for i, one in enumerate(_rows(e)):
        log_prob, entropy = episode(dual, ready, one, Draw(one, seed[i], explore, how, follow, teach))
        e.log_prob[i], e.entropy[i] = log_prob, entropy


def log_probs(dual: Dual, ready: Prepared, e: Episode) -> NDArray[np.float64]:
    """[n, T] log-probabilities of the decisions of n episodes by the networks' present parameters."""
    return np.array([episode(dual, ready, one, Repeat(one))[0].numpy() for one in _rows(e)], np.float64)


def gradients(
    dual: Dual, ready: Prepared, e: Episode, weight: NDArray[np.float64], entropy_weight: float
) -> tuple[float, dict[str, NDArray[Any]]]:
    """sum(weight * log_prob) of the labels of n episodes, and the gradient of that plus entropy_weight * sum(entropy)."""
    worth = 0.0
    for x in dual.parameters():
        x.grad = torch.zeros_like(x)
    for i, one in enumerate(_rows(e)):
        log_prob, entropy = episode(dual, ready, one, Repeat(one, labels=True))
        gain = (torch.from_numpy(weight[i]) * log_prob).sum()
        objective = gain + entropy_weight * entropy.sum()
        if objective.requires_grad:  # it does not if the networks decided nothing
            torch.autograd.backward(objective)
        worth += gain.item()
    return worth, {name: x.grad.numpy() for name, x in dual.named_parameters() if x.grad is not None}


def _rows(e: Episode) -> list[Episode]:
    """The episodes of `e`, whose arrays have a leading dimension."""
    return [Episode(*row) for row in zip(*e, strict=True)]
