"""One decision of an episode, compiled: the candidates, the features of devices, probabilities, choices."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.compiled import UNCOUNTED, place, starts
from placekit_scheduling.jit import njit

from placekit_doppler.arrays import FEATURES, GREEDY, NEAR, NEAR_BEST, SAMPLE, SLOPE, Floats

compiled: Any = njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"}, **UNCOUNTED)


@compiled
def uniform(random: NDArray[np.uint64]) -> float:
    """The next number in [0, 1) of SplitMix64 (Steele et al. 2014)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    x = random[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return float(x >> np.uint64(11)) * 2.0**-53


@compiled
def begin_scores(outputs: Any, setting: Any, weights: Floats, w: Any) -> None:
    """Fill `w.score`."""
    for v in range(w.score.shape[0]):
        value = outputs.score[v]
        for f in range(setting.static.shape[1]):
            value += weights[FEATURES + f] * setting.static[v, f]
        w.score[v] = value


@compiled
def candidate_probabilities(w: Any, count: int) -> Any:
    """Fill `w.probability[:count]`; returns the logarithm of the denominator and the entropy."""
    most = -np.inf
    for k in range(count):
        most = max(most, w.score[w.candidates[k]])
    total = 0.0
    for k in range(count):
        w.probability[k] = np.exp(w.score[w.candidates[k]] - most)
        total += w.probability[k]
    log_total = np.log(total) + most
    entropy = 0.0
    for k in range(count):
        w.probability[k] /= total
        if w.probability[k] > 0:
            entropy -= w.probability[k] * (w.score[w.candidates[k]] - log_total)
    return log_total, max(entropy, 0.0)


@compiled
def choose_candidate(weight: NDArray[np.float64], count: int, w: Any, explore: float, how: int) -> int:
    """Index of the heaviest candidate or, with probability `explore`, of any (`GREEDY`) or one drawn by weight."""
    best = 0
    for k in range(1, count):
        if weight[k] > weight[best]:
            best = k
    if explore <= 0 or count == 1 or uniform(w.random) >= explore:
        return best
    u = uniform(w.random)
    if how == GREEDY:
        return min(int(u * count), count - 1)
    for k in range(count):
        u -= weight[k]
        if u < 0:
            return k
    return best


@compiled
def _remove(w: Any, v: int, count: int) -> int:
    last = w.candidates[count - 1]
    w.candidates[w.place[v]] = last
    w.place[last] = w.place[v]
    return count - 1


@compiled
def _add(w: Any, v: int, count: int) -> int:
    w.candidates[count] = v
    w.place[v] = count
    return count + 1


@compiled
def begin_candidates(missing: NDArray[np.int64], w: Any) -> int:
    """The candidates at the start; returns how many."""
    count = 0
    for v in range(missing.shape[0]):
        w.missing[v] = missing[v]
        if missing[v] == 0:
            count = _add(w, v, count)
    return count


@compiled
def after_placing(p: Any, w: Any, op: int, count: int) -> int:
    """Candidates after `op` was placed; returns how many."""
    count = _remove(w, op, count)
    w.missing[op] = -1
    for k in range(p.consumer_ptr[p.output_ptr[op]], p.consumer_ptr[p.output_ptr[op + 1]]):
        c = p.consumer_op[k]
        w.missing[c] -= 1
        if w.missing[c] == 0:
            count = _add(w, c, count)
    return count


@compiled
def highest_level(level: NDArray[np.float64], w: Any, count: int, loose: bool) -> int:
    """A candidate of highest level: the critical path's selection. Among ties any one if `loose`, otherwise the first."""
    highest = -np.inf
    for k in range(count):
        highest = max(highest, level[w.candidates[k]])
    ties = 0
    for k in range(count):
        ties += level[w.candidates[k]] >= highest * (1 - NEAR)
    countdown = int(uniform(w.random) * ties) if loose else 0
    best = -1
    for k in range(count):
        v = w.candidates[k]
        if level[v] < highest * (1 - NEAR):
            continue
        if not loose:
            best = v if best < 0 else min(best, v)
        elif countdown == 0:
            return int(v)
        countdown -= 1
    return int(best)


@compiled
def soonest_device(w: Any, loose: bool) -> int:
    """A device of earliest start and then earliest finish: the critical path's placing; ties as in `highest_level`."""
    devices = w.soonest.shape[0]
    ties = 0
    for d in range(devices):
        ties += w.soonest[d]
    countdown = int(uniform(w.random) * ties) if loose else 0
    for d in range(devices):
        if w.soonest[d]:
            if countdown == 0:
                return d
            countdown -= 1
    return 0


@compiled
def followed(w: Any, rank: NDArray[np.int64], count: int) -> int:
    """The candidate of lowest rank."""
    best = w.candidates[0]
    for k in range(1, count):
        if rank[w.candidates[k]] < rank[best]:
            best = w.candidates[k]
    return int(best)


@compiled
def followed_highest(level: NDArray[np.float64], w: Any, rank: NDArray[np.int64], count: int) -> int:
    """Among the candidates of highest level, the one of lowest rank."""
    highest = -np.inf
    for k in range(count):
        highest = max(highest, level[w.candidates[k]])
    best = -1
    for k in range(count):
        v = w.candidates[k]
        if level[v] >= highest * (1 - NEAR) and (best < 0 or rank[v] < rank[best]):
            best = v
    return int(best)


@compiled
def _beyond_the_paper(p: Any, s: Any, setting: Any, w: Any, op: int, features: Floats) -> None:
    """Fill the features beyond the paper's: see `FEATURES`."""
    devices = p.memory.shape[0]
    for d in range(devices):
        features[d, 5] = p.op_s[op, d] / setting.scale
        features[d, 6] = features[d, 7] = 0.0
        features[d, 8] = w.same_kind[setting.kind[op], d]
    for e in range(p.input_ptr[op], p.input_ptr[op + 1]):
        t = p.input_tensor[e]
        at = s.group_device[p.group[p.producer[t]]]
        for d in range(devices):
            if at >= 0 and d != at and s.arrival[t, d] < 0:
                features[d, 6] += (p.latency_s[at, d] + p.bytes_[t] * p.s_per_byte[at, d]) / setting.scale
    for k in range(p.consumer_ptr[p.output_ptr[op]], p.consumer_ptr[p.output_ptr[op + 1]]):
        reader = p.consumer_op[k]
        for e in range(p.input_ptr[reader], p.input_ptr[reader + 1]):
            t = p.input_tensor[e]
            at = s.group_device[p.group[p.producer[t]]]
            if p.producer[t] == op or at < 0:
                continue
            for d in range(devices):
                if d == at or s.arrival[t, d] >= 0:
                    features[d, 7] += p.bytes_[t] * setting.per_byte


@compiled
def observe(p: Any, s: Any, setting: Any, w: Any, op: int, features: Floats, may: Any) -> int:
    """Fill PLC's features, standardized over the devices that may run `op`, and `w.soonest`. Returns how many may."""
    devices = p.memory.shape[0]
    starts(p, s, op, w.ready, w.start)
    first = np.inf
    count = 0
    for d in range(devices):
        may[d] = w.start[d] < np.inf
        if may[d]:
            count += 1
            first = min(first, w.start[d])
        features[d, 0] = w.load[d]
        features[d, 1] = features[d, 3] = 0.0
        features[d, 2] = np.inf
        features[d, 4] = w.start[d] / setting.scale if may[d] else 0.0
    near = NEAR * max(first, setting.scale)
    least = np.inf
    for d in range(devices):
        if may[d] and w.start[d] <= first + near:
            least = min(least, p.op_s[op, d])
    for d in range(devices):
        w.soonest[d] = may[d] and w.start[d] <= first + near and p.op_s[op, d] <= least + near
    for e in range(p.input_ptr[op], p.input_ptr[op + 1]):
        u = p.producer[p.input_tensor[e]]
        d = s.group_device[p.group[u]]
        if not setting.kernel[u]:
            continue
        features[d, 1] += setting.cost[u]
        features[d, 2] = min(features[d, 2], s.start[u] / setting.scale)
        features[d, 3] = max(features[d, 3], s.finish[u] / setting.scale)
    for d in range(devices):
        if features[d, 2] == np.inf:
            features[d, 2] = 0.0
    _beyond_the_paper(p, s, setting, w, op, features)
    for f in range(FEATURES):
        mean = 0.0
        most = 0.0
        for d in range(devices):
            if may[d]:
                mean += features[d, f]
                most = max(most, abs(features[d, f]))
        mean /= max(count, 1)
        square = 0.0
        for d in range(devices):
            if may[d]:
                square += (features[d, f] - mean) ** 2
        deviation = np.sqrt(square / max(count, 1))
        for d in range(devices):
            same = deviation <= 1e-6 * most or not may[d] or not setting.seen[f]
            features[d, f] = 0.0 if same else (features[d, f] - mean) / deviation
    return count


@compiled
def place_logits(outputs: Any, w: Any, op: int, features: Floats, may: Any, weights: Floats) -> Any:
    """Fill `w.hidden` and `w.logit` of allowed devices, the latter with log-probabilities. Returns the entropy."""
    devices, h = w.total.shape
    most = -np.inf
    for d in range(devices):
        w.logit[d] = -np.inf
        if not may[d]:
            continue
        value = outputs.bias[0]
        f0, f1, f2 = features[d, 0], features[d, 1], features[d, 2]
        f3, f4, f5 = features[d, 3], features[d, 4], features[d, 5]
        f6, f7, f8 = features[d, 6], features[d, 7], features[d, 8]
        for j in range(h):
            x = (
                outputs.own[op, j] + w.total[d, j] + f0 * outputs.device[0, j] + f1 * outputs.device[1, j]
                + f2 * outputs.device[2, j] + f3 * outputs.device[3, j] + f4 * outputs.device[4, j] + f5 * outputs.device[5, j]
                + f6 * outputs.device[6, j] + f7 * outputs.device[7, j] + f8 * outputs.device[8, j]
            )  # fmt: skip
            w.hidden[d, j] = x
            value += outputs.out[j] * (x if x > 0 else SLOPE * x)
        for f in range(FEATURES):
            value += weights[f] * features[d, f]
        w.logit[d] = value
        most = max(most, w.logit[d])
    total = 0.0
    for d in range(devices):
        if may[d]:
            total += np.exp(w.logit[d] - most)
    log_total = np.log(total) + most
    entropy = 0.0
    for d in range(devices):
        if may[d]:
            w.logit[d] -= log_total
            entropy -= np.exp(w.logit[d]) * w.logit[d]
    return max(entropy, 0.0)


@compiled
def choose_device(w: Any, may: Any, possible: int, explore: float, how: int) -> int:
    """A device by the probabilities in `w.ready`, as `choose_candidate` does."""
    devices = may.shape[0]
    best = -1
    for d in range(devices):
        if may[d] and (best < 0 or w.ready[d] > w.ready[best]):
            best = d
    if explore <= 0 or uniform(w.random) >= explore:
        return best
    u = uniform(w.random)
    share = 1.0 / possible
    for d in range(devices):
        if may[d]:
            u -= share if how == GREEDY else w.ready[d]
            if u < 0:
                return d
    return best


@compiled
def select(setting: Any, w: Any, e: Any, step: int, count: int, explore: float, how: int, follow: Any) -> int:
    """Select one of the candidates, by `w.score`, and record it in `e`."""
    log_prob = entropy = 0.0
    e.drawn[step] = False
    if setting.learned_sel:
        e.drawn[step, 0] = how != NEAR_BEST or uniform(w.random) < explore
        if e.drawn[step, 0]:
            chance, rule = (1.0, SAMPLE) if how == NEAR_BEST else (explore, how)
            log_total, entropy = candidate_probabilities(w, count)
            op = w.candidates[choose_candidate(w.probability, count, w, chance, rule)]
            log_prob = w.score[op] - log_total
        else:
            op = followed(w, follow.rank, count)
    elif how == NEAR_BEST:
        op = followed_highest(setting.level, w, follow.rank, count)
    else:
        op = highest_level(setting.level, w, count, explore > 0)
    e.op[step], e.log_prob[step], e.entropy[step] = op, log_prob, entropy
    return int(op)


@compiled
def given_device(
    setting: Any, w: Any, e: Any, step: int, possible: int, explore: float, how: int, follow: Any
) -> int:  # fmt: skip
    """The device of the selected operation if PLC does not decide, otherwise -1."""
    device = follow.device[e.op[step]]
    if possible == 1 or not setting.learned_plc:
        same = how == NEAR_BEST and w.soonest[device]
        return int(device) if same else int(soonest_device(w, explore > 0))
    if how == NEAR_BEST and e.may[step, device] and uniform(w.random) >= explore:
        return int(device)
    return -1


@compiled
def drawn_device(w: Any, e: Any, step: int, possible: int, explore: float, how: int, entropy: float) -> int:
    """PLC's device for the selected operation, by the log-probabilities in `w.logit`, which have the given entropy."""
    chance, rule = (1.0, SAMPLE) if how == NEAR_BEST else (explore, how)
    may = e.may[step]
    e.drawn[step, 1] = True
    for d in range(may.shape[0]):
        w.ready[d] = np.exp(w.logit[d]) if may[d] else 0.0
    device = choose_device(w, may, possible, chance, rule)
    e.log_prob[step] += w.logit[device]
    e.entropy[step] += entropy
    return int(device)


@compiled
def settle(p: Any, s: Any, setting: Any, w: Any, e: Any, step: int, count: int, device: int, teach: bool) -> int:
    """Place the selected operation; returns the number of candidates afterwards."""
    op = e.op[step]
    e.device[step], e.log_prob[step] = device, min(e.log_prob[step], 0.0)
    e.label_op[step] = highest_level(setting.level, w, count, True) if teach else op
    e.label_device[step] = soonest_device(w, True) if teach else device
    place(p, s, op, device)
    w.load[device] += p.op_s[op, device] / setting.scale
    w.same_kind[setting.kind[op], device] += 1
    return int(after_placing(p, w, op, count))
