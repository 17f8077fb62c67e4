"""The compiled twin of `plain.py`: episodes and their gradient, without a tensor of autograd in any decision.

The networks pass messages once per episode, so their outputs are fixed while an episode runs: a score per operation (SEL)
and, for PLC, what each operation adds to the hidden layer of its own decision (`own`) and of later ones on its device
(`sent`). The first layer of PLC is linear in the parts of its input, so their sum is exact. What remains per decision is a
softmax over the candidates and a hidden layer per device.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.compiled import restart
from placekit_scheduling.fields import row_of

from placekit_doppler.arrays import SLOPE, Episode
from placekit_doppler.steps import (
    after_placing,
    begin_candidates,
    begin_scores,
    candidate_probabilities,
    compiled,
    drawn_device,
    given_device,
    observe,
    place_logits,
    select,
    settle,
)

row = row_of(Episode)


@compiled
def bind_rest(p: Any, s: Any, group_device: NDArray[np.int64]) -> None:
    """Fill [g] the devices of all groups at the end of an episode: unread sources go where most memory is free."""
    for group in range(s.group_device.shape[0]):
        if s.group_device[group] < 0:
            best = -1
            for d in range(p.memory.shape[0]):
                if p.allowed[group, d] and (best < 0 or p.memory[d] - s.used[d] > p.memory[best] - s.used[best]):
                    best = d
            s.group_device[group] = best
            s.used[best] += p.group_bytes[group]
        group_device[group] = s.group_device[group]


@compiled
def run(
    p: Any, s: Any, fresh: Any, setting: Any, outputs: Any, w: Any, e: Any, seed: np.uint64, explore: float, how: int,
    follow: Any, teach: bool,
) -> None:  # fmt: skip
    """One episode: select and place until all kernels are placed; with `teach`, labeled with the teacher's decisions."""
    restart(s, fresh)
    w.random[0] = seed
    w.load[:] = 0.0
    w.total[:] = 0.0
    w.same_kind[:] = 0
    begin_scores(outputs, setting, e.weights, w)
    count = begin_candidates(s.missing, w)
    step = 0
    while count:
        op = select(setting, w, e, step, count, explore, how, follow)
        features, may = e.features[step], e.may[step]
        possible = observe(p, s, setting, w, op, features, may)
        device = given_device(setting, w, e, step, possible, explore, how, follow)
        if device < 0:
            entropy = place_logits(outputs, w, op, features, may, e.weights)
            device = drawn_device(w, e, step, possible, explore, how, entropy)
        count = settle(p, s, setting, w, e, step, count, device, teach)
        for j in range(w.total.shape[1]):
            w.total[device, j] += outputs.sent[op, j]
        step += 1
    bind_rest(p, s, e.group_device)


@compiled
def _climb_sel(w: Any, g: Any, count: int, label: int, weight: float, entropy_weight: float) -> float:
    log_total, entropy = candidate_probabilities(w, count)
    worth = 0.0
    for k in range(count):
        v = w.candidates[k]
        target = 1.0 if v == label else 0.0
        log_p = w.score[v] - log_total
        share = w.probability[k]
        g.score[v] += weight * (target - share) - entropy_weight * share * (log_p + entropy)
        worth += weight * target * log_p
    return worth


@compiled
def _climb_plc(outputs: Any, w: Any, e: Any, g: Any, step: int, weight: float, entropy_weight: float) -> float:
    devices, h = w.total.shape
    op, device = e.op[step], e.device[step]
    may, features = e.may[step], e.features[step]
    for j in range(h):
        w.total[device, j] -= outputs.sent[op, j]
        g.sent[op, j] += w.back[device, j]
    possible = 0
    for d in range(devices):
        possible += may[d]
    if possible <= 1 or not e.drawn[step, 1]:
        return 0.0
    entropy = place_logits(outputs, w, op, features, may, e.weights)
    worth = 0.0
    for d in range(devices):
        if not may[d]:
            continue
        target = 1.0 if d == e.label_device[step] else 0.0
        share = np.exp(w.logit[d])
        worth += weight * target * w.logit[d]
        slope = np.float32(weight * (target - share) - entropy_weight * share * (w.logit[d] + entropy))
        g.bias[0] += slope
        f0, f1, f2 = features[d, 0], features[d, 1], features[d, 2]
        f3, f4, f5 = features[d, 3], features[d, 4], features[d, 5]
        f6, f7, f8 = features[d, 6], features[d, 7], features[d, 8]
        for j in range(h):
            x = w.hidden[d, j]
            positive = x > 0
            g.out[j] += slope * (x if positive else SLOPE * x)
            y = slope * outputs.out[j] * (np.float32(1.0) if positive else SLOPE)
            g.own[op, j] += y
            w.back[d, j] += y
            g.device[0, j] += f0 * y
            g.device[1, j] += f1 * y
            g.device[2, j] += f2 * y
            g.device[3, j] += f3 * y
            g.device[4, j] += f4 * y
            g.device[5, j] += f5 * y
            g.device[6, j] += f6 * y
            g.device[7, j] += f7 * y
            g.device[8, j] += f8 * y
    return worth


@compiled
def climb(
    p: Any, fresh: Any, setting: Any, outputs: Any, w: Any, e: Any, g: Any, weight: NDArray[np.float64],
    entropy_weight: float,
) -> float:  # fmt: skip
    """Add the gradient of one episode to `g`.

    It is that of sum(weight * log_prob) + entropy_weight * sum(entropy), for the labels in the states of the episode, by the
    networks' present outputs. Returns sum(weight * log_prob).
    """
    steps = e.op.shape[0]
    worth = 0.0
    count = begin_candidates(fresh.missing, w)
    w.total[:] = 0.0
    begin_scores(outputs, setting, e.weights, w)
    for step in range(steps):
        op = e.op[step]
        if e.drawn[step, 0]:
            worth += _climb_sel(w, g, count, e.label_op[step], weight[step], entropy_weight)
        count = after_placing(p, w, op, count)
        for j in range(w.total.shape[1]):
            w.total[e.device[step], j] += outputs.sent[op, j]
    if setting.learned_plc:
        w.back[:] = 0.0
        for step in range(steps - 1, -1, -1):
            worth += _climb_plc(outputs, w, e, g, step, weight[step], entropy_weight)
    return worth


@compiled
def decided(p: Any, fresh: Any, setting: Any, outputs: Any, w: Any, e: Any, log_prob: NDArray[np.float64]) -> None:
    """Fill [T] log-probabilities of an episode's decisions by the networks' present outputs."""
    count = begin_candidates(fresh.missing, w)
    w.total[:] = 0.0
    begin_scores(outputs, setting, e.weights, w)
    for step in range(e.op.shape[0]):
        op, device = e.op[step], e.device[step]
        log_prob[step] = 0.0
        if e.drawn[step, 0]:
            log_total, _ = candidate_probabilities(w, count)
            log_prob[step] += w.score[op] - log_total
        count = after_placing(p, w, op, count)
        possible = 0
        for d in range(w.total.shape[0]):
            possible += e.may[step, d]
        if e.drawn[step, 1] and possible > 1:
            place_logits(outputs, w, op, e.features[step], e.may[step], e.weights)
            log_prob[step] += w.logit[device]
        for j in range(w.total.shape[1]):
            w.total[device, j] += outputs.sent[op, j]


@compiled
def run_all(
    p: Any, s: Any, fresh: Any, setting: Any, outputs: Any, w: Any, all_: Any, seed: NDArray[np.uint64], explore: float,
    how: int, follow: Any, teach: bool, first: int, last: int,
) -> None:  # fmt: skip
    """`run` for episodes `first` to `last` of `all_`, whose arrays have a leading dimension of episodes."""
    for i in range(first, last):
        run(p, s, fresh, setting, outputs, w, row(all_, i), seed[i], explore, how, follow, teach)


@compiled
def climb_all(
    p: Any, fresh: Any, setting: Any, outputs: Any, w: Any, all_: Any, g: Any, weight: NDArray[np.float64],
    entropy_weight: float, first: int, last: int,
) -> float:  # fmt: skip
    """`climb` for episodes `first` to `last`, all added to `g`."""
    worth = 0.0
    for i in range(first, last):
        worth += climb(p, fresh, setting, outputs, w, row(all_, i), g, weight[i], entropy_weight)
    return worth


@compiled
def decided_all(
    p: Any,
    fresh: Any,
    setting: Any,
    outputs: Any,
    w: Any,
    all_: Any,
    log_prob: NDArray[np.float64],
    first: int,
    last: int,
) -> None:
    """`decided` for episodes `first` to `last`."""
    for i in range(first, last):
        decided(p, fresh, setting, outputs, w, row(all_, i), log_prob[i])
