"""Plans which parameters and inputs to prefetch, and when. Importing this imports numba."""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from placekit_scheduling.fields import unpacked
from placekit_scheduling.jit import UNCOUNTED

from placekit_sim.layout import FIELDS


def _plan_ahead(m):
    """Number the copies of source tensors, and set the operation that each copy waits for.

    Returns the number of copies, and how many of them are requested at time 0. The *readers* of a device are its operations
    that read such copies, in the order of the graph. A copy serves readers of one tensor that are at most `window` apart in
    this order. It is requested when the reader that is `window` before its first reader ends, and is in the list `gated` of
    that reader. If there is no such reader, it is requested at time 0, and is in `requested`.
    """
    for d in range(m.size):
        m.reads_last[d], m.reads_gate[d], m.reads_count[d] = -1, -1, 0
    for v in range(m.n):
        m.gated[v] = -1
    known, n_requested = np.int64(0), np.int64(0)
    for i in range(m.n_reads):
        m.open_copy[m.read_row[i] * m.size + np.int64(m.home[m.read_op[i]])] = -1
    for i in range(m.n_reads):
        v = np.int64(m.read_op[i])
        d = np.int64(m.home[v])
        m.edge_copy[m.read_edge[i]] = 0
        if m.home[m.read_source[i]] == d:
            continue
        if m.reads_last[d] != v:
            if m.reads_count[d] == 0:
                m.reads_first[d] = v
            else:
                m.reader_after[m.reads_last[d]] = v
            m.reads_last[d] = v
            if m.reads_count[d] == m.window:
                m.reads_gate[d] = m.reads_first[d]
            elif m.reads_count[d] > m.window:
                m.reads_gate[d] = m.reader_after[m.reads_gate[d]]
            m.reads_count[d] += 1
        row = m.read_row[i] * m.size + d
        k = np.int64(m.open_copy[row])
        if k < 0 or m.reads_count[d] - m.open_until[row] > m.window:
            k = known
            known += 1
            m.open_copy[row] = k
            m.copy_tensor[k], m.copy_dst[k], m.copy_readers[k] = m.read_tensor[i], d, 0
            m.copy_reads[k], m.copy_rank[k] = -1, m.rank[v]
            gate = np.int64(m.reads_gate[d])
            if gate < 0:
                m.requested[n_requested] = k
                n_requested += 1
            else:
                m.gated_after[k] = m.gated[gate]
                m.gated[gate] = k
            m.ready_by[m.n + k] = gate if gate >= 0 else m.read_source[i]
        m.open_until[row] = m.reads_count[d]
        m.copy_readers[k] += 1
        m.copy_rank[k] = min(m.copy_rank[k], m.rank[v])
        m.read_after[i] = m.copy_reads[k]
        m.copy_reads[k] = i
        m.edge_copy[m.read_edge[i]] = k + 1
    return known, n_requested


plan_ahead = unpacked(FIELDS, _plan_ahead, name="plan_ahead", cache=True, **UNCOUNTED)
