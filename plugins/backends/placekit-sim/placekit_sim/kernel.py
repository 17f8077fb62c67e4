"""The machine model compiled by numba: the same rounds as reference.py, without allocating anything.

Tasks are numbers: operation v is v; the transfer that makes received copies k, k+1, ... is n + k. Copies are numbered as
they are announced, which is in the order (round, tensor, destination). Queues are intrusive: lists through `link` in
first-come order, pairing heaps through `link` and `child` where a rank or priority decides (heaps.py).
"""
# mypy: ignore-errors
# Types in here are numba's business; the signature of `simulate` is explicit.

from __future__ import annotations

import numpy as np
from numba import njit

from placekit_core.measurement import kernel_signature
from placekit_sim.heaps import enqueue, push, remove_first, sort, without_root
from placekit_sim.packing import HEADER, OFFSETS


@njit(kernel_signature(), cache=True, nogil=True)
def simulate(device, priority, ints, floats, scratch_ints, scratch_floats, peak):
    """Makespan in seconds of one placement; see `placekit_core.measurement.Kernel` for the arguments."""
    n, t, tasks, size = np.int64(ints[0]), np.int64(ints[1]), np.int64(ints[2]), np.int64(ints[3])
    g, n_queues, first_shared, n_channels = np.int64(ints[4]), np.int64(ints[5]), np.int64(ints[6]), np.int64(ints[7])
    n_sources, n_roots, order, n_levels = np.int64(ints[8]), np.int64(ints[9]), np.int64(ints[10]), np.int64(ints[14])
    memory, multicast, bulk, noisy, record = ints[11] != 0, ints[12] != 0, ints[13] != 0, ints[15] != 0, ints[16] != 0
    ranked = order == 1 or (order == 2 and len(priority) > 0)
    w, f, si, sf, at = ints, floats, scratch_ints, scratch_floats, ints[OFFSETS:HEADER]
    # ---- the problem, then the working arrays
    group_of, n_inputs, output_ptr, input_ptr, input_tensor = w[at[0] :], w[at[1] :], w[at[2] :], w[at[3] :], w[at[4] :]
    consumer_ptr, consumer_op, storage, sources, roots = w[at[5] :], w[at[6] :], w[at[7] :], w[at[8] :], w[at[9] :]
    fixed_rank, level_ptr, level_op, capacity = w[at[10] :], w[at[11] :], w[at[12] :], w[at[13] :]
    queue_of_route, held_ptr, held, channel_capacity = w[at[14] :], w[at[15] :], w[at[16] :], w[at[17] :]
    user_ptr, user = w[at[18] :], w[at[19] :]
    op_s, tensor_bytes, home_bytes, op_bytes = f[at[20] :], f[at[21] :], f[at[22] :], f[at[23] :]
    unread_bytes, group_bytes, latency_s, s_per_byte = f[at[24] :], f[at[25] :], f[at[26] :], f[at[27] :]
    noise = f[at[28] :]
    home, missing, rank, done, fresh = si[at[29] :], si[at[30] :], si[at[31] :], si[at[32] :], si[at[33] :]
    readers, tensor_home, first_copy, n_copies = si[at[34] :], si[at[35] :], si[at[36] :], si[at[37] :]
    copy_tensor, copy_dst, copy_readers, link = si[at[38] :], si[at[39] :], si[at[40] :], si[at[41] :]
    child, event_task, starting, head, tail = si[at[42] :], si[at[43] :], si[at[44] :], si[at[45] :], si[at[46] :]
    free, mark, touched, candidates, channel_free = si[at[47] :], si[at[48] :], si[at[49] :], si[at[50] :], si[at[51] :]
    to, to_readers, to_rank = si[at[52] :], si[at[53] :], si[at[54] :]
    cause, ready_by, released_by = si[at[55] :], si[at[56] :], si[at[57] :]
    event_s, key, used, times = sf[at[58] :], sf[at[59] : at[60]].view(np.int64), sf[at[60] :], sf[at[61] :]
    # ---- the placement
    for d in range(size):
        used[d], to_readers[d] = 0.0, 0
    for i in range(g):
        used[device[i]] += group_bytes[i]
    for d in range(size):
        peak[d] = used[d]
    for v in range(n):
        home[v], missing[v] = device[group_of[v]], n_inputs[v]
    if ranked and order == 1:
        for v in range(n):
            rank[v] = fixed_rank[v]
    elif ranked:
        bits = priority.view(np.int32)
        for v in range(n):
            b = bits[group_of[v]] if bits[group_of[v]] != -2147483648 else 0  # -0.0 equals 0.0
            # floats order like the integers of their bits, negative ones backwards; the highest is to come first
            rank[v] = ~b if b >= 0 else ~(b ^ 2147483647)
    if memory:
        for x in range(t):
            readers[x] = 0
    for q in range(n_queues):
        head[q], mark[q], free[q] = -1, -1, capacity[q]
    for c in range(n_channels):
        channel_free[c] = channel_capacity[c]
    n_done = n_sources
    for i in range(n_sources):
        done[i] = sources[i]
    n_fresh = np.int64(0)
    if not bulk:
        n_fresh = n_roots
        for i in range(n_roots):
            fresh[i] = roots[i]
    if record:
        for i in range(n_sources):
            cause[sources[i]], times[tasks + sources[i]] = -1, 0.0
        for i in range(n_roots):
            ready_by[roots[i]] = -1
        for q in range(n_queues + n_channels + 1):
            released_by[q] = -1
    now, n_events, n_touched, n_candidates = 0.0, np.int64(0), np.int64(0), np.int64(0)
    known = np.int64(0)  # copies announced so far
    arrivals = np.int64(0)  # breaks ties of rank in first-come order
    round_ = np.int64(0)
    phase = np.int64(0)  # bulk: even, transfers after level phase/2 - 1; odd, level (phase-1)/2

    while True:
        # ---- 1. announce outputs: tell local consumers, queue the transfers
        for i in range(n_done):
            v = np.int64(done[i])
            a = np.int64(home[v])
            for x in range(output_ptr[v], output_ptr[v + 1]):
                tensor_home[x] = a
                n_to, n_readers = np.int64(0), np.int64(0)
                for j in range(consumer_ptr[x], consumer_ptr[x + 1]):
                    c = np.int64(consumer_op[j])
                    b = np.int64(home[c])
                    if b == a:
                        n_readers += 1
                        if not bulk:
                            missing[c] -= 1
                            if missing[c] == 0:
                                fresh[n_fresh] = c
                                n_fresh += 1
                                if record:
                                    ready_by[c] = v
                    else:
                        if to_readers[b] == 0:
                            k = n_to
                            while k > 0 and to[k - 1] > b:
                                to[k] = to[k - 1]
                                k -= 1
                            to[k] = b
                            n_to += 1
                            to_rank[b] = rank[c]
                        elif rank[c] < to_rank[b]:
                            to_rank[b] = rank[c]
                        to_readers[b] += 1
                first_copy[x] = known
                n_copies[x] = n_to
                best = np.int64(2147483647)
                for k in range(n_to):
                    b = np.int64(to[k])
                    copy_tensor[known] = x
                    copy_dst[known] = b
                    copy_readers[known] = to_readers[b]
                    to_readers[b] = 0
                    best = min(best, np.int64(to_rank[b]))
                    known += 1
                    if multicast and k < n_to - 1:
                        continue
                    task = n + known - 1
                    r = np.int64(to_rank[b])
                    if multicast:
                        task = n + first_copy[x]
                        r = best
                    n_readers += 1
                    if record:
                        ready_by[task] = v
                    q = np.int64(queue_of_route[a * size + b])
                    if ranked:
                        key[task] = (r << 32) + arrivals
                        arrivals += 1
                    enqueue(q, task, ranked, head, tail, key, child, link)
                    if mark[q] != round_:
                        mark[q] = round_
                        if q < first_shared:
                            touched[n_touched] = q
                            n_touched += 1
                        else:
                            candidates[n_candidates] = q
                            n_candidates += 1
                if memory:
                    readers[storage[x]] += n_readers
        n_done = 0

        # ---- 2. queue the operations that became ready in this round, by index
        sort(fresh, n_fresh)
        for i in range(n_fresh):
            v = np.int64(fresh[i])
            q = np.int64(home[v])
            if ranked:
                key[v] = (np.int64(rank[v]) << 32) + arrivals
                arrivals += 1
            enqueue(q, v, ranked, head, tail, key, child, link)
            if mark[q] != round_:
                mark[q] = round_
                touched[n_touched] = q
                n_touched += 1
        n_fresh = 0

        # ---- 3. choose what starts: queues with a resource of their own, then those that share channels
        n_starting = np.int64(0)
        for i in range(n_touched):
            q = np.int64(touched[i])
            while free[q] > 0 and head[q] >= 0:
                task = np.int64(head[q])
                head[q] = without_root(task, key, child, link) if ranked else link[task]
                free[q] -= 1
                starting[n_starting] = task
                n_starting += 1
        n_touched = 0
        while n_candidates > 0:
            chosen, best, i = np.int64(-1), np.int64(0), np.int64(0)
            while i < n_candidates:
                q = np.int64(candidates[i])
                task = np.int64(head[q])
                can = task >= 0
                if can:
                    for j in range(held_ptr[q - first_shared], held_ptr[q - first_shared + 1]):
                        if channel_free[held[j]] == 0:
                            can = False
                            break
                if not can:  # and it will not be before a channel is released
                    n_candidates -= 1
                    candidates[i] = candidates[n_candidates]
                    continue
                value = key[task] if ranked else task
                if chosen < 0 or value < best:
                    chosen = q
                    best = value
                i += 1
            if chosen < 0:
                break
            task = np.int64(head[chosen])
            head[chosen] = without_root(task, key, child, link) if ranked else link[task]
            for j in range(held_ptr[chosen - first_shared], held_ptr[chosen - first_shared + 1]):
                channel_free[held[j]] -= 1
            starting[n_starting] = task
            n_starting += 1

        # ---- 4. start it
        for i in range(n_starting):
            task = np.int64(starting[i])
            if task < n:
                a = np.int64(home[task])
                end = now + op_s[task * size + a]
                if memory:
                    used[a] += op_bytes[task]
                    if used[a] > peak[a]:
                        peak[a] = used[a]
            else:
                k = task - n
                x = np.int64(copy_tensor[k])
                b = np.int64(copy_dst[k])
                route = tensor_home[x] * size + b
                seconds = latency_s[route] + tensor_bytes[x] * s_per_byte[route]
                if noisy:
                    seconds *= noise[x * size + b]
                end = now + seconds
                if memory:
                    for j in range(k, k + (np.int64(n_copies[x]) if multicast else 1)):
                        b = np.int64(copy_dst[j])
                        used[b] += tensor_bytes[x]
                        if used[b] > peak[b]:
                            peak[b] = used[b]
            if record:
                times[task] = now
                times[tasks + task] = end
                why = np.int64(-1) if bulk else np.int64(ready_by[task])
                if not bulk and now > (times[tasks + why] if why >= 0 else 0.0):  # it waited for what runs it
                    q = a if task < n else np.int64(queue_of_route[route])
                    if q < first_shared:
                        why = np.int64(released_by[q])
                    else:
                        for j in range(held_ptr[q - first_shared], held_ptr[q - first_shared + 1]):
                            why = np.int64(released_by[n_queues + held[j]])
                            if why >= 0 and times[tasks + why] == now:
                                break
                cause[task] = why
            push(event_s, event_task, n_events, end, task)
            n_events += 1

        # ---- 5. nothing runs: the end, or a barrier
        round_ += 1
        if n_events == 0:
            phase += 1
            if not bulk or phase > 2 * n_levels:
                break
            level = (phase - 1) >> 1
            for i in range(level_ptr[level], level_ptr[level + 1]):
                if phase & 1:
                    fresh[n_fresh] = level_op[i]
                    n_fresh += 1
                else:
                    done[n_done] = level_op[i]
                    n_done += 1
            continue

        # ---- 6. all completions of the next instant
        now = event_s[0]
        while n_events > 0 and event_s[0] == now:
            task = np.int64(event_task[0])
            n_events -= 1
            remove_first(event_s, event_task, n_events)
            if record:
                released_by[n_queues + n_channels] = task
            if task < n:
                a = np.int64(home[task])
                free[a] += 1
                if record:
                    released_by[a] = task
                if mark[a] != round_:
                    mark[a] = round_
                    touched[n_touched] = a
                    n_touched += 1
                if memory:
                    used[a] -= unread_bytes[task]
                    for j in range(input_ptr[task], input_ptr[task + 1]):
                        x = np.int64(input_tensor[j])
                        if tensor_home[x] == a:
                            s = np.int64(storage[x])
                            readers[s] -= 1
                            if readers[s] == 0:
                                used[a] -= home_bytes[s]
                        else:
                            k = np.int64(first_copy[x])
                            while copy_dst[k] != a:
                                k += 1
                            copy_readers[k] -= 1
                            if copy_readers[k] == 0:
                                used[a] -= tensor_bytes[x]
                if not bulk:
                    done[n_done] = task
                    n_done += 1
            else:
                k = task - n
                x = np.int64(copy_tensor[k])
                a = np.int64(tensor_home[x])
                d = np.int64(copy_dst[k])
                q = np.int64(queue_of_route[a * size + d])
                if q < first_shared:
                    free[q] += 1
                    if record:
                        released_by[q] = task
                    if mark[q] != round_:
                        mark[q] = round_
                        touched[n_touched] = q
                        n_touched += 1
                else:
                    for j in range(held_ptr[q - first_shared], held_ptr[q - first_shared + 1]):
                        c = np.int64(held[j])
                        channel_free[c] += 1
                        if record:
                            released_by[n_queues + c] = task
                        for u in range(user_ptr[c], user_ptr[c + 1]):
                            q = np.int64(user[u])
                            if head[q] >= 0 and mark[q] != round_:
                                mark[q] = round_
                                candidates[n_candidates] = q
                                n_candidates += 1
                if memory:
                    s = np.int64(storage[x])
                    readers[s] -= 1
                    if readers[s] == 0:
                        used[a] -= home_bytes[s]
                if not bulk:
                    for j in range(consumer_ptr[x], consumer_ptr[x + 1]):
                        c = np.int64(consumer_op[j])
                        b = np.int64(home[c])
                        if b == d or (multicast and b != a):
                            missing[c] -= 1
                            if missing[c] == 0:
                                fresh[n_fresh] = c
                                n_fresh += 1
                                if record:
                                    ready_by[c] = task
    if record:
        released_by[n_queues + n_channels + 1] = known
    return now
