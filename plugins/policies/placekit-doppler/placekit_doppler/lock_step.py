"""Episodes of the dual policy in lock step, in torch: at each step one decision of every episode, on [n, ...] tensors.

So messages can be passed anew for every decision (`message_passing=per_step`, appendix H.3); `episodes.py`, whose loops are
compiled, passes them once per episode. The list schedulers and the choices stay compiled; the networks are not.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from placekit_scheduling.compiled import State, place, restart
from placekit_scheduling.fields import row_of
from torch import Tensor

from placekit_doppler.arrays import FEATURES, Episode, Follow, Work
from placekit_doppler.episodes import bind_rest, row
from placekit_doppler.network import Dual, NetworkOutputs
from placekit_doppler.prepared import Prepared
from placekit_doppler.steps import (
    begin_candidates,
    compiled,
    drawn_device,
    given_device,
    observe,
    select,
    settle,
)

AT_ONCE = 32
"""Episodes whose gradients are computed together. Memory grows with their number, but with `per_step` not with the steps."""


_state = row_of(State)
_work = row_of(Work)


@compiled
def _begin(states: Any, fresh: Any, works: Any, count: NDArray[np.int64]) -> None:
    for i in range(count.shape[0]):
        restart(_state(states, i), fresh)
        count[i] = begin_candidates(fresh.missing, _work(works, i))


@compiled
def _select(
    p: Any, states: Any, setting: Any, works: Any, all_: Any, step: int, count: NDArray[np.int64], explore: float,
    how: int, follow: Any,
) -> None:  # fmt: skip
    """Select each episode's next operation by the `score` of its work, and fill the features that PLC sees."""
    for i in range(count.shape[0]):
        w, e = _work(works, i), row(all_, i)
        op = select(setting, w, e, step, count[i], explore, how, follow)
        observe(p, _state(states, i), setting, w, op, e.features[step], e.may[step])


@compiled
def _place(
    p: Any, states: Any, setting: Any, works: Any, all_: Any, step: int, count: NDArray[np.int64], explore: float,
    how: int, follow: Any, teach: bool, entropy: NDArray[np.float64],
) -> None:  # fmt: skip
    """Place each episode's operation by the `logit` of its work: log-probabilities with entropies [n] `entropy`."""
    for i in range(count.shape[0]):
        s, w, e = _state(states, i), _work(works, i), row(all_, i)
        possible = 0
        for d in range(p.memory.shape[0]):
            possible += e.may[step, d]
        device = given_device(setting, w, e, step, possible, explore, how, follow)
        if device < 0:
            device = drawn_device(w, e, step, possible, explore, how, entropy[i])
        count[i] = settle(p, s, setting, w, e, step, count[i], device, teach)


@compiled
def _replay(p: Any, states: Any, all_: Any, step: int) -> None:
    for i in range(all_.op.shape[0]):
        place(p, _state(states, i), all_.op[i, step], all_.device[i, step])


@compiled
def _end(p: Any, states: Any, all_: Any) -> None:
    for i in range(all_.op.shape[0]):
        bind_rest(p, _state(states, i), row(all_, i).group_device)


class _StepOutputs:
    """The networks' outputs for n episodes (k kernels, D devices) in the present states of their list schedulers."""

    def __init__(self, module: Dual, ready: Prepared, e: Episode) -> None:
        n = len(e.op)
        self.module, self.ready = module, ready
        stacked: Any = (np.stack([x] * n) for x in ready.fresh)
        self.states = State(*stacked)
        self.number = np.zeros(ready.problem.graph.n, np.int64)
        self.number[ready.features.op] = np.arange(ready.steps)
        self.group = ready.problem.grouping.group_of[ready.features.op]
        weights = torch.from_numpy(e.weights)
        self.linear = weights[:, :FEATURES, None]
        self.added = weights[:, FEATURES:] @ ready.inputs.static.T
        self.placed = np.zeros((n, ready.steps), np.bool_)
        if not module.dynamic:
            self.tensors: NetworkOutputs = module(ready.inputs)

    def observe(self) -> None:
        """Take in the new states of the list schedulers."""
        self.placed = self.states.missing[:, self.ready.features.op] < 0
        if self.module.dynamic:
            self.tensors = self.module(self.ready.inputs, self.dynamic())

    def dynamic(self) -> Tensor:
        """[n, k, DYNAMIC] of each operation: 1 if placed, its start and finish over the makespan so far; otherwise 0."""
        op = self.ready.features.op
        start, finish = (np.where(self.placed, x[:, op], 0.0) for x in (self.states.start, self.states.finish))
        makespan = finish.max(axis=1, keepdims=True, initial=0.0)
        unit = np.where(makespan > 0, makespan, 1.0)
        return torch.from_numpy(np.stack([self.placed, start / unit, finish / unit], axis=2).astype(np.float32))

    def scores(self) -> Tensor:
        """[n, k] of SEL."""
        return self.tensors.score + self.added

    def devices(self, op: NDArray[np.int64], features: NDArray[np.float32]) -> Tensor:
        """[n, D] logits of PLC, for one operation of each episode and [n, D, FEATURES]."""
        seen = torch.from_numpy(features)
        at = np.where(self.placed, self.states.group_device[:, self.group], -1)
        on = torch.from_numpy((at[:, None, :] == np.arange(seen.shape[1])[:, None]).astype(np.float32))
        number, own = torch.from_numpy(self.number[op]), self.tensors.own
        chosen = own[number] if own.dim() == 2 else own[torch.arange(len(number)), number]
        return self.module.place_logits(chosen, on @ self.tensors.sent, seen) + (seen @ self.linear).squeeze(2)


def run(
    module: Dual, ready: Prepared, e: Episode, seed: NDArray[np.uint64], explore: float, how: int, follow: Follow,
    teach: bool,
) -> None:  # fmt: skip
    """Fill n episodes, `e` with a leading dimension n, as `episodes.run_all` does. `seed`: [n]."""
    n, steps = e.op.shape
    outputs = _StepOutputs(module, ready, e)
    works = Work(*(np.zeros((n, *x.shape), x.dtype) for x in ready.works[0]))
    works.random[:, 0] = seed
    count, entropy = np.zeros(n, np.int64), np.zeros(n)
    p, states, setting = ready.fixed, outputs.states, ready.setting
    _begin(states, ready.fresh, works, count)
    for step in range(steps):
        outputs.observe()
        works.score[:, ready.features.op] = outputs.scores().numpy()
        _select(p, states, setting, works, e, step, count, explore, how, follow)
        if setting.learned_plc:
            logits = outputs.devices(e.op[:, step], np.ascontiguousarray(e.features[:, step]))
            log_p, entropies = _distribution(logits, torch.from_numpy(e.may[:, step]))
            works.logit[:], entropy[:] = log_p.numpy(), entropies.numpy()
        _place(p, states, setting, works, e, step, count, explore, how, follow, teach, entropy)
    _end(p, states, e)


def decisions(module: Dual, ready: Prepared, e: Episode, labels: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """The log-probabilities and entropies, [n] each, of each step of n episodes, with autograd.

    They are those of SEL's and PLC's draws in the states of the episodes, or of the labels there; 0 where neither drew.
    """
    outputs = _StepOutputs(module, ready, e)
    chosen, to = (e.label_op, e.label_device) if labels else (e.op, e.device)
    for step in range(e.op.shape[1]):
        outputs.observe()
        may = e.may[:, step]
        drew = e.drawn[:, step, 0], e.drawn[:, step, 1] & (may.sum(axis=1) > 1)
        candidates = outputs.states.missing[:, ready.features.op] == 0
        logits = outputs.devices(e.op[:, step], np.ascontiguousarray(e.features[:, step]))
        sel = _decided(outputs.scores(), candidates, outputs.number[chosen[:, step]], drew[0])
        plc = _decided(logits, may, to[:, step], drew[1])
        yield sel[0] + plc[0], sel[1] + plc[1]
        _replay(ready.fixed, outputs.states, e, step)


def decided(module: Dual, ready: Prepared, e: Episode, labels: bool = False) -> tuple[Tensor, Tensor]:
    """`decisions` of all steps, [n, T] each."""
    n, steps = e.op.shape
    found = list(decisions(module, ready, e, labels))
    log_prob, entropy = (torch.stack(x, dim=1) for x in zip(*found, strict=True)) if steps else torch.zeros(2, n, 0)
    return log_prob, entropy


def gradients(
    module: Dual, ready: Prepared, e: Episode, weight: NDArray[np.float64], entropy_weight: float
) -> tuple[float, dict[str, NDArray[Any]]]:
    """sum(weight * log_prob) of the labels, and the gradient of that plus entropy_weight * sum(entropy), by autograd.

    With `per_step` no step depends on the networks' outputs at another one, so each step's gradient is taken at once.
    """
    n, steps = e.op.shape
    names, parameters = zip(*module.named_parameters(), strict=True)
    total = [torch.zeros_like(x) for x in parameters]
    worth = 0.0
    for first in range(0, n, AT_ONCE):
        some: Any = (x[first : first + AT_ONCE] for x in e)
        part = Episode(*some)
        share = torch.from_numpy(weight[first : first + AT_ONCE])
        objective = torch.zeros(())
        for step, (log_prob, entropy) in enumerate(decisions(module, ready, part, labels=True)):
            gain = (share[:, step] * log_prob).sum()
            worth += gain.item()
            objective = objective + gain + entropy_weight * entropy.sum()
            if module.dynamic or step == steps - 1:
                found = torch.autograd.grad(objective, parameters, allow_unused=True, materialize_grads=True)
                for x, added in zip(total, found, strict=True):
                    x += added
                objective = torch.zeros(())
    return worth, {name: x.numpy() for name, x in zip(names, total, strict=True)}


def _distribution(logits: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """[n, m] logarithms of probabilities, -inf where not `allowed`, and [n] entropies."""
    log_p = logits.masked_fill(~allowed, -torch.inf).log_softmax(dim=1)
    return log_p, -(log_p.exp() * log_p.masked_fill(~allowed, 0.0)).sum(dim=1)


def _decided(
    logits: Tensor, allowed: NDArray[np.bool_], chosen: NDArray[np.int64], drew: NDArray[np.bool_]
) -> tuple[Tensor, Tensor]:
    """[n] log-probabilities of the choices, and entropies; both 0 where nothing was drawn."""
    active = torch.from_numpy(drew)
    log_p, entropy = _distribution(logits, torch.from_numpy(allowed | ~drew[:, None]))
    return (
        torch.where(active, log_p.gather(1, torch.from_numpy(chosen)[:, None]).squeeze(1), 0.0),
        torch.where(active, entropy, 0.0),
    )
