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
from placekit_pipeline.pipeline_orders import batch_of, choose, turns
from placekit_pipeline.pipeline_sums import (
    INFERENCE,
    LATE,
    REBUILD,
    RING,
    STEP,
    THROUGHPUT,
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
from placekit_pipeline.rings import buckets_of, edge, ready_s, ring_s


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
    bytes_ = m.sent[(kind * m.stages + a) * m.stages + b]
    seconds = _seconds(m, bytes_, a, b)
    route = (a % m.size) * m.size + b % m.size
    start = now
    if a % m.size != b % m.size:
        for i in range(m.held_ptr[route], m.held_ptr[route + 1]):
            start = max(start, m.channel_free[m.held[i]])
        for i in range(m.held_ptr[route], m.held_ptr[route + 1]):
            m.channel_free[m.held[i]] = start + seconds
    if m.record:
        _record_message(m, kind, a, b, batch, bytes_, start, start + seconds)
    return start + seconds


@inner
def _record_message(m, kind, a, b, batch, bytes_, start, end):
    """Record a message."""
    i = np.int64(m.counted[1])
    m.message_row[4 * i], m.message_row[4 * i + 1] = a, b
    m.message_row[4 * i + 2], m.message_row[4 * i + 3] = kind, batch
    m.message_time[2 * i], m.message_time[2 * i + 1] = start, end
    m.message_bytes[i] = bytes_
    m.counted[1] += 1


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
def _divide(m, count, backward):
    """Divide `count` micro-batches among the rows: the first ones in turn, each next one to the row that would end it first.

    A row takes the seconds of its slowest stage for each micro-batch; with shares, 1 / share.
    """
    m.row_count[0] = count
    for s in range(m.stages if m.rows == 1 else 0):
        m.count[s] = count
    for r in range(m.rows if m.rows > 1 else 0):
        m.row_count[r], m.row_s[r] = 0, 0.0
        for s in range(m.stages):
            seconds = 0.0
            for part in range(1 + 2 * backward):
                seconds += m.stage_s[s * 4 + part]
            if m.runs[r * m.stages + s]:
                m.row_s[r] = max(m.row_s[r], seconds)
    for batch in range(count if m.rows > 1 else 0):
        best, least = np.int64(batch), 0.0
        for r in range(m.rows if batch >= m.rows else 0):
            after = m.row_count[r] + 1.0
            end_s = after / m.shares[r] if m.shares[r] > 0 else after * m.row_s[r]
            if r == 0 or end_s < least:
                best, least = np.int64(r), end_s
        m.row_of[batch] = best
        m.row_count[best] += 1
    for s in range(m.stages if m.rows > 1 else 0):
        m.count[s] = 0
        for batch in range(count):
            if m.runs[m.row_of[batch] * m.stages + s]:
                m.own[s * m.microbatches + m.count[s]] = batch
                m.count[s] += 1


@inner
def _begin(m, count, backward, averages):
    """Initialise a run of `count` micro-batches, and send copies of sources. Returns the number of events."""
    _divide(m, count, backward)
    n_events = np.int64(0)
    p = np.int64(0)
    for d in range(m.size):
        m.busy[d], m.look[d] = 0, 1
        m.in_flight[d] = m.most[d] = m.averaged[d] = m.update_at[d] = 0.0
        m.missing_ring[d] = 0
        n = m.member_ptr[d + 1] - m.member_ptr[d]
        if averages and n > 1 and m.gradient[d] > 0.0:
            m.missing_ring[d], m.bucket[d] = n, 0
            m.ring_end[d] = m.ring_free[d] = -1.0
        p += m.working[d] > 0
    m.todo[0] = p
    if m.chunks > 1:
        m.todo[1] = turns(m, count) if backward else 0
    for c in range(m.channels):
        m.channel_free[c] = 0.0
    for s in range(m.stages):
        m.started_f[s] = m.done_f[s] = m.started_b[s] = m.done_b[s] = m.started_w[s] = m.done_w[s] = 0
        m.start_s[s] = m.finish_s[s] = 0.0
        for r in range(m.rows):
            ahead = back = 0
            for a in range(m.stages if m.working[s] > 0 and m.runs[r * m.stages + s] else 0):
                if m.runs[r * m.stages + a]:
                    ahead += m.messages[(AHEAD * m.stages + a) * m.stages + s] > 0
                    back += m.messages[(BACK * m.stages + a) * m.stages + s] > 0
                    back += m.messages[(LATE * m.stages + a) * m.stages + s] > 0
            for batch in range(count):
                if m.rows == 1 or m.row_of[batch] == r:
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
        batch = batch_of(m, s, m.started_f[s])
        m.started_f[s] += 1
        if backward:
            m.in_flight[d] += m.saved[s]
            m.most[d] = max(m.most[d], m.in_flight[d])
    elif kind == B:
        batch = batch_of(m, s, m.started_b[s])
        m.started_b[s] += 1
    else:
        batch = batch_of(m, s, m.started_w[s])
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
        batch = batch_of(m, s, m.done_f[s])
        m.done_f[s] += 1
    elif kind == B:
        batch = batch_of(m, s, m.done_b[s])
        m.done_b[s] += 1
    else:
        m.done_w[s] += 1
    if kind == (W if m.schedule == ZERO_BUBBLE else B):  # nothing needs the micro-batch's activations any more
        m.in_flight[d] -= m.saved[s]
    row = np.int64(m.row_of[max(batch, 0)]) * m.stages if m.rows > 1 else np.int64(0)
    for b in range(m.stages if batch >= 0 else 0):
        if m.working[b] == 0 or (m.rows > 1 and not m.runs[row + b]):
            continue
        for message in range(1 if kind == B else 1 + backward):
            k = BACK if kind == B else AHEAD if message == 0 else LATE
            if m.messages[(k * m.stages + s) * m.stages + b] > 0:
                n_events = _announce(m, k, b, batch, _send(m, k, s, b, batch, now), n_events)
    m.busy[d] = 0
    return n_events


@inner
def _join_rings(m, d, now, end, n_events):
    """The last backward task of device d runs from `now` to `end`; a ring whose members have all begun theirs can begin.

    The buckets of a ring are ready while the task of its slowest member runs. Returns the number of events.
    """
    for lead in range(m.size):
        for j in range(m.member_ptr[lead], m.member_ptr[lead + 1] if m.missing_ring[lead] > 0 else 0):
            if m.member[j] != d:
                continue
            if end >= m.ring_end[lead]:
                m.ring_begin[lead], m.ring_end[lead] = now, end
            m.missing_ring[lead] -= 1
            if m.missing_ring[lead] == 0:
                n_events = _await_bucket(m, lead, now, n_events)
    return n_events


@inner
def _await_bucket(m, lead, now, n_events):
    """Note when the next bucket of a ring is ready. Returns the number of events."""
    buckets = buckets_of(m.gradient[lead], m.overlap)
    if m.bucket[lead] == buckets:
        return n_events
    ready = ready_s(m.ring_begin[lead], m.ring_end[lead], m.bucket[lead], buckets)
    push_event(m.event_s, m.event_number, n_events, max(now, ready), 2 * m.size + lead)
    return n_events + 1


@inner
def _average(m, lead, now):
    """A ring averages its next bucket as soon as the one before is done and all channels of the ring are free."""
    first = np.int64(m.member_ptr[lead])
    n = np.int64(m.member_ptr[lead + 1]) - first
    bytes_ = m.gradient[lead] / buckets_of(m.gradient[lead], m.overlap)
    seconds = ring_s(
        m.member, first, n, bytes_, m.size, m.latency_s, m.s_per_byte, m.held_ptr, m.held, m.ring_busy
    )  # fmt: skip
    start = max(now, m.ring_free[lead])
    for i in range(n):
        route = edge(m.member, first, n, i, m.size)
        for x in range(m.held_ptr[route], m.held_ptr[route + 1]):
            start = max(start, m.channel_free[m.held[x]])
    for i in range(n):
        route = edge(m.member, first, n, i, m.size)
        for x in range(m.held_ptr[route], m.held_ptr[route + 1]):
            m.channel_free[m.held[x]] = start + seconds
        if m.record:
            sent = 2 * (n - 1) * bytes_ / n
            _record_message(m, RING, route // m.size, route % m.size, m.bucket[lead], sent, start, start + seconds)
        d = np.int64(m.member[first + i])
        m.averaged[d] = max(m.averaged[d], start + seconds)
    m.ring_free[lead] = start + seconds
    m.bucket[lead] += 1


@inner
def _run(m, count, backward, update):
    """Seconds of `count` micro-batches, event by event; infinity if tasks wait for each other."""
    averages = m.rows > 1 and backward and update
    n_events = _begin(m, count, backward, averages)
    now, left, last_kind = 0.0, np.int64(0), W if m.schedule == ZERO_BUBBLE else B
    for s in range(m.stages):
        if m.working[s] > 0:
            left += m.count[s] * (1 + backward + (backward and m.schedule == ZERO_BUBBLE))
    while True:
        for d in range(m.size):
            if m.busy[d] or not m.look[d]:
                continue
            m.look[d] = 0  # until one of its tasks ends or a message arrives
            chosen = choose(m, d, backward, now)
            if chosen >= 0 and m.working[chosen >> 2] > 0:
                end = _start(m, d, chosen >> 2, chosen & 3, backward, now)
                push_event(m.event_s, m.event_number, n_events, end, d)
                n_events += 1
                if averages and chosen & 3 == last_kind:
                    started = m.started_w[d] if last_kind == W else m.started_b[d]
                    if started == m.count[d]:
                        n_events = _join_rings(m, d, now, end, n_events)
        if n_events == 0:
            break
        now = m.event_s[0]
        while n_events > 0 and m.event_s[0] == now:
            number = np.int64(m.event_number[0])
            n_events -= 1
            drop_event(m.event_s, m.event_number, n_events)
            if number >= 2 * m.size:
                _average(m, number - 2 * m.size, now)
                n_events = _await_bucket(m, number - 2 * m.size, now, n_events)
                continue
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
        m.update_at[d] = max(m.update_at[d], m.finish_s[s], m.averaged[d])
        if m.stage_s[s * 4 + U] > 0.0:  # a device that only updates waits for its copies of sources, too
            m.update_at[d] = max(m.update_at[d], m.start_s[s])
    for a in range(m.stages):
        for b in range(m.stages):
            if m.messages[(END * m.stages + a) * m.stages + b] > 0 and a % m.size != b % m.size:
                arrival = _send(m, END, a, b, 0, max(m.finish_s[a], m.averaged[a % m.size]))
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
            if m.shard:
                end += _shard_s(m, d)
            for k in range(0 if m.shard else m.chunks):
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
def _shard_s(m, d):
    """Seconds in which device d updates its parts of its columns, and sends them to the other devices: half a ring each."""
    total = 0.0
    for lead in range(m.size):
        first = np.int64(m.member_ptr[lead])
        n = np.int64(m.member_ptr[lead + 1]) - first
        for j in range(first, first + n):
            if m.member[j] == d:
                total += m.update_s[j] / n
                if n > 1:
                    bytes_ = m.gradient[lead]  # as many as the parameters have
                    total += 0.5 * ring_s(
                        m.member, first, n, bytes_, m.size, m.latency_s, m.s_per_byte, m.held_ptr, m.held, m.ring_busy
                    )  # fmt: skip
    return total


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
    """Seconds per micro-batch in the steady state: the largest load of a device or channel, over all micro-batches."""
    for d in range(m.size):
        m.load[d] = 0.0
    for c in range(m.channels):
        m.channel_free[c] = 0.0
    for s in range(m.stages):
        for part in range(1 + 2 * backward):
            m.load[s % m.size] += m.stage_s[s * 4 + part] * (m.count[s] / m.microbatches)
    for k in (AHEAD, BACK, LATE):
        if k != AHEAD and not backward:
            continue
        for a in range(m.stages):
            for b in range(m.stages):
                pair = (k * m.stages + a) * m.stages + b
                if m.messages[pair] == 0 or a % m.size == b % m.size:
                    continue
                times = 0
                for r in range(m.rows):
                    if m.runs[r * m.stages + a] and m.runs[r * m.stages + b]:
                        times += m.row_count[r]
                seconds = _seconds(m, m.sent[pair], a, b) * (times / m.microbatches)
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
    for d in range(m.size):
        m.transient[d] = 0.0
    for group in range(m.g):
        d = np.int64(m.lead[group * m.size + device[group]])
        if d < 0:
            possible, d = False, np.int64(m.member[0])
        m.wanted[group] = d
        m.transient[d] = max(m.transient[d], m.work_bytes[group])
    for lead in range(m.size if m.rows > 1 else 0):
        for j in range(m.member_ptr[lead], m.member_ptr[lead + 1]):
            d = np.int64(m.member[j])
            m.transient[d] = max(m.transient[d], m.transient[lead])
    if m.chunks > 1 and possible:
        possible = chunks(m, device)
    moved = np.int64(0)
    for group in range(m.g):
        moved += m.wanted[group] != m.stage[group]
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
        token, backward = m.objective == TOKEN, m.schedule != INFERENCE
        count = np.int64(1) if token else m.microbatches
        # of throughput, for the peak memory, and to find stages that wait for each other
        value = _run(m, count, backward and not token, m.objective == STEP)
        if m.objective == THROUGHPUT and value < math.inf:
            value = _busiest(m, backward)
    for d in range(m.size):
        peak[d] = m.most[d] + m.transient[d]
        for k in range(m.chunks):
            s = d + k * m.size
            peak[d] += m.used[s] + m.copies[s] + m.once[s]
    for lead in range(m.size if m.shard else 0):
        first, end = m.member_ptr[lead], m.member_ptr[lead + 1]
        for j in range(first, end):
            peak[m.member[j]] -= m.state[lead] - m.state[lead] / (end - first)
    return value
