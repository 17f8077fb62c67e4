"""Lower bounds of the makespan: seconds that no placement of a Problem that fits can beat, whatever the order of execution.

They hold for the machine model of docs/machine-model.md (work conserving or bulk synchronous, without noise). The proofs use
these facts of every schedule of length T:

- (a) An operation runs once, without interruption, on one stream of the device of its group, which may run it. It takes its
  cost there; sources take no time and exist from time 0.
- (b) An operation starts after all kernels that it reads from have ended. What comes from another device has been sent
  after its producer ended (from time 0, if that is a source), and took latency + bytes / bandwidth of the route.
- (c) A device runs at most as many operations at a time as it has streams.
- (d) The persistent bytes on a device, and what an operation that it runs reads and writes, are within its memory.

In `work_bound`, `window_bound`, `communication_bound` and `forced_bound`, operations are on *kinds* of devices. What a
transfer takes between two kinds is the least over all pairs of devices of these kinds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placekit_core import Problem
from placekit_scheduling.bounds.channels import busiest_channel
from placekit_scheduling.bounds.labels import raised
from placekit_scheduling.bounds.refutation import highest_refuted
from placekit_scheduling.bounds.relaxation import Floats, Relaxation, longest_window
from placekit_scheduling.bounds.work import packing
from placekit_scheduling.compile_example import warm_up_problem
from placekit_scheduling.list_scheduling.levels import b_level

ROUNDING = (
    1e-9  # the sums behind a bound and a makespan are rounded differently; a bound is lowered by this, relatively
)

BINDING = 1e-4  # relative; an argument within it of the highest bound proves as much


def makespan_bound(problem: Problem) -> float:
    """The highest of `all_bounds`, in seconds, less the relative `ROUNDING`. 0 for a graph without kernels."""
    return max(all_bounds(problem).values()) * (1 - ROUNDING)


def all_bounds(problem: Problem, refined: bool = True) -> dict[str, float]:
    """All bounds in seconds, by name, before `ROUNDING`; `forced` is at least as high as the others.

    The names are `critical_path`, `group`, `work`, `communication`, `detour`, `tree`, `window`, `channel` and `forced`: each
    bound is that of the function of its name. Without `refined`, heads and tails are those of `communication_bound`
    everywhere: `detour` and `tree` are left out, and `window`, `channel` and `forced` are lower.
    """
    relaxation = Relaxation.of(problem, refined)
    found = {
        "critical_path": critical_path_bound(problem),
        "group": group_bound(problem),
        "work": work_bound(relaxation),
        "communication": communication_bound(relaxation),
        **({"detour": detour_bound(relaxation), "tree": tree_bound(relaxation)} if refined else {}),
        "window": window_bound(relaxation),
        "channel": channel_bound(relaxation),
    }
    return {**found, "forced": forced_bound(relaxation, max(found.values()))}


def compile_bounds() -> None:
    """Compile the loops behind `all_bounds`, or load them from numba's cache."""
    all_bounds(warm_up_problem())


def binding_argument(found: Mapping[str, float]) -> str:
    """The first argument of `all_bounds` that proves the highest bound, to 0.01 %; later ones build on earlier ones.

    So `forced` is named only if a contradiction proves more than all other arguments.
    """
    highest = max(found.values())
    return next(name for name, bound in found.items() if bound >= highest * (1 - BINDING))


def critical_path_bound(problem: Problem) -> float:
    """Longest path, with every operation on its fastest allowed device and free communication.

    Proof: the operations of a path run one after another, and none is faster than on its fastest allowed device.
    """
    return float(b_level(problem, "min", communication=0.0).max(initial=0.0))


def group_bound(problem: Problem) -> float:
    """The largest group on the device that is fastest for it; or the k + 1 least of the k D + 1 largest groups.

    Proof: all operations of a group run on one allowed device d, whose s streams give at most s T seconds in time T; so
    T >= (seconds of the group on d) / s, which is at least its least value v over the devices. Of k D + 1 groups, k + 1 are
    on one of the D devices; so T is at least the sum of their v, and that at least the sum of the k + 1 least.
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
    are searched for by cutting planes with HiGHS; whatever it finds, the bound is the right-hand side, evaluated
    at the multipliers. A kind may run a group if, by (d), it has memory for each single operation of the group.

    If nothing fits, the right-hand side has no limit; it is cut off at the sum of the greatest times of all
    groups, which it never exceeds if a placement fits.
    """
    problem = relaxation.problem
    longest = np.where(problem.allowed, problem.group_s, 0.0).max(axis=1, initial=0.0).sum()
    with_memory, without = relaxation.prices_with_memory.bound_s, relaxation.prices.bound_s
    return float(max(without, min(with_memory, longest)))


def communication_bound(relaxation: Relaxation) -> float:
    """Longest path, where the inputs of an operation are either sent, or made on its own device one after another.

    Let head(v, k) be a lower bound of the start of operation v, if it is on a device d of kind k. It is the greatest of
    the following, found in topological order, so that the heads of all that v depends on are known.

    *Edges.* v reads from u. If u is on d, v starts at head(u, k) + p(u, k) or later, with p the seconds of u on kind k.
    If not, at arrival(u, k) = min over kinds k' of head(u, k') + p(u, k') + (least transfer from k' to another
    device of k), or later. The lower of the two is a bound. Kinds with one device leave no choice; nor do groups.

    *Joins.* Take a branch for each u that v reads from: x_1 = u, x_2 that x_1 reads from, and so on; no operation in two of
    the branches. In a schedule with v on d, let j be the number of operations at the beginning of branch b that are on d
    as well. If there is a next one, x_{j+1}, what it writes comes from another device, and x_j, ..., x_1 run after its
    arrival: v starts at A_bj = arrival(x_{j+1}, k) + p(x_j, k) + ... + p(x_1, k) or later. And d runs all these j operations
    of all branches before v: with s streams, v starts at r + (seconds of those of head r or more) / s or later,
    for every r. Let R be the highest A_bj of the schedule. For each branch let i_b be the first number with
    A_bi <= R: at most j, so these operations are among the former, and the latest start W(R) that follows from them
    is a bound too. v starts at max(R, W(R)) or later, for one of the values R of A. W falls as R grows, so the least of
    max(R, W(R)) over all values, which is a bound for every schedule, is found by bisection.

    The same on the reversed graph gives tails: seconds from the end of v to the end of the schedule. T is at least the
    greatest over v of the least over k of head + p + tail.

    This is the earliest start under communication delays (Colin and Chretienne 1991, without duplication), where it is
    exact for one operation and single predecessors, carried on to limited devices and to branches of several operations.
    """
    return _longest(relaxation, *relaxation.levels)


def detour_bound(relaxation: Relaxation) -> float:
    """Longest path, where several ways from one operation to another share the device of the first, or leave it.

    Let v depend on f in several ways, and let D be the device of f. Every operation x between the two is on D or not, and D
    runs those that are, of all ways, before v starts. For each x and each kind of device of it, *labels* (t, w) are found in
    topological order, such that in every schedule with that choice for x one of them has

        t <= seconds from the end of f to the end of x,    w <= priced time of D for the tree of x

    *Trees.* Each operation belongs to the tree of one of those that read from it, so that the trees of what x reads from have
    nothing in common. The tree of x is x and these trees; all of it, but x, runs before x.

    *Priced time.* For prices a, b, c >= 0, a second of an operation on D counts a, a second of a transfer to D counts b, and one
    of a transfer from D c. D has s streams, and the channels next to it carry at most i transfers in and o out at a time. In
    L seconds the priced time of D is at most (a s + b i + c o) L, and prices are chosen for which the bracket is 1. So x starts
    at w or later, with w of all trees of what it reads from.

    *Steps.* What x reads from u on the same device is there at t; what it reads from another device is there after the
    transfer, which counts if it is to D or from D. Of several inputs, for every limit R the least w of each with t <= R are
    added, and t is the highest. Then t is raised to w; p(x) is added to t and, on D, a p(x) to w. Labels that are no better in t
    and in w than another are left out, and where there are many, the least t and the least w of neighbours become one: both
    only lower the bound.

    The lowest max(t, w) of v before its own p is a bound on the seconds between f and v, for v on D and for v on another device
    of each kind. The same on the reversed graph, with D the device of v, gives bounds for the same pairs of cases; in each case
    the higher one holds. A path then counts, for each such pair on it, the seconds between the two at the least.

    This is the bi-criteria shortest path (Hansen 1980) of the choice that `communication_bound` makes for the last few
    operations of each branch. All forks are tried, with up to `labels.VISITED` operations after each, for two rows of prices.
    """
    around = relaxation.around
    if around is None:
        return communication_bound(relaxation)
    return _longest(relaxation, *raised(relaxation, around, relaxation.detours, trees=False))


def tree_bound(relaxation: Relaxation) -> float:
    """Longest path, where an operation waits for all of its tree that its own device has to run, or to receive.

    The labels of `detour_bound`, with another D: the device of v itself, whichever that is. A label (t, w) of x, for x on D and
    for x elsewhere, bounds when x ends, and the priced time of D from a time r on for the operations of the tree of x which
    have heads of r or more, and for what is sent of them. If w > 0, x starts at r + w or later. The head of x, on whatever
    device, holds as well; it comes from the same bound for x, whose own device is D then. So what is not on D is not free: it
    is late. The lowest max(t, r + w) over the labels of v on D, before its own p, is a head of v.

    Where what a tree writes is large, its operations must be on one device, and wait for its streams, or be sent, and wait for
    its link: this is what gradients of a weight that is used in many steps have to do. The prices bound both at once, as a
    Lagrangian relaxation of the two resources. The pairs of `detour_bound` count as well. Several r and two rows of prices are
    tried, and the same on the reversed graph gives tails; `window_bound`, `channel_bound` and `forced_bound` begin with them.
    """
    return _longest(relaxation, *relaxation.raised)


def _longest(relaxation: Relaxation, head: Floats, tail: Floats) -> float:
    """The longest path by these heads and tails, [n, K]."""
    return float((head + relaxation.seconds + tail).min(axis=1).max(initial=0.0))


def window_bound(relaxation: Relaxation) -> float:
    """Longest head plus work plus longest tail.

    Proof: let head(v) and tail(v) be the least over the kinds of those of `tree_bound`, and V the operations with
    head >= h and tail >= q. Each of V starts at h or later and ends q or more before the end: all of them run within
    T - h - q seconds. As in `work_bound`, for V alone and without memory: T - h - q >= sum over V of min_k y_k p_vk, with
    p_vk the seconds of v on kind k, at the weights y found there.

    All pairs of up to `THRESHOLDS` values of h and of q are tried.
    """
    (head, tail), rows = relaxation.raised, relaxation.kernels
    seconds = relaxation.seconds[rows]
    allowed = np.isfinite(seconds)
    work = np.where(allowed, np.where(allowed, seconds, 0.0) * relaxation.prices.time, np.inf).min(axis=1)
    return longest_window(head[rows].min(axis=1), tail[rows].min(axis=1), work)


def channel_bound(relaxation: Relaxation) -> float:
    """Longest head plus the transfers that must go over one channel plus longest tail.

    Proof: if no kind of device may run both the producer and a reader of a tensor, it is transferred, to the device of
    that reader at the latest before this starts. All routes that the transfer may take, from a device that may run the
    producer to one that may run the reader, have the channels C in common, and it takes at least the least time on any of
    them. A channel of capacity c is held for at most c (T - h - q) seconds by transfers that begin at h or later and end q
    or more before the end: as in `window_bound`, with head + p of the producer for h and p + tail of the reader for q.
    Each tensor counts once, for one of its readers.
    """
    head, tail = relaxation.raised
    return busiest_channel(relaxation, np.isfinite(relaxation.seconds), head, tail)


def forced_bound(relaxation: Relaxation, least_s: float) -> float:
    """The highest makespan for which a contradiction was found; at least `least_s`, the highest of the other bounds.

    Destructive improvement (Klein and Scholl 1999): suppose that a placement that fits has a makespan of at most T. Draw
    conclusions until there are no more, or one is impossible. If one is, T is refuted, and with it everything below.

    - *Clusters.* If a transfer from u to v would make a path longer than T on all kinds, head(u) + p(u) +
      transfer + p(v) + tail(v) > T, then u and v are on one device. Such operations form clusters; groups are the first.
    - *Kinds.* A cluster is not on kind k if one of it has head + p + tail > T there, or if its persistent
      bytes are more than the memory of a device. This is how memory forces communication: operations that cannot be apart
      in time T cannot be together either.
    - *Heads and tails* are raised: within a cluster nothing is sent, and the ancestors of v in its cluster run
      before v on its device, which takes r + (seconds of those of head r or more) / streams for every r.
    - *The device of one cluster*, that of most work, is a kind of its own with a single device: to be on it means to
      wait for its streams and to receive nothing from itself, to be elsewhere means to communicate with it. T is refuted if it
      is for each kind that this device may be of.
    - *Work.* `window_bound` for all operations, for those that must be on this device, and for those that cannot be, on the
      others; `group_bound` for clusters; `channel_bound` for the kinds that are left. One above T is a contradiction.

    A path counts as longer than T if it is longer by a relative 1e-9: sums are rounded. T is searched for from
    the other bounds upwards, to a precision of 0.1 %, less for graphs of more than about 8,000 operations, for which fewer
    values of T are tried.
    """
    return highest_refuted(relaxation, least_s)
