"""Sums over each stage for backend `pipeline`, updated incrementally when groups move.

A stage is everything that a device runs; under `interleaved`, one of its contiguous chunks. Stage s runs on device s % D.
With replicas (`replicas.Replicas`), `stage` has the leader of each group's column, and all devices of the column run the group.
"""
# mypy: ignore-errors
# numba checks the types here.

from __future__ import annotations

from collections import namedtuple

import numpy as np
from placekit_scheduling.fields import fields, view_of
from placekit_scheduling.jit import inner

from placekit_pipeline.nets import AHEAD, BACK, SOURCE

REBUILD = 8  # if more than 1 / REBUILD of the groups moved, everything is summed again
F, B, W, U = range(4)  # forward, backward, gradients of weights, update: entries of `stage_s`
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, INFERENCE = range(5)
STEP, THROUGHPUT, TOKEN = range(3)
LATE = 5  # AHEAD that only backward tasks need
PAIRS = 6  # kinds of messages between two stages: those of nets, and LATE
RING = 6  # recorded as a message, too: a bucket of gradients from one device of a ring to the next

FIELDS = [
    *fields("number", "g size stages chunks nets stores channels sets microbatches schedule objective"),
    *fields("number", "rows"),
    *fields("flag", "record shared overlap shard"),
    # nets and stores with the groups that read or hold them, and the rows of each group; see `nets.Nets`, `stages.Stores`
    *fields("ints", "kind producer ptr reader late group_ptr group_net"),
    *fields("ints", "store_once store_ptr holder holder_ptr group_store"),
    *fields("ints", "works held_ptr held"),
    # which groups wait for each other, the order of these sets, and whose chunk a group without forward operations is in
    *fields("ints", "tied leader before_ptr before"),
    # replicas: the leader that a device means for each group; for each row, the stage that runs a leader's column, and which
    # stages it has; devices of each leader's column; micro-batches of each row
    *fields("ints", "lead to runs member_ptr member shares"),
    *fields("floats", "group_s group_bytes work_bytes bytes_ store_bytes latency_s s_per_byte"),
    *fields("floats", "gradient_bytes state_bytes"),
    # kept between calls
    *fields("scratch_ints", "known", "one"),
    *fields("scratch_ints", "stage", "g"),
    *fields("scratch_ints", "prompt", "counts"),
    *fields("scratch_ints", "holders", "store_counts"),
    *fields("scratch_ints", "working", "stages"),
    *fields("scratch_ints", "messages", "pairs"),
    *fields("scratch_floats", "turn", "one"),
    *fields("scratch_floats", "seen", "stages"),
    *fields("scratch_floats", "stage_s", "parts"),
    *fields("scratch_floats", "used copies once saved gradient state", "stages"),
    *fields("scratch_floats", "update_s", "members"),
    *fields("scratch_floats", "sent", "pairs"),
    # the work on one placement
    *fields("scratch_ints", "wanted", "g"),
    *fields("scratch_ints", "level set_device", "sets"),
    *fields("scratch_ints", "chunk_at", "levels"),
    *fields("scratch_ints", "rank todo started_f done_f started_b done_b started_w done_w", "stages"),
    *fields("scratch_ints", "busy look task_stage task_kind", "size"),
    *fields("scratch_ints", "count missing_ring bucket", "stages"),
    *fields("scratch_ints", "row_of", "batches"),
    *fields("scratch_ints", "row_count", "rows"),
    *fields("scratch_ints", "own missing_f missing_b", "tasks"),
    *fields("scratch_ints", "event_number", "events"),
    *fields("scratch_floats", "event_s", "events"),
    *fields("scratch_floats", "ready_f ready_b", "tasks"),
    *fields("scratch_floats", "start_s finish_s ring_begin ring_end ring_free", "stages"),
    *fields("scratch_floats", "in_flight most transient averaged update_at load", "size"),
    *fields("scratch_floats", "row_s", "rows"),
    *fields("scratch_floats", "channel_free ring_busy", "channels"),
    # a recorded run: tasks (stage, kind, micro-batch, start, end), messages (from, to, kind, micro-batch, start, end)
    *fields("scratch_ints", "counted", "recorded_counts"),
    *fields("scratch_ints", "task_row", "recorded_tasks"),
    *fields("scratch_floats", "task_time", "recorded_tasks"),
    *fields("scratch_ints", "message_row", "recorded_messages"),
    *fields("scratch_floats", "message_time message_bytes", "recorded_messages"),
]
"""Everything that `pipeline` works on."""

View = namedtuple("View", [field.name for field in FIELDS])
view = view_of(View, FIELDS)


@inner
def _stage(m, r, column):
    """The stage that runs a column in row r."""
    return np.int64(m.to[r * m.stages + column]) if m.rows > 1 else np.int64(column)


@inner
def _members(m, column):
    """Where the devices of a column begin and end in `member`; without replicas, a column is its only stage."""
    if m.rows > 1:
        return np.int64(m.member_ptr[column]), np.int64(m.member_ptr[column + 1])
    return np.int64(column), np.int64(column + 1)


@inner
def _account(m, x, sign):
    """Add net x to the messages between stages; with `sign` -1, subtract it."""
    lead, kind = np.int64(m.stage[m.producer[x]]), np.int64(m.kind[x])
    for r in range(m.rows):
        home = _stage(m, r, lead)
        m.turn[0] += 1.0
        for i in range(m.ptr[x], m.ptr[x + 1]):
            column = np.int64(m.stage[m.reader[i]])
            s = _stage(m, r, column)
            if s == home or m.seen[s] == m.turn[0]:
                continue
            m.seen[s] = m.turn[0]
            if r > 0 and _sent_before(m, r, lead, column, kind != AHEAD and kind != BACK):
                continue
            k = kind
            if kind == AHEAD and m.prompt[x * m.stages + s] == 0:
                k = LATE
            pair = (k * m.stages + home) * m.stages + s
            m.messages[pair] += sign
            m.sent[pair] += sign * m.bytes_[x]
            if kind == SOURCE and s % m.size != home % m.size:
                m.copies[s] += sign * m.bytes_[x]


@inner
def _sent_before(m, r, lead, column, once):
    """Whether a row before row r has the same two stages for these columns; if sent `once` per step, the same receiver."""
    for e in range(r):
        same_reader = m.to[e * m.stages + column] == m.to[r * m.stages + column]
        if same_reader and (once or m.to[e * m.stages + lead] == m.to[r * m.stages + lead]):
            return True
    return False


@inner
def _hold(m, y, column, sign):
    """Count a group of a column that holds store y (`sign` 1) or no longer does (-1); the first on a stage adds the bytes."""
    first, end = _members(m, column)
    for j in range(first, end):
        stage = np.int64(m.member[j]) if m.rows > 1 else j
        at = y * m.stages + stage
        before = m.holders[at]
        m.holders[at] = before + sign
        if before == 0 or before + sign == 0:
            if m.store_once[y]:
                m.once[stage] += sign * m.store_bytes[y]
            else:
                m.saved[stage] += sign * m.store_bytes[y]


@inner
def _put(m, group, column, sign):
    """Add the seconds and bytes of a group to the stages of a column; with `sign` -1, subtract them."""
    first, end = _members(m, column)
    for j in range(first, end):
        stage = np.int64(m.member[j]) if m.rows > 1 else j
        d = stage % m.size
        for part in range(4):
            m.stage_s[stage * 4 + part] += sign * m.group_s[(group * m.size + d) * 4 + part]
        if m.shard:
            m.update_s[j] += sign * m.group_s[(group * m.size + d) * 4 + U]
        m.used[stage] += sign * m.group_bytes[group]
        m.working[stage] += sign * m.works[group]
    if m.rows > 1:
        m.gradient[column] += sign * m.gradient_bytes[group]
        m.state[column] += sign * m.state_bytes[group]


@inner
def _read_promptly(m, x, column, sign):
    """Add `sign` to the groups of a column that read net x in the forward phase."""
    first, end = _members(m, column)
    for j in range(first, end):
        m.prompt[x * m.stages + (m.member[j] if m.rows > 1 else j)] += sign


@inner
def move(m, group, to):
    """Move a group to column `to`, and update all sums."""
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
            _read_promptly(m, x, here, -prompt)
            _read_promptly(m, x, to, prompt)
        _account(m, x, 1)
    for i in range(m.holder_ptr[group], m.holder_ptr[group + 1]):
        _hold(m, np.int64(m.group_store[i]), here, -1)
        _hold(m, np.int64(m.group_store[i]), to, 1)


@inner
def build(m):
    """Compute all sums of the placement `wanted` from scratch."""
    for s in range(m.stages):
        m.used[s] = m.copies[s] = m.once[s] = m.saved[s] = m.gradient[s] = m.state[s] = 0.0
        m.working[s] = 0
        for part in range(4):
            m.stage_s[s * 4 + part] = 0.0
    for j in range(m.member_ptr[m.stages]):
        m.update_s[j] = 0.0
    for i in range(PAIRS * m.stages * m.stages):
        m.messages[i], m.sent[i] = 0, 0.0
    for i in range(m.nets * m.stages):
        m.prompt[i] = 0
    for i in range(m.stores * m.stages):
        m.holders[i] = 0
    for group in range(m.g):
        m.stage[group] = m.wanted[group]
        _put(m, group, np.int64(m.stage[group]), 1)
    for x in range(m.nets):
        for j in range(m.ptr[x], m.ptr[x + 1]):
            _read_promptly(m, x, np.int64(m.stage[m.reader[j]]), 1 - m.late[j])
        _account(m, x, 1)
    for y in range(m.stores):
        for j in range(m.store_ptr[y], m.store_ptr[y + 1]):
            _hold(m, y, np.int64(m.stage[m.holder[j]]), 1)


@inner
def chunks(m, device):
    """Find the stage of each group under `interleaved`; False if there are none, or if a device has too many chunks.

    The level of a group is the largest number of changes of device on a path of the forward phase to it. The groups of one
    device and level form a chunk, so that no two chunks wait for each other.
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


@inner
def ranks(m):
    """Stages on the longest path from each stage to the end of the forward phase; False if stages wait for each other.

    A stage in several rows keeps as many micro-batches in flight as these rows together, so its rank is higher.
    """
    for s in range(m.stages):
        m.rank[s] = 1
    for _ in range(m.stages + 1):
        changed = False
        for a in range(m.stages):
            for b in range(m.stages if m.working[a] > 0 else 0):
                if m.messages[(AHEAD * m.stages + a) * m.stages + b] > 0 and m.rank[a] < m.rank[b] + 1:
                    m.rank[a] = m.rank[b] + 1
                    changed = True
        if not changed:
            for s in range(m.stages if m.shared else 0):
                times = 0
                for r in range(m.rows):
                    times += m.runs[r * m.stages + s]
                m.rank[s] = 1 + (m.rank[s] - 1) * max(1, times)
            return True
    return False
