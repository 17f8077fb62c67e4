// The simulator's rules for plain machines in C++, for benchmarks/simulator.py: what its compiled kernel is compared with.
//
// Operations with one output each, one link for each ordered pair of devices, one stream a device; ready tasks start first come
// first served or by priority, in pairing heaps. A binary heap has the events. Built with -O3 alone, because -march=native makes
// it slower on some processors.

#include <cstdint>
#include <cstring>
#include <vector>

using Int = int32_t;

struct Problem {
    Int n, edges, devices;
    const Int *consumer_ptr, *consumer, *input_ptr, *input, *inputs;  // of operations, by operation
    const double *op_s, *bytes, *latency_s, *s_per_byte;              // [n, devices], [n], [devices, devices] twice
};

struct Event {
    double time_s;
    Int number, task;  // events of one time happen in the order in which they were made
};

struct Work {
    std::vector<Int> missing, copy_of, copy_to, copy_readers, readers, copy_at, head, tail, link, child, arrival, open, touched, latest;
    std::vector<uint8_t> is_touched;
    std::vector<double> key, used, copy_key;
    std::vector<Event> events;

    explicit Work(const Problem &p) {
        const Int tasks = p.n + p.edges, queues = p.devices + p.devices * p.devices;
        for (auto *v : {&missing, &readers}) v->resize(p.n);
        for (auto *v : {&copy_of, &copy_to, &copy_readers}) v->resize(p.edges + 1);
        for (auto *v : {&head, &tail, &open, &touched}) v->resize(queues);
        for (auto *v : {&link, &child, &arrival}) v->resize(tasks);
        copy_at.resize(p.n * p.devices);
        latest.resize(p.devices);
        is_touched.resize(queues);
        key.resize(tasks);
        used.resize(p.devices);
        copy_key.resize(p.edges + 1);
        events.resize(queues + 1);
    }
};

static inline Int meld(Int a, Int b, const Work &w, Int *child, Int *link) {
    if (a < 0) return b;
    if (b < 0) return a;
    if (w.key[b] < w.key[a] || (w.key[b] == w.key[a] && w.arrival[b] < w.arrival[a])) std::swap(a, b);
    link[b] = child[a];
    child[a] = b;
    return a;
}

static Int without_root(Int root, const Work &w, Int *child, Int *link) {
    Int x = child[root], pairs = -1;
    while (x >= 0) {
        const Int y = link[x];
        if (y < 0) {
            link[x] = pairs;
            pairs = x;
            break;
        }
        const Int after = link[y];
        link[x] = link[y] = -1;
        const Int melded = meld(x, y, w, child, link);
        link[melded] = pairs;
        pairs = melded;
        x = after;
    }
    Int heap = -1;
    while (pairs >= 0) {
        const Int after = link[pairs];
        link[pairs] = -1;
        heap = meld(heap, pairs, w, child, link);
        pairs = after;
    }
    return heap;
}

static inline bool before(const Event &a, const Event &b) {
    return a.time_s < b.time_s || (a.time_s == b.time_s && a.number < b.number);
}

template <bool RANKED, bool MEMORY>
static double simulate(const Problem &p, const Int *home, const double *rank, double *peak, Work &w) {
    const Int n = p.n, d = p.devices, queues = d + d * d;
    Int *missing = w.missing.data(), *link = w.link.data(), *child = w.child.data(), *head = w.head.data(), *tail = w.tail.data();
    Event *events = w.events.data();
    memcpy(missing, p.inputs, n * sizeof(Int));
    for (Int q = 0; q < queues; q++) head[q] = -1, w.is_touched[q] = 0, w.open[q] = 1;
    for (Int a = 0; a < d; a++) w.latest[a] = -1;
    if (MEMORY) {
        memset(w.readers.data(), 0, n * sizeof(Int));
        for (Int a = 0; a < d; a++) w.used[a] = peak[a] = 0;
    }
    Int n_touched = 0, n_events = 0, n_made = 0, n_arrived = 0, n_copies = 0;
    double now = 0;
    auto touch = [&](Int q) {
        if (!w.is_touched[q]) w.is_touched[q] = 1, w.touched[n_touched++] = q;
    };
    auto enqueue = [&](Int q, Int task, double key) {
        link[task] = -1;
        if (RANKED) {
            child[task] = -1, w.key[task] = key, w.arrival[task] = n_arrived++;
            head[q] = meld(head[q], task, w, child, link);
        } else {
            if (head[q] < 0) head[q] = task;
            else link[tail[q]] = task;
            tail[q] = task;
        }
        touch(q);
    };
    for (Int v = 0; v < n; v++)
        if (!missing[v]) enqueue(home[v], v, RANKED ? rank[v] : 0);
    for (;;) {
        for (Int i = 0; i < n_touched; i++) {  // start what can start
            const Int q = w.touched[i];
            w.is_touched[q] = 0;
            while (w.open[q] > 0 && head[q] >= 0) {
                const Int task = head[q];
                w.open[q]--;
                head[q] = RANKED ? without_root(task, w, child, link) : link[task];
                double seconds, bytes;
                Int at;
                if (task < n) {
                    at = home[task], bytes = p.bytes[task], seconds = p.op_s[task * d + at];
                } else {
                    const Int k = task - n, v = w.copy_of[k], a = home[v];
                    at = w.copy_to[k], bytes = p.bytes[v];
                    seconds = p.latency_s[a * d + at] + bytes * p.s_per_byte[a * d + at];
                }
                if (MEMORY && (w.used[at] += bytes) > peak[at]) peak[at] = w.used[at];
                const double end = now + seconds;
                Int j = n_events++;
                for (Int up; j > 0 && events[up = (j - 1) >> 1].time_s > end; j = up) events[j] = events[up];
                events[j] = {end, n_made++, task};
            }
        }
        n_touched = 0;
        if (!n_events) return now;
        now = events[0].time_s;
        while (n_events > 0 && events[0].time_s == now) {  // all that ends now
            const Int task = events[0].task;
            if (--n_events > 0) {
                const Event last = events[n_events];
                Int j = 0;
                for (Int c; (c = 2 * j + 1) < n_events; j = c) {
                    if (c + 1 < n_events && before(events[c + 1], events[c])) c++;
                    if (!before(events[c], last)) break;
                    events[j] = events[c];
                }
                events[j] = last;
            }
            if (task < n) {
                const Int v = task, a = home[v], first = n_copies;
                w.open[a]++;
                touch(a);
                if (MEMORY) {
                    if (p.consumer_ptr[v] == p.consumer_ptr[v + 1]) w.used[a] -= p.bytes[v];  // nobody reads its output
                    for (Int e = p.input_ptr[v]; e < p.input_ptr[v + 1]; e++) {
                        const Int u = p.input[e];
                        Int &left = home[u] == a ? w.readers[u] : w.copy_readers[w.copy_at[u * d + a]];
                        if (!--left) w.used[a] -= p.bytes[u];
                    }
                }
                for (Int e = p.consumer_ptr[v]; e < p.consumer_ptr[v + 1]; e++) {
                    const Int c = p.consumer[e], b = home[c];
                    if (b == a) {
                        if (MEMORY) w.readers[v]++;
                        if (!--missing[c]) enqueue(a, c, RANKED ? rank[c] : 0);
                        continue;
                    }
                    const Int k = w.latest[b];
                    if (k < first) {
                        w.latest[b] = n_copies, w.copy_of[n_copies] = v, w.copy_to[n_copies] = b;
                        if (RANKED) w.copy_key[n_copies] = rank[c];
                        if (MEMORY) w.copy_readers[n_copies] = 1, w.copy_at[v * d + b] = n_copies, w.readers[v]++;
                        n_copies++;
                    } else {
                        if (MEMORY) w.copy_readers[k]++;
                        if (RANKED && rank[c] < w.copy_key[k]) w.copy_key[k] = rank[c];
                    }
                }
                for (Int k = first; k < n_copies; k++) enqueue(d + a * d + w.copy_to[k], n + k, RANKED ? w.copy_key[k] : 0);
            } else {
                const Int k = task - n, v = w.copy_of[k], a = home[v], b = w.copy_to[k], q = d + a * d + b;
                w.open[q]++;
                touch(q);
                if (MEMORY && !--w.readers[v]) w.used[a] -= p.bytes[v];
                for (Int e = p.consumer_ptr[v]; e < p.consumer_ptr[v + 1]; e++) {
                    const Int c = p.consumer[e];
                    if (home[c] == b && !--missing[c]) enqueue(b, c, RANKED ? rank[c] : 0);
                }
            }
        }
    }
}

// `count` placements [count, n]; `rank` [count, n], lower first, or none; values [count], peaks [count, devices].
extern "C" void simulate_batch(Int n, Int edges, Int devices, const Int *consumer_ptr, const Int *consumer, const Int *input_ptr,
                               const Int *input, const Int *inputs, const double *op_s, const double *bytes,
                               const double *latency_s, const double *s_per_byte, Int count, const Int *homes, const double *rank,
                               Int memory, double *value_s, double *peak_bytes) {
    const Problem p{n, edges, devices, consumer_ptr, consumer, input_ptr, input, inputs, op_s, bytes, latency_s, s_per_byte};
    Work w(p);
    for (Int i = 0; i < count; i++) {
        const Int *home = homes + int64_t(i) * n;
        const double *r = rank ? rank + int64_t(i) * n : nullptr;
        double *peak = peak_bytes + int64_t(i) * devices;
        value_s[i] = r ? (memory ? simulate<true, true>(p, home, r, peak, w) : simulate<true, false>(p, home, r, peak, w))
                       : (memory ? simulate<false, true>(p, home, r, peak, w) : simulate<false, false>(p, home, r, peak, w));
    }
}
