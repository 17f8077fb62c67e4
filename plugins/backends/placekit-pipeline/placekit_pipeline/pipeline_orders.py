"""The order in which stages run their tasks, for each schedule of backend `pipeline`."""
# mypy: ignore-errors
# numba checks the types here.

from __future__ import annotations

import numpy as np
from placekit_scheduling.jit import inlined, inner

from placekit_pipeline.pipeline_sums import GPIPE, INFERENCE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, B, F, W


@inner
def batch_of(m, s, number):
    """The micro-batch that stage s runs as its `number`-th."""
    return np.int64(m.own[s * m.microbatches + number]) if m.rows > 1 else np.int64(number)


@inner
def _limit(m, s):
    """Largest number of micro-batches in flight in a stage."""
    if m.schedule == INTERLEAVED:
        # Megatron-LM's warm-up is 2 (p - rank - 1) + (v - 1) p tasks; here as a number of micro-batches of the first chunk
        p, v = np.int64(0), np.int64(0)
        for d in range(m.size):
            p += m.working[d] > 0
        for k in range(m.chunks):
            v += m.working[s % m.size + k * m.size] > 0
        return np.int64(m.rank[s]) if v == 1 else max(np.int64(m.rank[s]), 2 * p)
    return np.int64(m.rank[s])


@inner
def _is_full(m, s):
    """Whether stage s must complete a micro-batch before it may begin another one.

    Under `zero_bubble`, gradients of weights may wait as long as no stage keeps the activations of more micro-batches than
    1F1B keeps in its first stage (Qi et al. 2023, ZB-H1).
    """
    if m.schedule == ZERO_BUBBLE:
        most = np.int64(0)
        for d in range(m.size):
            most = max(most, np.int64(m.rank[d]))
        if m.started_f[s] - m.done_w[s] >= most:
            return True
    return m.started_f[s] - m.done_b[s] >= _limit(m, s)


@inner
def _ready_f(m, s, now):
    if m.started_f[s] >= m.count[s]:
        return False
    at = s * m.microbatches + batch_of(m, s, m.started_f[s])
    return m.missing_f[at] == 0 and m.ready_f[at] <= now and m.start_s[s] <= now


@inner
def _ready_b(m, s, now):
    if m.started_b[s] >= m.done_f[s]:
        return False
    at = s * m.microbatches + batch_of(m, s, m.started_b[s])
    return m.missing_b[at] == 0 and m.ready_b[at] <= now


@inner
def turns(m, count):
    """Chunks per device if Megatron-LM could interleave this placement, else 0.

    That requires the same number of chunks on every device, devices in turns along the network, and a number of micro-batches
    that is a multiple of the number of devices.
    """
    p, each = np.int64(m.todo[0]), np.int64(0)
    if m.schedule != INTERLEAVED or p < 2 or count % p != 0:
        return 0
    for d in range(m.size):
        own = 0
        for k in range(m.chunks):
            own += m.working[d + k * m.size] > 0
        if own > 0 and each > 0 and own != each:
            return 0
        each = max(each, own)
    for d in range(m.size):
        for k in range(each):
            s = d + k * m.size
            if m.working[s] > 0 and (each - k) * p - m.rank[s] != each * p - m.rank[d]:
                return 0
        if m.working[d] > 0 and not (0 <= each * p - m.rank[d] < p):
            return 0
    return each if each > 1 else 0


@inner
def _in_turns(m, d, now):
    """The next task in Megatron-LM's order (Narayanan et al. 2021, section 2.2), as 4 * stage + kind; -1 if it waits.

    A device runs p micro-batches on a chunk, then p on the next chunk. It begins with 2 (p - rank - 1) + (v - 1) p forward
    tasks; then forward and backward tasks alternate.
    """
    p, v = np.int64(m.todo[0]), np.int64(m.todo[1])
    if m.working[d] == 0:
        return np.int64(-1)
    ahead = back = np.int64(0)
    for k in range(v):
        ahead += m.started_f[d + k * m.size]
        back += m.started_b[d + k * m.size]
    warm = 2 * (p - (v * p - m.rank[d]) - 1) + (v - 1) * p
    if ahead < m.count[d] * v and ahead - back <= warm:
        s = d + (ahead % (p * v)) // p * m.size
        return 4 * s + F if _ready_f(m, s, now) else np.int64(-1)
    s = d + (v - 1 - (back % (p * v)) // p) * m.size
    return 4 * s + B if _ready_b(m, s, now) else np.int64(-1)


@inlined
def choose(m, d, backward, now):
    """The task that device d starts now, as 4 * stage + kind; -1 if it waits."""
    if m.schedule in (GPIPE, ONE_F_ONE_B, INFERENCE):  # one stage, a fixed order of its tasks
        s, kind = np.int64(d), F
        turn = m.schedule == ONE_F_ONE_B and backward and m.started_f[s] - m.started_b[s] >= m.rank[s]
        if turn or m.started_f[s] == m.count[s]:
            kind = B
        if kind == F and _ready_f(m, s, now):
            return 4 * s + F
        if kind == F and not (m.shared and m.schedule == ONE_F_ONE_B):
            return -1  # where rows share devices, the next micro-batch may wait for the one to go back
        return 4 * s + B if backward and _ready_b(m, s, now) else -1
    if m.chunks > 1 and m.todo[1] > 0:
        return _in_turns(m, d, now)
    best = np.int64(-1)
    for k in range(m.chunks - 1, -1, -1):  # backward tasks first, of later chunks first
        s = d + k * m.size
        ready = m.working[s] > 0 and backward and _ready_b(m, s, now)
        if ready and (best < 0 or m.started_b[s] < m.started_b[best]):
            best = s
    if best >= 0:
        return 4 * best + B
    p = max(np.int64(1), np.int64(m.todo[0]))
    key = np.int64(0)
    for k in range(m.chunks):
        s = d + k * m.size
        if m.working[s] == 0 or not _ready_f(m, s, now):
            continue
        if k == 0 and backward and _is_full(m, s):
            continue
        batch = np.int64(m.started_f[s])  # p micro-batches on each chunk in turn
        own = ((batch // p) * m.chunks + k) * p + batch % p
        if best < 0 or own < key:
            best, key = s, own
    if best >= 0:
        return 4 * best + F
    if m.schedule == ZERO_BUBBLE and m.started_w[d] < m.done_b[d]:
        return 4 * np.int64(d) + W
    return -1
