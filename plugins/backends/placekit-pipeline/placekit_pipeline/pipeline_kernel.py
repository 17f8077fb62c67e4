"""The compiled evaluation of `pipeline`: sums for each stage, kept up to date move by move, then the events of a step.

A stage is what a device runs; under `interleaved`, one of the contiguous chunks that it runs. Stage s runs on device s % D.
"""
# mypy: ignore-errors
# numba checks the types here; the signature of `pipeline` is explicit.

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from numba import njit
from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import fields, view_of
from placekit_scheduling.heaps import drop_event, push_event
from placekit_scheduling.jit import UNCOUNTED

from placekit_pipeline.nets import AGAIN, AHEAD, BACK, END, SOURCE

REBUILD = 8  # from one moved group in so many on, all is summed anew
F, B, W, U = range(4)  # forward, backward, gradients of weights, update: entries of `stage_s`
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, INFERENCE = range(5)
STEP, THROUGHPUT, TOKEN = range(3)
LATE = 5  # AHEAD that only backward tasks need
PAIRS = 6  # kinds of messages between two stages: those of nets, and LATE

FIELDS = [
    *fields("number", "g size stages chunks nets stores blocks channels sets microbatches schedule objective"),
    *fields("flag", "overlap record"),
    # nets and stores with the groups that read or hold them, and the rows of each group; see `nets.Nets`, `stores.Stores`
    *fields("ints", "kind producer ptr reader late group_ptr group_net"),
    *fields("ints", "store_once store_ptr holder holder_ptr group_store"),
    *fields("ints", "works held_ptr held block_group"),
    # which groups wait for each other, the order of these sets, and whose chunk a group without forward operations is in
    *fields("ints", "tied leader before_ptr before"),
    *fields("floats", "group_s group_bytes work_bytes bytes_ store_bytes block_bytes latency_s s_per_byte"),
    # kept between calls
    *fields("scratch_ints", "known", "one"),
    *fields("scratch_ints", "stage", "g"),
    *fields("scratch_ints", "readers prompt", "counts"),
    *fields("scratch_ints", "holders", "store_counts"),
    *fields("scratch_ints", "working", "stages"),
    *fields("scratch_ints", "messages", "pairs"),
    *fields("scratch_floats", "stage_s", "parts"),
    *fields("scratch_floats", "used copies once saved", "stages"),
    *fields("scratch_floats", "sent", "pairs"),
    # the work on one placement
    *fields("scratch_ints", "wanted", "g"),
    *fields("scratch_ints", "level set_device", "sets"),
    *fields("scratch_ints", "chunk_at", "levels"),
    *fields("scratch_ints", "rank todo started_f done_f started_b done_b started_w done_w missing_start", "stages"),
    *fields("scratch_ints", "busy task_stage task_kind", "size"),
    *fields("scratch_ints", "missing_f missing_b", "tasks"),
    *fields("scratch_ints", "event_number", "events"),
    *fields("scratch_floats", "event_s", "events"),
    *fields("scratch_floats", "ready_f ready_b", "tasks"),
    *fields("scratch_floats", "start_s finish_s", "stages"),
    *fields("scratch_floats", "in_flight most transient recompute update_at load", "size"),
    *fields("scratch_floats", "channel_free", "channels"),
    # a recorded run: tasks (stage, kind, micro-batch, start, end), messages (from, to, kind, micro-batch, start, end)
    *fields("scratch_ints", "counted", "recorded_counts"),
    *fields("scratch_ints", "task_row", "recorded_tasks"),
    *fields("scratch_floats", "task_time", "recorded_tasks"),
    *fields("scratch_ints", "message_row", "recorded_messages"),
    *fields("scratch_floats", "message_time", "recorded_messages"),
]
"""Everything that `pipeline` works on."""

View = namedtuple("View", [field.name for field in FIELDS])
_view = view_of(View, FIELDS)


# ---- the sums of the stages


@njit(cache=True, **UNCOUNTED)
def _account(m, x, sign):
    """Add what net x sends to the messages between stages; with `sign` -1, take it away."""
    home, kind = np.int64(m.stage[m.producer[x]]), np.int64(m.kind[x])
    for s in range(m.stages):
        if s == home or m.readers[x * m.stages + s] == 0:
            continue
        k = kind
        if kind == AHEAD and m.prompt[x * m.stages + s] == 0:
            k = LATE
        pair = (k * m.stages + home) * m.stages + s
        m.messages[pair] += sign
        m.sent[pair] += sign * m.bytes_[x]
        if kind == SOURCE and s % m.size != home % m.size:
            m.copies[s] += sign * m.bytes_[x]


@njit(cache=True, **UNCOUNTED)
def _hold(m, y, stage, sign):
    """One group more or less on `stage` that holds store y: its bytes are there while there is one."""
    at = y * m.stages + stage
    before = m.holders[at]
    m.holders[at] = before + sign
    if before == 0 or before + sign == 0:
        if m.store_once[y]:
            m.once[stage] += sign * m.store_bytes[y]
        else:
            m.saved[stage] += sign * m.store_bytes[y]


@njit(cache=True, **UNCOUNTED)
def _put(m, group, stage, sign):
    """Add the seconds and bytes of a group to a stage; with `sign` -1, take them away."""
    d = stage % m.size
    for part in range(4):
        m.stage_s[stage * 4 + part] += sign * m.group_s[(group * m.size + d) * 4 + part]
    m.used[stage] += sign * m.group_bytes[group]
    m.working[stage] += sign * m.works[group]


@njit(cache=True, **UNCOUNTED)
def _move(m, group, to):
    here = np.int64(m.stage[group])
    first, end = m.group_ptr[group], m.group_ptr[group + 1]
    for i in range(first, end):
        _account(m, np.int64(m.group_net[i]), -1)
    _put(m, group, here, -1)
    m.stage[group] = to
    _put(m, group, to, 1)
    for i in range(first, end):
        x = np.int64(m.group_net[i])
        if m.producer[x] != group:
            prompt = 1
            for j in range(m.ptr[x], m.ptr[x + 1]):
                if m.reader[j] == group:
                    prompt = 1 - m.late[j]
            m.readers[x * m.stages + here] -= 1
            m.readers[x * m.stages + to] += 1
            m.prompt[x * m.stages + here] -= prompt
            m.prompt[x * m.stages + to] += prompt
        _account(m, x, 1)
    for i in range(m.holder_ptr[group], m.holder_ptr[group + 1]):
        _hold(m, np.int64(m.group_store[i]), here, -1)
        _hold(m, np.int64(m.group_store[i]), to, 1)


@njit(cache=True, **UNCOUNTED)
def _build(m):
    """All sums of the placement `wanted` from the beginning."""
    for s in range(m.stages):
        m.used[s] = m.copies[s] = m.once[s] = m.saved[s] = 0.0
        m.working[s] = 0
        for part in range(4):
            m.stage_s[s * 4 + part] = 0.0
    for i in range(PAIRS * m.stages * m.stages):
        m.messages[i], m.sent[i] = 0, 0.0
    for i in range(m.nets * m.stages):
        m.readers[i] = m.prompt[i] = 0
    for i in range(m.stores * m.stages):
        m.holders[i] = 0
    for group in range(m.g):
        m.stage[group] = m.wanted[group]
        _put(m, group, np.int64(m.stage[group]), 1)
    for x in range(m.nets):
        for j in range(m.ptr[x], m.ptr[x + 1]):
            at = x * m.stages + m.stage[m.reader[j]]
            m.readers[at] += 1
            m.prompt[at] += 1 - m.late[j]
        _account(m, x, 1)
    for y in range(m.stores):
        for j in range(m.store_ptr[y], m.store_ptr[y + 1]):
            _hold(m, y, np.int64(m.stage[m.holder[j]]), 1)


@njit(cache=True, **UNCOUNTED)
def _chunks(m, device):
    """The stage of each group under `interleaved`; False if a device has too many chunks.

    The level of a group is the largest number of changes of device on a path of the forward phase to it. The groups of one
    device and level are a chunk; so no two chunks wait for each other.
    """
    limit = m.size * m.chunks
    for i in range(limit * m.size):
        m.chunk_at[i] = -1
    for i in range(m.sets):
        m.set_device[i] = -1
    for group in range(m.g):
        i = m.tied[group]
        if m.set_device[i] >= 0 and m.set_device[i] != device[group]:
            return False  # groups that wait for each other must share a device
        m.set_device[i] = device[group]
    for i in range(m.sets):
        level = 0
        for j in range(m.before_ptr[i], m.before_ptr[i + 1]):
            u = m.before[j]
            level = max(level, m.level[u] + (m.set_device[u] != m.set_device[i]))
        m.level[i] = level
        if level >= limit:
            return False
    for group in range(m.g):
        if m.leader[group] == group and m.works[group] > 0:
            m.chunk_at[m.level[m.tied[group]] * m.size + device[group]] = 0
    for d in range(m.size):
        count = 0
        for level in range(limit):
            if m.chunk_at[level * m.size + d] == 0:
                m.chunk_at[level * m.size + d] = count
                count += 1
        if count > m.chunks:
            return False
    for group in range(m.g):
        chunk = m.chunk_at[m.level[m.tied[m.leader[group]]] * m.size + device[group]]
        m.wanted[group] = device[group] + m.size * max(chunk, 0)
    return True


# ---- the events of a step


@njit(cache=True, **UNCOUNTED)
def _seconds(m, pair_bytes, a, b):
    """Seconds of a message between the devices of two stages."""
    a, b = a % m.size, b % m.size
    if a == b:
        return 0.0
    return m.latency_s[a * m.size + b] + pair_bytes * m.s_per_byte[a * m.size + b]


@njit(cache=True, **UNCOUNTED)
def _send(m, kind, a, b, batch, now):
    """Send the message of one kind from stage a to stage b; it waits for the channels of its route. Returns its arrival."""
    seconds = _seconds(m, m.sent[(kind * m.stages + a) * m.stages + b], a, b)
    route = (a % m.size) * m.size + b % m.size
    start = now
    if a % m.size != b % m.size:
        for i in range(m.held_ptr[route], m.held_ptr[route + 1]):
            start = max(start, m.channel_free[m.held[i]])
        for i in range(m.held_ptr[route], m.held_ptr[route + 1]):
            m.channel_free[m.held[i]] = start + seconds
    if m.record:
        i = np.int64(m.counted[1])
        m.message_row[4 * i], m.message_row[4 * i + 1] = a, b
        m.message_row[4 * i + 2], m.message_row[4 * i + 3] = kind, batch
        m.message_time[2 * i], m.message_time[2 * i + 1] = start, start + seconds
        m.counted[1] += 1
    return start + seconds


@njit(cache=True, **UNCOUNTED)
def _ranks(m):
    """Stages on the longest path from each stage to the end of the forward phase; False if stages wait for each other."""
    for s in range(m.stages):
        m.rank[s] = 1
    for _ in range(m.stages + 1):
        changed = False
        for a in range(m.stages):
            for b in range(m.stages):
                if m.messages[(AHEAD * m.stages + a) * m.stages + b] > 0 and m.rank[a] < m.rank[b] + 1:
                    m.rank[a] = m.rank[b] + 1
                    changed = True
        if not changed:
            return True
    return False


@njit(cache=True, **UNCOUNTED)
def _limit(m, s):
    """Micro-batches that may be in flight in a stage at the same time."""
    if m.schedule == INTERLEAVED:
        # Megatron-LM's warm-up is 2 (p - rank - 1) + (v - 1) p tasks; in micro-batches of the first chunk
        p, v = np.int64(0), np.int64(0)
        for d in range(m.size):
            p += m.working[d] > 0
        for k in range(m.chunks):
            v += m.working[s % m.size + k * m.size] > 0
        return np.int64(m.rank[s]) if v == 1 else max(np.int64(m.rank[s]), 2 * p)
    return np.int64(m.rank[s])


@njit(cache=True, **UNCOUNTED)
def _full(m, s):
    """Whether stage s may begin no further micro-batch before it has ended another one.

    Under `zero_bubble`, too, whose gradients of weights may wait while activations of no more micro-batches are there than
    1F1B keeps in the first stage (Qi et al. 2023, ZB-H1).
    """
    if m.schedule == ZERO_BUBBLE:
        most = np.int64(0)
        for d in range(m.size):
            most = max(most, np.int64(m.rank[d]))
        if m.started_f[s] - m.done_w[s] >= most:
            return True
    return m.started_f[s] - m.done_b[s] >= _limit(m, s)


@njit(cache=True, **UNCOUNTED)
def _ready_f(m, s, count, now):
    at = s * m.microbatches + m.started_f[s]
    return m.started_f[s] < count and m.missing_f[at] == 0 and m.ready_f[at] <= now and m.start_s[s] <= now


@njit(cache=True, **UNCOUNTED)
def _ready_b(m, s, count, now):
    at = s * m.microbatches + m.started_b[s]
    return m.started_b[s] < count and m.done_f[s] > m.started_b[s] and m.missing_b[at] == 0 and m.ready_b[at] <= now


@njit(cache=True, **UNCOUNTED)
def _turns(m, count):
    """Chunks of every device if the placement is one that Megatron-LM interleaves, else 0.

    Every device has as many chunks, the devices take turns along the network, and the micro-batches are a multiple of them.
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


@njit(cache=True, **UNCOUNTED)
def _in_turns(m, d, count, now):
    """The next task in Megatron-LM's order (Narayanan et al. 2021, section 2.2), as 4 * stage + kind; -1 if it waits.

    Micro-batches take turns in groups of p on each chunk. 2 (p - rank - 1) + (v - 1) p forward tasks come first, then a
    forward and a backward task in turn.
    """
    p, v = np.int64(m.todo[0]), np.int64(m.todo[1])
    if m.working[d] == 0:
        return np.int64(-1)
    ahead = back = np.int64(0)
    for k in range(v):
        ahead += m.started_f[d + k * m.size]
        back += m.started_b[d + k * m.size]
    warm = 2 * (p - (v * p - m.rank[d]) - 1) + (v - 1) * p
    if ahead < count * v and ahead - back <= warm:
        s = d + (ahead % (p * v)) // p * m.size
        return 4 * s + F if _ready_f(m, s, count, now) else np.int64(-1)
    s = d + (v - 1 - (back % (p * v)) // p) * m.size
    return 4 * s + B if _ready_b(m, s, count, now) else np.int64(-1)


@njit(cache=True, **UNCOUNTED)
def _choose(m, d, count, backward, now):
    """Stage and kind of the task that device d starts now, as 4 * stage + kind; -1 if it waits."""
    if m.schedule in (GPIPE, ONE_F_ONE_B, INFERENCE):  # one stage, a fixed order of its tasks
        s, kind = np.int64(d), F
        turn = m.schedule == ONE_F_ONE_B and backward and m.started_f[s] - m.started_b[s] >= m.rank[s]
        if turn or m.started_f[s] == count:
            kind = B
        if kind == F:
            return 4 * s + F if _ready_f(m, s, count, now) else -1
        return 4 * s + B if backward and _ready_b(m, s, count, now) else -1
    if m.chunks > 1 and m.todo[1] > 0:
        return _in_turns(m, d, count, now)
    best = np.int64(-1)
    for k in range(m.chunks - 1, -1, -1):  # backward tasks first, of later chunks first
        s = d + k * m.size
        ready = m.working[s] > 0 and backward and _ready_b(m, s, count, now)
        if ready and (best < 0 or m.started_b[s] < m.started_b[best]):
            best = s
    if best >= 0:
        return 4 * best + B
    p = max(np.int64(1), np.int64(m.todo[0]))
    key = np.int64(0)
    for k in range(m.chunks):
        s = d + k * m.size
        if m.working[s] == 0 or not _ready_f(m, s, count, now):
            continue
        if k == 0 and backward and _full(m, s):
            continue
        batch = np.int64(m.started_f[s])  # in turns of p micro-batches per chunk
        own = ((batch // p) * m.chunks + k) * p + batch % p
        if best < 0 or own < key:
            best, key = s, own
    if best >= 0:
        return 4 * best + F
    if m.schedule == ZERO_BUBBLE and m.started_w[d] < m.done_b[d]:
        return 4 * np.int64(d) + W
    return -1


@njit(cache=True, **UNCOUNTED)
def _announce(m, kind, a, b, batch, arrival, n_events):
    """The message reaches stage b at `arrival`: note it, and look at the stage's device then if it was the last."""
    at = b * m.microbatches + batch
    last = False
    if kind == AHEAD:
        m.missing_f[at] -= 1
        m.ready_f[at] = max(m.ready_f[at], arrival)
        last = m.missing_f[at] == 0
        arrival = m.ready_f[at]
    elif kind in (BACK, LATE):
        m.missing_b[at] -= 1
        m.ready_b[at] = max(m.ready_b[at], arrival)
        last = m.missing_b[at] == 0
        arrival = m.ready_b[at]
    if last:
        push_event(m.event_s, m.event_number, n_events, arrival, m.size + b % m.size)
        return n_events + 1
    return n_events


@njit(cache=True, **UNCOUNTED)
def _begin(m, count, backward):
    """Set up the state of a run of `count` micro-batches. Returns the number of events."""
    n_events = np.int64(0)
    p = np.int64(0)
    for d in range(m.size):
        m.busy[d] = 0
        m.in_flight[d] = m.most[d] = m.update_at[d] = 0.0
        p += m.working[d] > 0
    m.todo[0] = p
    if m.chunks > 1:
        m.todo[1] = _turns(m, count) if backward else 0
    for c in range(m.channels):
        m.channel_free[c] = 0.0
    for s in range(m.stages):
        m.started_f[s] = m.done_f[s] = m.started_b[s] = m.done_b[s] = m.started_w[s] = m.done_w[s] = 0
        m.start_s[s] = m.finish_s[s] = 0.0
        ahead = back = 0
        for a in range(m.stages):
            ahead += m.messages[(AHEAD * m.stages + a) * m.stages + s] > 0
            back += m.messages[(BACK * m.stages + a) * m.stages + s] > 0
            back += m.messages[(LATE * m.stages + a) * m.stages + s] > 0
        for batch in range(count):
            at = s * m.microbatches + batch
            m.missing_f[at], m.missing_b[at] = ahead, back
            m.ready_f[at] = m.ready_b[at] = 0.0
    for a in range(m.stages):
        for s in range(m.stages):
            if m.messages[(SOURCE * m.stages + a) * m.stages + s] > 0 and a % m.size != s % m.size:
                m.start_s[s] = max(m.start_s[s], _send(m, SOURCE, a, s, 0, 0.0))
    for s in range(m.stages):
        if m.start_s[s] > 0.0:
            push_event(m.event_s, m.event_number, n_events, m.start_s[s], m.size + s % m.size)
            n_events += 1
    return n_events


@njit(cache=True, **UNCOUNTED)
def _run(m, count, backward, update):
    """Seconds of `count` micro-batches, event by event; infinity if tasks wait for each other."""
    n_events = _begin(m, count, backward)
    now, left = 0.0, np.int64(0)
    for s in range(m.stages):
        if m.working[s] > 0:
            left += count * (1 + backward + (backward and m.schedule == ZERO_BUBBLE))
    while True:
        for d in range(m.size):
            if m.busy[d]:
                continue
            chosen = _choose(m, d, count, backward, now)
            if chosen < 0 or m.working[chosen >> 2] == 0:
                continue
            s, kind = chosen >> 2, chosen & 3
            m.busy[d], m.task_stage[d], m.task_kind[d] = 1, s, kind
            if kind == F:
                batch = np.int64(m.started_f[s])
                m.started_f[s] += 1
                if backward:
                    m.in_flight[d] += m.saved[s]
                    m.most[d] = max(m.most[d], m.in_flight[d])
            elif kind == B:
                batch = np.int64(m.started_b[s])
                m.started_b[s] += 1
            else:
                batch = np.int64(m.started_w[s])
                m.started_w[s] += 1
            end = now + m.stage_s[s * 4 + kind]
            if m.record:
                i = np.int64(m.counted[0])
                m.task_row[3 * i], m.task_row[3 * i + 1], m.task_row[3 * i + 2] = s, kind, batch
                m.task_time[2 * i], m.task_time[2 * i + 1] = now, end
                m.counted[0] += 1
            push_event(m.event_s, m.event_number, n_events, end, d)
            n_events += 1
        if n_events == 0:
            break
        now = m.event_s[0]
        while n_events > 0 and m.event_s[0] == now:
            number = np.int64(m.event_number[0])
            n_events -= 1
            drop_event(m.event_s, m.event_number, n_events)
            if number >= 2 * m.size:  # its messages have arrived: a device that does not overlap is free again
                m.busy[number - 2 * m.size] = 0
                continue
            if number >= m.size:
                continue
            d = number
            s, kind = np.int64(m.task_stage[d]), np.int64(m.task_kind[d])
            left -= 1
            m.finish_s[s] = now
            free_at = now
            if kind == F:
                batch = np.int64(m.done_f[s])
                m.done_f[s] += 1
            elif kind == B:
                batch = np.int64(m.done_b[s])
                m.done_b[s] += 1
            else:
                m.done_w[s] += 1
                batch = -1
            if kind == (W if m.schedule == ZERO_BUBBLE else B):  # nothing needs the micro-batch's activations any more
                m.in_flight[d] -= m.saved[s]
            if batch >= 0:
                for b in range(m.stages):
                    for message in range(2):
                        if kind == F:
                            k = AHEAD if message == 0 else LATE
                        else:
                            k = BACK
                            if message == 1:
                                break
                        if k == LATE and not backward:
                            break
                        if m.messages[(k * m.stages + s) * m.stages + b] > 0:
                            arrival = _send(m, k, s, b, batch, now)
                            free_at = max(free_at, arrival)
                            n_events = _announce(m, k, s, b, batch, arrival, n_events)
            if m.overlap or free_at == now:
                m.busy[d] = 0
            else:
                push_event(m.event_s, m.event_number, n_events, free_at, 2 * m.size + d)
                n_events += 1
    if left > 0:
        return math.inf
    if update:
        return _update(m)
    last = 0.0
    for s in range(m.stages):
        last = max(last, m.finish_s[s])
    return last


@njit(cache=True, **UNCOUNTED)
def _update(m):
    """The end of a step: gradients and the like that updates read elsewhere, then the update of each device."""
    for s in range(m.stages):
        d = s % m.size
        m.update_at[d] = max(m.update_at[d], m.finish_s[s])
        if m.stage_s[s * 4 + U] > 0.0:  # a device that only updates waits for its copies of sources, too
            m.update_at[d] = max(m.update_at[d], m.start_s[s])
    for a in range(m.stages):
        for b in range(m.stages):
            if m.messages[(END * m.stages + a) * m.stages + b] > 0 and a % m.size != b % m.size:
                arrival = _send(m, END, a, b, 0, m.finish_s[a])
                m.update_at[b % m.size] = max(m.update_at[b % m.size], arrival)
    last, left = 0.0, np.int64(m.size)
    for d in range(m.size):
        m.busy[d] = 0  # whether its update is done
    while left > 0:
        progress = False
        for d in range(m.size):
            if m.busy[d] or _waits_for_update(m, d):
                continue
            progress = True
            end = m.update_at[d]
            for k in range(m.chunks):
                end += m.stage_s[(d + k * m.size) * 4 + U]
            if m.record:
                i = np.int64(m.counted[0])
                m.task_row[3 * i], m.task_row[3 * i + 1], m.task_row[3 * i + 2] = d, U, 0
                m.task_time[2 * i], m.task_time[2 * i + 1] = m.update_at[d], end
                m.counted[0] += 1
            m.busy[d] = 1
            left -= 1
            last = max(last, end)
            for a in range(d, m.stages, m.size):
                for b in range(m.stages):
                    if m.messages[(AGAIN * m.stages + a) * m.stages + b] > 0 and b % m.size != d:
                        arrival = _send(m, AGAIN, a, b, 0, end)
                        m.update_at[b % m.size] = max(m.update_at[b % m.size], arrival)
        if not progress:
            return math.inf
    return last


@njit(cache=True, **UNCOUNTED)
def _waits_for_update(m, d):
    """Whether the update of device d needs a result of another device's update that is not done."""
    for b in range(d, m.stages, m.size):
        for a in range(m.stages):
            if m.messages[(AGAIN * m.stages + a) * m.stages + b] > 0 and a % m.size != d and not m.busy[a % m.size]:
                return True
    return False


@njit(cache=True, **UNCOUNTED)
def _busiest(m, backward):
    """Seconds per micro-batch in the steady state: the largest load of a device or channel."""
    for d in range(m.size):
        m.load[d] = 0.0
    for c in range(m.channels):
        m.channel_free[c] = 0.0
    for s in range(m.stages):
        for part in range(1 + 2 * backward):
            m.load[s % m.size] += m.stage_s[s * 4 + part]
    for k in (AHEAD, BACK, LATE):
        if k != AHEAD and not backward:
            continue
        for a in range(m.stages):
            for b in range(m.stages):
                pair = (k * m.stages + a) * m.stages + b
                if m.messages[pair] == 0 or a % m.size == b % m.size:
                    continue
                seconds = _seconds(m, m.sent[pair], a, b)
                if not m.overlap:
                    m.load[a % m.size] += seconds
                route = (a % m.size) * m.size + b % m.size
                for i in range(m.held_ptr[route], m.held_ptr[route + 1]):
                    m.channel_free[m.held[i]] += seconds
    busiest = 0.0
    for d in range(m.size):
        busiest = max(busiest, m.load[d])
    for c in range(m.channels):
        busiest = max(busiest, m.channel_free[c])
    return busiest


@njit(kernel_signature(), cache=True, nogil=True, **UNCOUNTED)
def pipeline(device, priority, ints, floats, scratch_ints, scratch_floats, peak):
    """The objective in seconds; infinity if stages wait for each other. See `placekit_core.Kernel` for the arguments."""
    m = _view(ints, floats, scratch_ints, scratch_floats)
    possible = True
    if m.chunks > 1:
        possible = _chunks(m, device)
    if m.chunks == 1 or not possible:
        for group in range(m.g):
            m.wanted[group] = device[group]
    moved = np.int64(0)
    for d in range(m.size):
        m.transient[d] = m.recompute[d] = 0.0
    for group in range(m.g):
        moved += m.wanted[group] != m.stage[group]
        d = device[group]
        m.transient[d] = max(m.transient[d], m.work_bytes[group])
    for b in range(m.blocks):
        d = device[m.block_group[b]]
        m.recompute[d] = max(m.recompute[d], m.block_bytes[b])
    if m.known[0] == 0 or moved * REBUILD > m.g:
        _build(m)
        m.known[0] = 1
    elif moved > 0:
        for group in range(m.g):
            if m.wanted[group] != m.stage[group]:
                _move(m, group, np.int64(m.wanted[group]))
    if m.record:
        m.counted[0] = m.counted[1] = 0
    for d in range(m.size):
        m.most[d] = 0.0
    value = math.inf
    if possible and _ranks(m):
        backward = m.schedule != INFERENCE
        if m.objective == STEP:
            value = _run(m, m.microbatches, backward, True)
        elif m.objective == TOKEN:
            value = _run(m, np.int64(1), False, False)
        else:
            value = _run(m, m.microbatches, backward, False)  # for the memory, and to see that it ends
            if value < math.inf:
                value = _busiest(m, backward)
    for d in range(m.size):
        peak[d] = m.most[d] + m.transient[d] + m.recompute[d]
        for k in range(m.chunks):
            s = d + k * m.size
            peak[d] += m.used[s] + m.copies[s] + m.once[s]
    return value
