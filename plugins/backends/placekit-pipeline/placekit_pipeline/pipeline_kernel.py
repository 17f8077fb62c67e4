"""The compiled evaluation of `pipeline`: sums up the stages, then simulates the events of a step."""
# mypy: ignore-errors
# numba checks the types here; the signature of `pipeline` is explicit.

from __future__ import annotations

import math

import numpy as np
from placekit_scheduling import kernel_signature
from placekit_scheduling.heaps import drop_event, push_event
from placekit_scheduling.jit import UNCOUNTED, inner, njit

from placekit_pipeline.nets import AGAIN, AHEAD, BACK, END, SOURCE
from placekit_pipeline.pipeline_orders import choose, turns
from placekit_pipeline.pipeline_sums import (
    INFERENCE,
    LATE,
    REBUILD,
    STEP,
    TOKEN,
    ZERO_BUBBLE,
    B,
    F,
    U,
    W,
    build,
    chunks,
    move,
    ranks,
    view,
)  # fmt: skip


@inner
def _seconds(m, pair_bytes, a, b):
    """Seconds of a message between the devices of two stages."""
    a, b = a % m.size, b % m.size
    if a == b:
        return 0.0
    return m.latency_s[a * m.size + b] + pair_bytes * m.s_per_byte[a * m.size + b]


@inner
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


@inner
def _announce(m, kind, b, batch, arrival, n_events):
    """Note that a message reaches stage b at `arrival`; if it is the last that a task needs, the device is looked at then."""
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


@inner
def _begin(m, count, backward):
    """Initialise a run of `count` micro-batches, and send copies of sources. Returns the number of events."""
    n_events = np.int64(0)
    p = np.int64(0)
    for d in range(m.size):
        m.busy[d], m.look[d] = 0, 1
        m.in_flight[d] = m.most[d] = m.update_at[d] = 0.0
        p += m.working[d] > 0
    m.todo[0] = p
    if m.chunks > 1:
        m.todo[1] = turns(m, count) if backward else 0
    for c in range(m.channels):
        m.channel_free[c] = 0.0
    for s in range(m.stages):
        m.started_f[s] = m.done_f[s] = m.started_b[s] = m.done_b[s] = m.started_w[s] = m.done_w[s] = 0
        m.start_s[s] = m.finish_s[s] = 0.0
        ahead = back = 0
        for a in range(m.stages if m.working[s] > 0 else 0):
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


@inner
def _start(m, d, s, kind, backward, now):
    """Device d starts the next task of this kind of stage s. Returns its end."""
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
        _record_task(m, s, kind, batch, now, end)
    return end


@inner
def _record_task(m, s, kind, batch, start, end):
    """Record a task."""
    i = np.int64(m.counted[0])
    m.task_row[3 * i], m.task_row[3 * i + 1], m.task_row[3 * i + 2] = s, kind, batch
    m.task_time[2 * i], m.task_time[2 * i + 1] = start, end
    m.counted[0] += 1


@inner
def _finish(m, d, backward, now, n_events):
    """The task of device d ends: send its messages. Returns the number of events."""
    s, kind = np.int64(m.task_stage[d]), np.int64(m.task_kind[d])
    m.finish_s[s] = now
    batch = np.int64(-1)
    if kind == F:
        batch = np.int64(m.done_f[s])
        m.done_f[s] += 1
    elif kind == B:
        batch = np.int64(m.done_b[s])
        m.done_b[s] += 1
    else:
        m.done_w[s] += 1
    if kind == (W if m.schedule == ZERO_BUBBLE else B):  # nothing needs the micro-batch's activations any more
        m.in_flight[d] -= m.saved[s]
    for b in range(m.stages if batch >= 0 else 0):
        if m.working[b] == 0:
            continue
        for message in range(1 if kind == B else 1 + backward):
            k = BACK if kind == B else AHEAD if message == 0 else LATE
            if m.messages[(k * m.stages + s) * m.stages + b] > 0:
                n_events = _announce(m, k, b, batch, _send(m, k, s, b, batch, now), n_events)
    m.busy[d] = 0
    return n_events


@inner
def _run(m, count, backward, update):
    """Seconds of `count` micro-batches, event by event; infinity if tasks wait for each other."""
    n_events = _begin(m, count, backward)
    now, left = 0.0, np.int64(0)
    for s in range(m.stages):
        if m.working[s] > 0:
            left += count * (1 + backward + (backward and m.schedule == ZERO_BUBBLE))
    while True:
        for d in range(m.size):
            if m.busy[d] or not m.look[d]:
                continue
            m.look[d] = 0  # until one of its tasks ends or a message arrives
            chosen = choose(m, d, count, backward, now)
            if chosen >= 0 and m.working[chosen >> 2] > 0:
                end = _start(m, d, chosen >> 2, chosen & 3, backward, now)
                push_event(m.event_s, m.event_number, n_events, end, d)
                n_events += 1
        if n_events == 0:
            break
        now = m.event_s[0]
        while n_events > 0 and m.event_s[0] == now:
            number = np.int64(m.event_number[0])
            n_events -= 1
            drop_event(m.event_s, m.event_number, n_events)
            m.look[number % m.size] = 1
            if number < m.size:
                left -= 1
                n_events = _finish(m, number, backward, now, n_events)
    if left > 0:
        return math.inf
    if update:
        return _update(m)
    last = 0.0
    for s in range(m.stages):
        last = max(last, m.finish_s[s])
    return last


@inner
def _update(m):
    """Send what updates read from other devices, then run the update of each device. Returns the end of the step."""
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
                _record_task(m, d, U, 0, m.update_at[d], end)
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


@inner
def _waits_for_update(m, d):
    """Whether the update of device d needs the result of an unfinished update of another device."""
    for b in range(d, m.stages, m.size):
        for a in range(m.stages):
            if m.messages[(AGAIN * m.stages + a) * m.stages + b] > 0 and a % m.size != d and not m.busy[a % m.size]:
                return True
    return False


@inner
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
    """The objective in seconds; infinity if stages wait for each other. See `placekit_scheduling.Kernel` for the arguments."""
    m = view(ints, floats, scratch_ints, scratch_floats)
    possible = True
    if m.chunks > 1:
        possible = chunks(m, device)
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
        build(m)
        m.known[0] = 1
    elif moved > 0:
        for group in range(m.g):
            if m.wanted[group] != m.stage[group]:
                move(m, group, np.int64(m.wanted[group]))
    if m.record:
        m.counted[0] = m.counted[1] = 0
    for d in range(m.size):
        m.most[d] = 0.0
    value = math.inf
    if possible and ranks(m):
        backward = m.schedule != INFERENCE
        if m.objective == STEP:
            value = _run(m, m.microbatches, backward, True)
        elif m.objective == TOKEN:
            value = _run(m, np.int64(1), False, False)
        else:
            # for the peak memory, and to find stages that wait for each other
            value = _run(m, m.microbatches, backward, False)
            if value < math.inf:
                value = _busiest(m, backward)
    for d in range(m.size):
        peak[d] = m.most[d] + m.transient[d] + m.recompute[d]
        for k in range(m.chunks):
            s = d + k * m.size
            peak[d] += m.used[s] + m.copies[s] + m.once[s]
    return value
