"""The machine model compiled by numba: in rounds, without allocating anything.

Tasks are numbers: operation v is task v; the transfer that makes received copies k, k+1, ... is task n + k. Copies are
numbered as they are announced, in the order (round, tensor, destination); with `prefetch`, the copies of what sources write
come before all others, in the order in which they are needed. Queues are intrusive: lists through `link` in first-come
order, or pairing heaps through `link` and `child` if a rank or priority decides.
"""
# mypy: ignore-errors
# numba checks the types here; the signature of `simulate` is explicit.

from __future__ import annotations

import numpy as np
from numba import njit
from placekit_scheduling import kernel_signature
from placekit_scheduling.heaps import drop_event, enqueue, push_event, without_root
from placekit_scheduling.jit import UNCOUNTED

from placekit_sim.ahead import plan_ahead
from placekit_sim.machine import machine


@njit(cache=True, forceinline=True, **UNCOUNTED)
def _sort(values, count):
    """Sort `values[:count]` ascending, in place (Shell 1959)."""
    gap = count
    while gap > 1:
        gap //= 2
        for i in range(gap, count):
            x, j = values[i], i
            while j >= gap and values[j - gap] > x:
                values[j] = values[j - gap]
                j -= gap
            values[j] = x


@njit(kernel_signature(), cache=True, nogil=True, **UNCOUNTED)
def simulate(device, priority, ints, floats, scratch_ints, scratch_floats, peak):
    """Makespan in seconds of one placement; see `placekit_core.Kernel` for the arguments."""
    m = machine(ints, floats, scratch_ints, scratch_floats)
    ahead = m.window > 0
    ranked = m.order == 1 or (m.order == 2 and len(priority) > 0)
    # ---- the placement
    for d in range(m.size):
        m.used[d], m.to_readers[d] = 0.0, 0
    for i in range(m.g):
        m.used[device[i]] += m.group_bytes[i]
    for d in range(m.size):
        peak[d] = m.used[d]
    for v in range(m.n):
        m.home[v], m.missing[v] = device[m.group_of[v]], m.n_inputs[v]
    if ranked and m.order == 1:
        for v in range(m.n):
            m.rank[v] = m.fixed_rank[v]
    elif ranked:
        bits = priority.view(np.int32)
        for v in range(m.n):
            b = bits[m.group_of[v]] if bits[m.group_of[v]] != -2147483648 else 0  # -0.0 equals 0.0
            # floats sort like the integers of their bits, negative ones in reverse; the highest must come first
            m.rank[v] = ~b if b >= 0 else ~(b ^ 2147483647)
    elif ahead:  # the numbers of tasks do not say which came first
        ranked = True
        for v in range(m.n):
            m.rank[v] = 0
    if m.memory:
        for x in range(m.t):
            m.readers[x] = 0
    for q in range(m.n_queues):
        m.head[q], m.mark[q], m.free[q] = -1, -1, m.capacity[q]
    for c in range(m.n_channels):
        m.channel_free[c] = m.channel_capacity[c]
    n_done = m.n_sources
    for i in range(m.n_sources):
        m.done[i] = m.sources[i]
    n_fresh = np.int64(0)
    if not m.bulk:
        n_fresh = m.n_roots
        for i in range(m.n_roots):
            m.fresh[i] = m.roots[i]
    if m.record:
        for i in range(m.n_sources):
            m.cause[m.sources[i]], m.times[m.tasks + m.sources[i]] = -1, 0.0
        for i in range(m.n_roots):
            m.ready_by[m.roots[i]] = -1
        for q in range(m.n_queues + m.n_channels + 1):
            m.released_by[q] = -1
    now, n_events, n_touched, n_candidates = 0.0, np.int64(0), np.int64(0), np.int64(0)
    known, n_requested = np.int64(0), np.int64(0)  # copies announced so far, copies of sources that are to be queued
    if ahead:
        known, n_requested = plan_ahead(m)
    n_ahead = known
    arrivals = np.int64(0)  # breaks ties of rank in first-come order
    round_ = np.int64(0)
    phase = np.int64(0)  # bulk: even, transfers after level phase/2 - 1; odd, level (phase-1)/2

    while True:
        # ---- 1. announce outputs: tell local consumers, queue the transfers
        for i in range(n_done):
            v = np.int64(m.done[i])
            a = np.int64(m.home[v])
            for x in range(m.output_ptr[v], m.output_ptr[v + 1]):
                m.tensor_home[x] = a
                n_to, n_readers = np.int64(0), np.int64(0)
                for j in range(m.consumer_ptr[x], m.consumer_ptr[x + 1]):
                    c = np.int64(m.consumer_op[j])
                    b = np.int64(m.home[c])
                    if b == a:
                        n_readers += 1
                        if not m.bulk:
                            m.missing[c] -= 1
                            if m.missing[c] == 0:
                                m.fresh[n_fresh] = c
                                n_fresh += 1
                                if m.record:
                                    m.ready_by[c] = v
                    elif not ahead or round_ > 0:  # sources end in the first round
                        if m.to_readers[b] == 0:
                            k = n_to
                            while k > 0 and m.to[k - 1] > b:
                                m.to[k] = m.to[k - 1]
                                k -= 1
                            m.to[k] = b
                            n_to += 1
                            m.to_rank[b] = m.rank[c]
                        elif m.rank[c] < m.to_rank[b]:
                            m.to_rank[b] = m.rank[c]
                        m.to_readers[b] += 1
                m.first_copy[x] = known
                m.n_copies[x] = n_to
                best = np.int64(2147483647)
                for k in range(n_to):
                    b = np.int64(m.to[k])
                    m.copy_tensor[known] = x
                    m.copy_dst[known] = b
                    m.copy_readers[known] = m.to_readers[b]
                    m.to_readers[b] = 0
                    best = min(best, np.int64(m.to_rank[b]))
                    known += 1
                    if m.multicast and k < n_to - 1:
                        continue
                    task = m.n + known - 1
                    r = np.int64(m.to_rank[b])
                    if m.multicast:
                        task = m.n + m.first_copy[x]
                        r = best
                    n_readers += 1
                    if m.record:
                        m.ready_by[task] = v
                    q = np.int64(m.queue_of_route[a * m.size + b])
                    if ranked:
                        m.key[task] = (r << 32) + arrivals
                        arrivals += 1
                    enqueue(q, task, ranked, m.head, m.tail, m.key, m.child, m.link)
                    if m.mark[q] != round_:
                        m.mark[q] = round_
                        if q < m.first_shared:
                            m.touched[n_touched] = q
                            n_touched += 1
                        else:
                            m.candidates[n_candidates] = q
                            n_candidates += 1
                if m.memory:
                    m.readers[m.storage[x]] += n_readers
        n_done = 0
        if n_requested > 0:
            _sort(m.requested, n_requested)
            for i in range(n_requested):
                k = np.int64(m.requested[i])
                q = np.int64(m.queue_of_route[m.tensor_home[m.copy_tensor[k]] * m.size + m.copy_dst[k]])
                m.key[m.n + k] = (np.int64(m.copy_rank[k]) << 32) + arrivals
                arrivals += 1
                enqueue(q, m.n + k, ranked, m.head, m.tail, m.key, m.child, m.link)
                if m.mark[q] != round_:
                    m.mark[q] = round_
                    if q < m.first_shared:
                        m.touched[n_touched] = q
                        n_touched += 1
                    else:
                        m.candidates[n_candidates] = q
                        n_candidates += 1
            n_requested = 0

        # ---- 2. queue the operations that became ready in this round, by index
        _sort(m.fresh, n_fresh)
        for i in range(n_fresh):
            v = np.int64(m.fresh[i])
            q = np.int64(m.home[v])
            if ranked:
                m.key[v] = (np.int64(m.rank[v]) << 32) + arrivals
                arrivals += 1
            enqueue(q, v, ranked, m.head, m.tail, m.key, m.child, m.link)
            if m.mark[q] != round_:
                m.mark[q] = round_
                m.touched[n_touched] = q
                n_touched += 1
        n_fresh = 0

        # ---- 3. choose what starts: queues with a resource of their own, then those that share channels
        n_starting = np.int64(0)
        for i in range(n_touched):
            q = np.int64(m.touched[i])
            while m.free[q] > 0 and m.head[q] >= 0:
                task = np.int64(m.head[q])
                m.head[q] = without_root(task, m.key, m.child, m.link) if ranked else m.link[task]
                m.free[q] -= 1
                m.starting[n_starting] = task
                n_starting += 1
        n_touched = 0
        while n_candidates > 0:
            chosen, best, i = np.int64(-1), np.int64(0), np.int64(0)
            while i < n_candidates:
                q = np.int64(m.candidates[i])
                task = np.int64(m.head[q])
                can = task >= 0
                if can:
                    for j in range(m.held_ptr[q - m.first_shared], m.held_ptr[q - m.first_shared + 1]):
                        if m.channel_free[m.held[j]] == 0:
                            can = False
                            break
                if not can:  # nor can it before a channel is released
                    n_candidates -= 1
                    m.candidates[i] = m.candidates[n_candidates]
                    continue
                value = m.key[task] if ranked else task
                if chosen < 0 or value < best:
                    chosen = q
                    best = value
                i += 1
            if chosen < 0:
                break
            task = np.int64(m.head[chosen])
            m.head[chosen] = without_root(task, m.key, m.child, m.link) if ranked else m.link[task]
            for j in range(m.held_ptr[chosen - m.first_shared], m.held_ptr[chosen - m.first_shared + 1]):
                m.channel_free[m.held[j]] -= 1
            m.starting[n_starting] = task
            n_starting += 1

        # ---- 4. start it
        for i in range(n_starting):
            task = np.int64(m.starting[i])
            if task < m.n:
                a = np.int64(m.home[task])
                end = now + m.op_s[task * m.size + a]
                if m.memory:
                    m.used[a] += m.op_bytes[task]
                    if m.used[a] > peak[a]:
                        peak[a] = m.used[a]
            else:
                k = task - m.n
                x = np.int64(m.copy_tensor[k])
                b = np.int64(m.copy_dst[k])
                route = m.tensor_home[x] * m.size + b
                seconds = m.latency_s[route] + m.tensor_bytes[x] * m.s_per_byte[route]
                if m.noisy:
                    seconds *= m.noise[x * m.size + b]
                end = now + seconds
                if m.memory:
                    for j in range(k, k + (np.int64(m.n_copies[x]) if m.multicast else 1)):
                        b = np.int64(m.copy_dst[j])
                        m.used[b] += m.tensor_bytes[x]
                        if m.used[b] > peak[b]:
                            peak[b] = m.used[b]
            if m.record:
                m.times[task] = now
                m.times[m.tasks + task] = end
                why = np.int64(-1) if m.bulk else np.int64(m.ready_by[task])
                if not m.bulk and now > (m.times[m.tasks + why] if why >= 0 else 0.0):  # it waited in its queue
                    q = a if task < m.n else np.int64(m.queue_of_route[route])
                    if q < m.first_shared:
                        why = np.int64(m.released_by[q])
                    else:
                        for j in range(m.held_ptr[q - m.first_shared], m.held_ptr[q - m.first_shared + 1]):
                            why = np.int64(m.released_by[m.n_queues + m.held[j]])
                            if why >= 0 and m.times[m.tasks + why] == now:
                                break
                m.cause[task], m.rounds[task] = why, round_
            push_event(m.event_s, m.event_task, n_events, end, task)
            n_events += 1

        # ---- 5. nothing runs: the end, or a barrier
        round_ += 1
        if n_events == 0:
            phase += 1
            if not m.bulk or phase > 2 * m.n_levels:
                break
            level = (phase - 1) >> 1
            for i in range(m.level_ptr[level], m.level_ptr[level + 1]):
                if phase & 1:
                    m.fresh[n_fresh] = m.level_op[i]
                    n_fresh += 1
                else:
                    m.done[n_done] = m.level_op[i]
                    n_done += 1
            continue

        # ---- 6. all completions of the next instant
        now = m.event_s[0]
        while n_events > 0 and m.event_s[0] == now:
            task = np.int64(m.event_task[0])
            n_events -= 1
            drop_event(m.event_s, m.event_task, n_events)
            if m.record:
                m.released_by[m.n_queues + m.n_channels] = task
            if task < m.n:
                a = np.int64(m.home[task])
                m.free[a] += 1
                if m.record:
                    m.released_by[a] = task
                if m.mark[a] != round_:
                    m.mark[a] = round_
                    m.touched[n_touched] = a
                    n_touched += 1
                if m.memory:
                    m.used[a] -= m.unread_bytes[task]
                    for j in range(m.input_ptr[task], m.input_ptr[task + 1]):
                        x = np.int64(m.input_tensor[j])
                        if m.tensor_home[x] == a:
                            s = np.int64(m.storage[x])
                            m.readers[s] -= 1
                            if m.readers[s] == 0:
                                m.used[a] -= m.home_bytes[s]
                        else:
                            k = np.int64(m.edge_copy[j]) - 1 if ahead else np.int64(-1)
                            if k < 0:
                                k = np.int64(m.first_copy[x])
                                while m.copy_dst[k] != a:
                                    k += 1
                            m.copy_readers[k] -= 1
                            if m.copy_readers[k] == 0:
                                m.used[a] -= m.tensor_bytes[x]
                if ahead:
                    k = np.int64(m.gated[task])
                    while k >= 0:
                        m.requested[n_requested] = k
                        n_requested += 1
                        k = np.int64(m.gated_after[k])
                if not m.bulk:
                    m.done[n_done] = task
                    n_done += 1
            else:
                k = task - m.n
                x = np.int64(m.copy_tensor[k])
                a = np.int64(m.tensor_home[x])
                d = np.int64(m.copy_dst[k])
                q = np.int64(m.queue_of_route[a * m.size + d])
                if q < m.first_shared:
                    m.free[q] += 1
                    if m.record:
                        m.released_by[q] = task
                    if m.mark[q] != round_:
                        m.mark[q] = round_
                        m.touched[n_touched] = q
                        n_touched += 1
                else:
                    for j in range(m.held_ptr[q - m.first_shared], m.held_ptr[q - m.first_shared + 1]):
                        c = np.int64(m.held[j])
                        m.channel_free[c] += 1
                        if m.record:
                            m.released_by[m.n_queues + c] = task
                        for u in range(m.user_ptr[c], m.user_ptr[c + 1]):
                            q = np.int64(m.user[u])
                            if m.head[q] >= 0 and m.mark[q] != round_:
                                m.mark[q] = round_
                                m.candidates[n_candidates] = q
                                n_candidates += 1
                if m.memory:
                    s = np.int64(m.storage[x])
                    m.readers[s] -= 1
                    if m.readers[s] == 0:
                        m.used[a] -= m.home_bytes[s]
                if k < n_ahead:
                    i = np.int64(m.copy_reads[k])
                    while i >= 0:
                        c = np.int64(m.read_op[i])
                        m.missing[c] -= 1
                        if m.missing[c] == 0:
                            m.fresh[n_fresh] = c
                            n_fresh += 1
                            if m.record:
                                m.ready_by[c] = task
                        i = np.int64(m.read_after[i])
                elif not m.bulk:
                    for j in range(m.consumer_ptr[x], m.consumer_ptr[x + 1]):
                        c = np.int64(m.consumer_op[j])
                        b = np.int64(m.home[c])
                        if b == d or (m.multicast and b != a):
                            m.missing[c] -= 1
                            if m.missing[c] == 0:
                                m.fresh[n_fresh] = c
                                n_fresh += 1
                                if m.record:
                                    m.ready_by[c] = task
    if m.record:
        m.released_by[m.n_queues + m.n_channels + 1] = known
    return now
