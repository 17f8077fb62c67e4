"""Lower bounds on the makespan: no placement of a Problem that fits in memory is faster, whatever the order of execution.

They hold for the machine model of docs/machine-model.md (work conserving or bulk synchronous, without noise). The proofs use
these facts about every schedule of length T:

- (a) An operation runs once, without interruption, on one stream of its group's device, for as long as it takes there.
  Sources take no time and exist from time 0.
- (b) An operation starts after all kernels that it reads from have ended. A tensor from another device is sent after its
  producer has ended (a source's from time 0), which takes latency + bytes / bandwidth of the route.
- (c) A device runs at most as many operations at a time as it has streams.
- (d) An operation starts after its host has launched it, and a host launches the operations of its devices one after the other.
- (e) The memory of a device holds its persistent bytes together with the inputs and outputs of any operation that it runs.

In all bounds but `critical_path_bound` and `group_bound`, operations are on *kinds* of devices. A transfer between two kinds
takes the least time over all pairs of devices of these kinds. A *head* is a lower bound on the time from the start of the
schedule to the start of an operation, a *tail* one on the time from its end to the end of the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placekit_core import Problem
from placekit_scheduling.bounds.chain import ChainProgram, best_prices
from placekit_scheduling.bounds.channels import busiest_channel
from placekit_scheduling.bounds.kinds import Floats
from placekit_scheduling.bounds.labels import raise_levels
from placekit_scheduling.bounds.launches import all_launched_s, earliest_launch_s
from placekit_scheduling.bounds.refutation import highest_refuted
from placekit_scheduling.bounds.relaxation import Relaxation, longest_window
from placekit_scheduling.bounds.work import packing
from placekit_scheduling.list_scheduling.levels import b_level

# The sums behind a bound and behind a makespan are rounded differently, so bounds are lowered by this share.
ROUNDING = 1e-9
BINDING = 1e-4  # a bound is as good as the highest one if it is lower by this share at most


def makespan_bound(problem: Problem) -> float:
    """The highest of `all_bounds` in seconds, lowered by the share `ROUNDING`. 0 for a graph without kernels."""
    return max(all_bounds(problem).values()) * (1 - ROUNDING)


def all_bounds(problem: Problem) -> dict[str, float]:
    """All bounds in seconds, not yet lowered by `ROUNDING`. `forced` is at least as high as the others.

    Each is the result of the function of its name (`forced_bound`, ...), in the order in which they build on each other:
    `critical_path`, `launch`, `group`, `work`, `communication`, `detour`, `tree`, `window`, `channel`, `chain`, `forced`.
    """
    relaxation = Relaxation.of(problem)
    found = {
        "critical_path": critical_path_bound(problem),
        "launch": launch_bound(problem),
        "group": group_bound(problem),
        "work": work_bound(relaxation),
        "communication": communication_bound(relaxation),
        "detour": detour_bound(relaxation),
        "tree": tree_bound(relaxation),
        "window": window_bound(relaxation),
        "channel": channel_bound(relaxation),
        "chain": chain_bound(relaxation),
    }
    return {**found, "forced": forced_bound(relaxation, max(found.values()))}


def binding_argument(found: Mapping[str, float]) -> str:
    """The name of the first bound in `all_bounds` that is within 0.01% of the highest one.

    Later bounds build on earlier ones, so `forced` is the answer only if a contradiction proves more than all the others.
    """
    highest = max(found.values())
    return next(name for name, bound in found.items() if bound >= highest * (1 - BINDING))


def critical_path_bound(problem: Problem) -> float:
    """Longest path, with every operation on its fastest allowed device and without communication.

    Proof: the operations of a path run one after another, each for at least its time on its fastest allowed device.
    """
    return float(b_level(problem, "min", communication=0.0).max(initial=0.0))


def launch_bound(problem: Problem) -> float:
    """The latest launch and what must follow it; or all launches, divided among the hosts. 0 where launching takes no time.

    Proof: an operation starts after its launch (d), at the earliest at `launches.earliest_launch_s`; it and the operations of the
    longest path from it take at least their times on their fastest devices. With several hosts of a_h seconds per launch, host h
    launches at most T / a_h operations in time T.
    """
    if not problem.cluster.launchers.any:
        return 0.0
    after = earliest_launch_s(problem) + b_level(problem, "min", communication=0.0)
    return max(float(after[problem.graph.kernel].max(initial=0.0)), all_launched_s(problem))


def group_bound(problem: Problem) -> float:
    """The longest group on its fastest device, or the k + 1 shortest of the k D + 1 longest groups, for the best k.

    Proof: all operations of a group run on one allowed device d, whose s streams give at most s T seconds in time T. So
    T >= (seconds of the group on d) / s >= v, the least such value over the devices. Of k D + 1 groups, at least k + 1 are on
    one device, so T is at least the sum of their v, and at least the sum of the k + 1 least v.
    """
    per_device = np.where(problem.allowed, problem.group_s / problem.cluster.streams, np.inf)
    return packing(per_device.min(axis=1), problem.cluster.size) if problem.g else 0.0


def work_bound(relaxation: Relaxation) -> float:
    """Total work over the capacity of all streams, weighted for heterogeneous devices and their memory.

    Proof: let kind k have S_k streams and M_k bytes of memory on all its devices together, and let y_k >= 0 and z_k >= 0 be
    any multipliers with sum_k S_k y_k = 1. In a schedule of length T the operations on kind k take at most S_k T
    seconds in all, and their persistent bytes are at most M_k. So the sum of y_k P_gk + z_k m_g over all groups g, where
    P_gk is the seconds of the group on the kind k that it is on, and m_g its persistent bytes, is at most
    sum_k y_k S_k T + sum_k z_k M_k. The least it can be is the sum over g of the least over the kinds that may run it:

        T >= sum_g min_k (y_k P_gk + z_k m_g) - sum_k z_k M_k

    The best multipliers are the dual of a linear program: the fractional assignment of groups to kinds of least T. They
    are found by cutting planes with HiGHS. The bound does not depend on the solver: it is the right-hand side, evaluated at
    any multipliers. A kind may run a group if it has memory for each single operation of the group, by (e).

    If no placement fits, the right-hand side is unlimited. It is cut off at the sum of the longest times of all groups,
    which it never exceeds if a placement fits.
    """
    problem = relaxation.problem
    longest = np.where(problem.allowed, problem.group_s, 0.0).max(axis=1, initial=0.0).sum()
    with_memory, without = relaxation.prices_with_memory.bound_s, relaxation.prices.bound_s
    return float(max(without, min(with_memory, longest)))


def communication_bound(relaxation: Relaxation) -> float:
    """Longest path, where the inputs of an operation are either sent or computed on its own device one after another.

    Let head(v, k) be a lower bound on the start of operation v if it is on a device d of kind k. It is the greatest of the
    following values. They are computed in topological order, so that the heads of all ancestors of v are known.

    *Launches.* v starts after its launch, at the earliest at `launches.earliest_launch_s`.

    *Edges.* v reads from u. If u is on d, v starts at head(u, k) + p(u, k) or later, with p the seconds of u on kind k.
    If not, at arrival(u, k) = min over kinds k' of head(u, k') + p(u, k') + (least transfer from k' to another
    device of k), or later. The lower of the two is a bound. Kinds with one device leave no choice; nor do groups.

    *Joins.* For each u that v reads from, take a branch: x_1 = u, then some x_2 that x_1 reads from, and so on. Branches have
    no operation in common. In a schedule with v on d, let j be the number of operations at the beginning of branch b that
    are on d as well. If there is a next one, x_{j+1}, its output comes from another device, and x_j, ..., x_1 run after
    it has arrived: v starts at A_bj = arrival(x_{j+1}, k) + p(x_j, k) + ... + p(x_1, k) or later. Also, d runs these j
    operations of each branch before v: with s streams, v starts at r + (seconds of those with a head of r or more) / s or
    later, for every r. Let R be the highest A_bj of the schedule. For each branch let i_b be the first number with
    A_bi <= R. It is at most j, so d runs the first i_b operations before v; the latest start W(R) that follows from these
    is a bound too. So v starts at max(R, W(R)) or later, for one of the values R of A. W falls as R grows, so bisection
    finds the least max(R, W(R)) over all values, which is a bound for every schedule.

    The same on the reversed graph gives tails. T is at least the greatest over v of the least over k of head + p + tail.

    This is the earliest start under communication delays (Colin and Chretienne 1991, without duplication), which is exact
    for single predecessors, extended to limited devices and to branches of several operations.
    """
    return _longest(relaxation, *relaxation.levels)


def detour_bound(relaxation: Relaxation) -> float:
    """Longest path, where several paths between two operations either share the device of the first one or leave it.

    Let v depend on f by several paths, and let D be the device of f. Each operation x between the two is on D or not, and D
    runs those on D, over all paths, before v starts. For each x and each kind of device that x may be on, *labels* (t, w) are
    computed in topological order. In every schedule with x on such a device, one of its labels has

        t <= seconds from the end of f to the end of x,    w <= priced time of D for the tree of x

    *Trees.* Each operation belongs to the tree of only one of its readers, so the trees of the operations that x reads from
    have nothing in common. The tree of x is x and these trees; all of it, except x, runs before x.

    *Priced time.* With prices a, b, c >= 0, a second of work on D costs a, a second of a transfer to D costs b, and a second of
    a transfer from D costs c. D has s streams, and its channels carry at most i transfers in and o out at the same time. In L
    seconds the priced time of D is at most (a s + b i + c o) L, and prices are chosen so that the bracket is 1. So x starts at
    w or later, where w is the priced time of all trees below x.

    *Steps.* An input from u on the same device is there at the t of u; one from another device arrives after the transfer,
    which costs if it is to D or from D. For several inputs and each limit R, add up the least w of each input with t <= R, and
    take the highest t. Then raise t to w, add p(x) to t and, on D, a p(x) to w. A label that is worse than another in both t
    and w is dropped. Where there are many labels, the least t and the least w of neighbours become one label. Both only
    lower the bound.

    The lowest max(t, w) of v, before its own p is added, is a bound on the seconds between f and v, for v on D and for v on
    another device of each kind. The reversed graph, with D as the device of v, gives bounds for the same cases; in each case
    the higher one counts. A path through f and v then takes at least this time between the two.

    This is a bi-criteria shortest path (Hansen 1980), for the same choice that `communication_bound` makes for the last few
    operations of each branch. All forks are tried, with up to `labels.VISITED` operations after each, for two rows of prices.
    """
    around = relaxation.surroundings
    if around is None:
        return communication_bound(relaxation)
    return _longest(relaxation, *raise_levels(relaxation, relaxation.levels, around, relaxation.detours, trees=False))


def tree_bound(relaxation: Relaxation) -> float:
    """Longest path, where an operation waits for the part of its tree that its own device has to run or receive.

    The labels are those of `detour_bound`, but D is now the device of v itself. A label (t, w) of x, on D or elsewhere, bounds
    the end of x, and the priced time of D after time r for the operations of x's tree with heads of r or more and for their
    transfers. If w > 0, x starts at r + w or later. x also starts at its head or later, on any device; the same bound for x,
    with D as the device of x, gives this head. So an operation elsewhere costs D nothing, but it is late. The lowest
    max(t, r + w) over the labels of v on D, before its own p is added, is a head of v.

    If the outputs of a tree are large, its operations either share one device and wait for its streams, or are sent and wait
    for its link. Gradients of a weight that is used in many steps are an example. The prices bound both cases at once, as
    a Lagrangian relaxation of the two resources. The pairs of `detour_bound` count as well. Several r and two rows of prices
    are tried. The reversed graph gives tails. `window_bound`, `channel_bound` and `forced_bound` use these heads and tails.
    """
    return _longest(relaxation, *relaxation.raised)


def _longest(relaxation: Relaxation, head: Floats, tail: Floats) -> float:
    """The longest path with these heads and tails [n, K]."""
    return float((head + relaxation.seconds + tail).min(axis=1).max(initial=0.0))


def window_bound(relaxation: Relaxation) -> float:
    """The work between a head and a tail, plus both.

    Proof: let head(v) and tail(v) be the least of `tree_bound` over the kinds, and V the operations with head >= h and
    tail >= q. They start at h or later and end at least q before the end, so all of them run within T - h - q seconds. As in
    `work_bound`, but for V alone and without memory: T - h - q >= sum over V of min_k y_k p_vk, where p_vk is the seconds of
    v on kind k, and y the weights of `work_bound`.

    All pairs of up to `THRESHOLDS` values of h and of q are tried.
    """
    (head, tail), rows = relaxation.raised, relaxation.kernels
    seconds = relaxation.seconds[rows]
    allowed = np.isfinite(seconds)
    work = np.where(allowed, np.where(allowed, seconds, 0.0) * relaxation.prices.time, np.inf).min(axis=1)
    return longest_window(head[rows].min(axis=1), tail[rows].min(axis=1), work)


def channel_bound(relaxation: Relaxation) -> float:
    """The transfers over one channel between a head and a tail, plus both.

    Proof: if no kind of device may run both the producer and a reader of a tensor, the tensor is transferred before that
    reader starts. All routes that the transfer may take, from a device that may run the producer to one that may run the
    reader, have the channels C in common, and it takes at least as long as on the fastest of them. In a window of
    T - h - q seconds, transfers that begin at h or later and end q or more before the end hold a channel of capacity c for
    at most c (T - h - q) seconds, as in `window_bound`. Here h is head + p of the producer, and q is p + tail of the
    reader. Each tensor counts once, for one of its readers.
    """
    head, tail = relaxation.raised
    return busiest_channel(relaxation, np.isfinite(relaxation.seconds), head, tail)


def chain_bound(relaxation: Relaxation) -> float:
    """Blocks of operations, one after another, where fast devices have memory for a part of the parameters only.

    A long path is cut into blocks (`blocks.Blocks`), with the operations that may run at the same time as a part of it. All
    operations of a block end before any of the next one starts. So T is at least the sum of the times T_b of the blocks.

    - *Rows.* T_b is at least each of these sums: the seconds of the path in block b; for each group, the seconds of its
      operations in the block over the streams of its device; for each kind, the seconds of all operations on it over its
      streams. Let a_rgk be the part that group g adds to row r of these sums if it is on kind k. Take prices w_r >= 0 that sum
      to x or less in each block: the sum of w_r a_rgk over all rows, and over all groups g on their kinds k, is at most x T.
    - *Memory.* The persistent bytes m_g of the groups on kind k are at most M_k in all; they cost z_k >= 0 per byte.
    - *Copies.* For each group s without kernels, take one group v(s) that reads a tensor of it. If v(s) is on kind k and s is
      on another kind, this tensor is sent from there to k, which takes at least c_sk seconds. At most i_k transfers to kind k
      run at the same time, so the sum of c_sk / i_k over these s is at most T. It costs y_k >= 0 per second.

    With x + sum_k y_k = 1, add up these inequalities. A group v is on one kind k, and each s with v(s) = v is on k or it is
    sent:

        T >= sum_v min_k (z_k m_v + sum_r w_r a_rvk + sum_s min(z_k m_s, min_h z_h m_s + y_k c_sk / i_k)) - sum_k z_k M_k

    The first sum is over all groups except the s, and each minimum over the kinds that may run the group. As in `work_bound`,
    the best prices are the dual of a fractional placement, by HiGHS, and the bound is the right-hand side, evaluated at these
    prices. It is 0 if the kind that runs all operations in the least time has memory for all persistent bytes, or if no
    fractional placement fits. Transfers to several devices at once, and streamed copies, count once, for v(s).
    """
    room = relaxation.memory * relaxation.devices
    fastest = relaxation.seconds[relaxation.kernels].sum(axis=0).argmin()
    if not len(relaxation.kernels) or room[fastest] >= relaxation.persistent_bytes.sum():
        return 0.0
    program = ChainProgram.of(relaxation)
    prices = best_prices(program)
    return 0.0 if prices is None else program.bound_s(prices)


def forced_bound(relaxation: Relaxation, least_s: float) -> float:
    """The highest makespan that leads to a contradiction; at least `least_s`, the highest of the other bounds.

    Destructive improvement (Klein and Scholl 1999): suppose that a placement that fits has a makespan of at most T. Draw
    conclusions until one is impossible or nothing changes. If one is impossible, no makespan is T or less.

    - *Clusters.* If a transfer from u to v would make a path longer than T on all kinds, head(u) + p(u) + transfer + p(v) +
      tail(v) > T, then u and v are on one device. Such operations form clusters. The groups are the first clusters.
    - *Kinds.* A cluster is not on kind k if one of its operations has head + p + tail > T there, or if its persistent bytes
      exceed the memory of a device. This is how memory forces communication: operations that cannot be apart within time T
      may not fit together either.
    - *Heads and tails* rise: within a cluster nothing is sent, and the ancestors of v in its cluster run before v on the same
      device. So v starts at r + (seconds of those with a head of r or more) / streams or later, for every r.
    - *The device of one cluster*, the one with most work, is treated as a kind of its own. Operations on it wait for its
      streams and receive nothing from it; all others communicate with it. T is refuted if it is refuted for each kind that
      this device may have.
    - *Work.* Compute `window_bound` for all operations, for those that must be on this device, and on the other devices for
      those that cannot be on it; `group_bound` for clusters; `channel_bound` for the kinds that are still possible. A bound
      above T is a contradiction.

    A path counts as longer than T if it is longer by a share of 1e-9, because sums are rounded. The search for T begins at the
    other bounds and goes up, to a precision of 0.1%. For graphs of more than about 8,000 operations it tries fewer values.
    """
    return highest_refuted(relaxation, least_s)
