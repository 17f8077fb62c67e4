"""The machine model of docs/machine-model.md as a compiled loop over rounds, which allocates no memory.

Tasks are numbers: operation v is task v. A *copy* is a tensor as one device receives it; the transfer that delivers copy k (and
with multicast the copies after it) is task n + k. Copies are numbered in the order in which they are announced: (round, tensor,
destination). With `prefetch`, the copies of source tensors come before all others, in the order in which they are needed. Queues
are stored in arrays: as lists (`link`) in first-come order, or as pairing heaps (`link`, `child`) if a rank or priority decides.
"""
# mypy: ignore-errors
# numba checks the types: compiled_variants.py compiles `simulate` with an explicit signature.

from __future__ import annotations

import numpy as np
from placekit_scheduling import BY_HOST
from placekit_scheduling.heaps import NEAR, drop_event, enqueue, insert_event, push_event, without_root
from placekit_scheduling.jit import at

from placekit_sim.next_task import choose, first_come, sort
from placekit_sim.prefetching import plan_ahead
from placekit_sim.run_start import set_placement, set_start


def simulate(device, priority, m, peak):
    """Makespan of one placement in seconds; see `placekit_scheduling.Kernel` for the arguments."""
    ranked = m.order == 1 or (m.order == 2 and len(priority) > 0) or m.ahead or m.arrival
    # ---- the placement
    set_placement(m, device, priority, ranked, peak)
    now, n_touched, n_candidates = 0.0, np.int64(0), np.int64(0)
    # events: the next ones in a short sorted list, the rest in a heap
    first, last, n_far = np.int64(0), np.int64(0), np.int64(0)
    known, n_requested = np.int64(0), np.int64(0)  # copies announced so far, copies of sources to queue now
    arrivals, round_ = np.int64(0), np.int64(0)  # arrivals in queues so far: break ties of rank in first-come order
    n_started, new = np.int64(0), np.int64(0)  # with `arrival`: tasks started so far, `arrivals` before this round
    n_done, n_fresh = set_start(m)
    if m.ahead:
        known, n_requested = plan_ahead(m)
    n_ahead = known if m.ahead else np.int64(0)
    phase = np.int64(0)  # bulk: even, transfers after level phase/2 - 1; odd, level (phase-1)/2

    while True:
        if m.arrival:
            new = arrivals
        # ---- 1. announce outputs: tell local consumers, queue the transfers
        for i in range(n_done):
            v = at(m.done[i])
            a = at(m.home[v])
            for x in range(at(m.output_ptr[v]), at(m.output_ptr[v + 1])):
                m.tensor_home[x] = a
                n_to, n_readers = np.int64(0), np.int64(0)
                for j in range(at(m.consumer_ptr[x]), at(m.consumer_ptr[x + 1])):
                    c = at(m.consumer_op[j])
                    b = at(m.home[c])
                    if b == a:
                        n_readers += 1
                        if not m.bulk:
                            m.missing[c] -= 1
                            if m.missing[c] == 0:
                                m.fresh[n_fresh] = c
                                n_fresh += 1
                                m.ready_by[c] = v
                    elif not m.ahead or round_ > 0:  # sources end in the first round; plan_ahead has their copies
                        if m.to_readers[b] == 0:
                            k = n_to
                            while k > 0 and m.to[k - 1] > b and (m.multicast or not m.arrival):
                                m.to[k] = m.to[k - 1]
                                k -= 1
                            m.to[k] = b
                            n_to += 1
                            if ranked:
                                m.to_rank[b] = m.rank[c]
                        elif ranked:
                            m.to_rank[b] = min(m.to_rank[b], m.rank[c])
                        m.to_readers[b] += 1
                m.first_copy[x] = known
                if m.multicast:
                    m.n_copies[x] = n_to
                best = np.int64(2147483647)
                for k in range(n_to):
                    b = at(m.to[k])
                    m.copy_tensor[known] = x
                    m.copy_dst[known] = b
                    if m.memory:
                        m.copy_readers[known] = m.to_readers[b]
                    m.to_readers[b] = 0
                    rank = np.int64(m.to_rank[b]) if ranked else np.int64(0)
                    task = m.n + known
                    known += 1
                    if m.multicast:
                        best = min(best, rank)
                        if k < n_to - 1:
                            continue
                        task, rank = m.n + at(m.first_copy[x]), best
                    n_readers += 1
                    m.ready_by[task] = v
                    q = at(m.queue_of_route[a * m.size + b])
                    if ranked:
                        m.key[task] = (rank << 32) + arrivals
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
                    m.readers[at(m.storage[x])] += n_readers - m.in_place[x]
        n_done = 0
        if n_requested > 0:
            sort(m.requested, np.int64(0), n_requested)
            for i in range(n_requested):
                k = at(m.requested[i])
                q = at(m.queue_of_route[at(m.tensor_home[at(m.copy_tensor[k])]) * m.size + m.copy_dst[k]])
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
        if n_fresh > 1 and not m.arrival:
            sort(m.fresh, np.int64(0), n_fresh)
        for i in range(n_fresh):
            v = at(m.fresh[i])
            if m.hosted and m.launched_s[v] > now:  # it is an event until its host has launched it
                if last - first < NEAR:
                    first, last = insert_event(m.near_s, m.near_task, first, last, m.launched_s[v], m.tasks + v)
                else:
                    push_event(m.far_s, m.far_task, n_far, m.launched_s[v], m.tasks + v)
                    n_far += 1
                continue
            q = at(m.home[v])
            if ranked:
                m.key[v] = (np.int64(m.rank[v]) << 32) + arrivals
                arrivals += 1
            enqueue(q, v, ranked, m.head, m.tail, m.key, m.child, m.link)
            if m.mark[q] != round_:
                m.mark[q] = round_
                m.touched[n_touched] = q
                n_touched += 1
        n_fresh = 0

        # ---- 3. start tasks: from queues that have their own resource, then from queues that compete for channels
        i_touched = np.int64(0)
        while True:
            if m.arrival and n_touched > 0:
                q = first_come(m.touched, n_touched, m.free, m.head, m.key, new)
                if q < 0:
                    n_touched = 0
                    continue
                task = at(m.head[q])
                m.free[q] -= 1
            elif i_touched < n_touched:
                q = at(m.touched[i_touched])
                if m.free[q] == 0 or m.head[q] < 0:
                    i_touched += 1
                    continue
                task = at(m.head[q])
                m.free[q] -= 1
            elif n_candidates > 0:
                q, n_candidates = choose(
                    m.candidates,
                    n_candidates,
                    m.head,
                    m.channel_free,
                    m.held_ptr,
                    m.held,
                    m.first_shared,
                    ranked,
                    m.key,
                )
                if q < 0:
                    continue
                task = at(m.head[q])
                for j in range(at(m.held_ptr[q - m.first_shared]), at(m.held_ptr[q - m.first_shared + 1])):
                    m.channel_free[at(m.held[j])] -= 1
            else:
                break
            m.head[q] = without_root(task, m.key, m.child, m.link) if ranked else m.link[task]
            if task < m.n:
                a = at(m.home[task])
                seconds = m.op_s[task * m.size + a]
                end = now + seconds
                if m.memory:
                    m.used[a] += m.op_bytes[task]
                    if m.used[a] > peak[a]:
                        peak[a] = m.used[a]
            else:
                k = task - m.n
                x = at(m.copy_tensor[k])
                b = at(m.copy_dst[k])
                route = at(m.tensor_home[x]) * m.size + b
                seconds = m.latency_s[route] + m.tensor_bytes[x] * m.s_per_byte[route]
                if m.noisy:
                    seconds *= m.noise[x * m.size + b]
                end = now + seconds
                if m.memory:
                    for j in range(k, k + (at(m.n_copies[x]) if m.multicast else 1)):
                        b = at(m.copy_dst[j])
                        m.used[b] += m.tensor_bytes[x]
                        if m.used[b] > peak[b]:
                            peak[b] = m.used[b]
            m.times[task] = now
            m.times[m.tasks + task] = end
            why = np.int64(-1) if m.bulk else np.int64(m.ready_by[task])
            if m.hosted and task < m.n and m.launched_s[task] == now and now > 0.0:
                why = np.int64(BY_HOST)
            elif not m.bulk and now > (m.times[m.tasks + why] if why >= 0 else 0.0):  # it waited in its queue
                q = a if task < m.n else at(m.queue_of_route[route])
                if q < m.first_shared:
                    why = np.int64(m.released_by[q])
                else:
                    for j in range(at(m.held_ptr[q - m.first_shared]), at(m.held_ptr[q - m.first_shared + 1])):
                        why = np.int64(m.released_by[m.n_queues + m.held[j]])
                        if why >= 0 and m.times[m.tasks + why] == now:
                            break
            m.cause[task], m.rounds[task] = why, round_
            if m.arrival:
                m.started[n_started] = task
                task = n_started
                n_started += 1
            if last - first < NEAR:
                first, last = insert_event(m.near_s, m.near_task, first, last, end, task)
            else:
                push_event(m.far_s, m.far_task, n_far, end, task)
                n_far += 1

        n_touched = 0

        # ---- 4. if nothing runs: the end, or a barrier
        round_ += 1
        if first == last and n_far == 0:
            phase += 1
            if not m.bulk or phase > 2 * m.n_levels:
                break
            level = (phase - 1) >> 1
            for i in range(at(m.level_ptr[level]), at(m.level_ptr[level + 1])):
                if phase & 1:
                    m.fresh[n_fresh] = m.level_op[i]
                    n_fresh += 1
                else:
                    m.done[n_done] = m.level_op[i]
                    n_done += 1
            continue

        # ---- 5. all completions of the next instant
        now = m.near_s[at(first)] if first < last else m.far_s[0]
        if n_far > 0:
            now = min(now, m.far_s[0])
        sent, n_before = np.int64(-1), np.int64(0)  # with `arrival`: the latest tensor, and `n_fresh` before it
        while True:
            near = first < last and m.near_s[at(first)] == now
            if n_far > 0 and m.far_s[0] == now and not (near and m.near_task[at(first)] < m.far_task[0]):
                task = at(m.far_task[0])
                n_far -= 1
                drop_event(m.far_s, m.far_task, n_far)
            elif near:
                task = at(m.near_task[at(first)])
                first += 1
            else:
                break
            if m.hosted and task >= m.tasks:
                m.fresh[n_fresh] = task - m.tasks
                n_fresh += 1
                continue
            if m.arrival:
                task = at(m.started[task])
            m.last[0] = task
            if task < m.n:
                a = at(m.home[task])
                m.free[a] += 1
                m.released_by[a] = task
                if m.mark[a] != round_:
                    m.mark[a] = round_
                    m.touched[n_touched] = a
                    n_touched += 1
                if m.memory:
                    m.used[a] -= m.unread_bytes[task]
                    for j in range(at(m.input_ptr[task]), at(m.input_ptr[task + 1])):
                        x = at(m.input_tensor[j])
                        if m.tensor_home[x] == a:
                            s = at(m.storage[x])
                            m.readers[s] -= 1
                            if m.readers[s] == 0:
                                m.used[a] -= m.home_bytes[s]
                        else:
                            k = np.int64(m.edge_copy[j]) - 1 if m.ahead else np.int64(-1)
                            if k < 0:
                                k = at(m.first_copy[x])
                                while m.copy_dst[k] != a:
                                    k += 1
                            m.copy_readers[k] -= 1
                            if m.copy_readers[k] == 0:
                                m.used[a] -= m.tensor_bytes[x]
                if m.ahead:
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
                x = at(m.copy_tensor[k])
                a = at(m.tensor_home[x])
                d = at(m.copy_dst[k])
                q = at(m.queue_of_route[a * m.size + d])
                if q < m.first_shared:
                    m.free[q] += 1
                    m.released_by[q] = task
                    if m.mark[q] != round_:
                        m.mark[q] = round_
                        m.touched[n_touched] = q
                        n_touched += 1
                else:
                    for j in range(at(m.held_ptr[q - m.first_shared]), at(m.held_ptr[q - m.first_shared + 1])):
                        c = at(m.held[j])
                        m.channel_free[c] += 1
                        m.released_by[m.n_queues + c] = task
                        for u in range(at(m.user_ptr[c]), at(m.user_ptr[c + 1])):
                            q = at(m.user[u])
                            if m.head[q] >= 0 and m.mark[q] != round_:
                                m.mark[q] = round_
                                m.candidates[n_candidates] = q
                                n_candidates += 1
                if m.memory:
                    s = at(m.storage[x])
                    m.readers[s] -= 1
                    if m.readers[s] == 0:
                        m.used[a] -= m.home_bytes[s]
                if m.arrival and x != sent:
                    sent, n_before = x, n_fresh
                if k < n_ahead:
                    i = np.int64(m.copy_reads[k])
                    while i >= 0:
                        c = np.int64(m.read_op[i])
                        m.missing[c] -= 1
                        if m.missing[c] == 0:
                            m.fresh[n_fresh] = c
                            n_fresh += 1
                            m.ready_by[c] = task
                        i = np.int64(m.read_after[i])
                elif not m.bulk:
                    for j in range(at(m.consumer_ptr[x]), at(m.consumer_ptr[x + 1])):
                        c = at(m.consumer_op[j])
                        b = at(m.home[c])
                        if b == d or (m.multicast and b != a):
                            m.missing[c] -= 1
                            if m.missing[c] == 0:
                                m.fresh[n_fresh] = c
                                n_fresh += 1
                                m.ready_by[c] = task
                if m.arrival and n_fresh > n_before + 1:
                    sort(m.fresh, n_before, n_fresh)
    m.copies[0] = known
    if m.ticks_per_s[0] != 1.0:
        for i in range(m.n + known):
            m.times[i] /= m.ticks_per_s[0]
            m.times[m.tasks + i] /= m.ticks_per_s[0]
    return now / m.ticks_per_s[0]
