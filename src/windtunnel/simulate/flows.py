"""Messages that share links, max-min fair, compiled.

In: links with a rate, and flows: bytes that go over several links at once. Out: when each flow ends. One implementation
for the event engine (``event_engine.py``) and for programs on a clock (``clock.py``). Not here: when a flow begins.

Rates are filled progressively: the links with the smallest equal share of all decide the rate of their flows, which
leave; then the next. Links of exactly equal shares decide at once, so that no order of links matters. Rates are filled
anew when an instant is over in which flows began or ended, for the flows that these can reach over common links; a flow
whose rate comes out as it was is left alone. So no result depends on how the flows are visited, or on flows that share
nothing with it.

Bytes left are float64. A flow ends in the first whole ns in which its last byte has gone, but for a part in 2**40 that
counts as rounding.

References
----------
Bertsekas and Gallager, Data Networks, section 6.5.2: max-min flow control, by progressive filling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.simulate.static_engine import kernel

# F flows, L links, W links of the longest route
Array = NDArray[Any]

NEVER = np.iinfo(np.int64).max
NS_PER_S = 1e9
SURE = 1.0 - 2.0**-40
_WAITING, _RATED = 1, 2  # of a flow whose rate is being filled


class Flows(NamedTuple):
    """All flows, by number; what is not said to go in is kept by the functions below."""

    capacity: Array  # float64 [L] in, bytes per second
    route: Array  # int32 [F, W] in, links of each flow, then -1
    size: Array  # float64 [F] in, bytes
    owner: Array  # int64 [F] in, whose flow it is
    remaining: Array  # float64 [F], bytes, at ``since``
    rate: Array  # float64 [F], bytes per second
    since: Array  # int64 [F]
    finish: Array  # int64 [F], if nothing changes
    queue: Array  # int32 [F], heap of flows by finish
    place: Array  # int32 [F], where in the queue, -1 if not
    next: Array  # int32 [F * W], next of the flows over the same link, as flow * W + number of the link in its route
    previous: Array  # int32 [F * W]
    first: Array  # int32 [L], first of the flows over the link
    users: Array  # int64 [L], flows over the link
    member: Array  # int8 [F], state while rates are filled, else 0
    members: Array  # int32 [F], those flows
    fair: Array  # float64 [F], their new rates
    touched: Array  # int32 [L], links whose flows need new rates
    is_touched: Array  # bool [L]
    left: Array  # float64 [L], rate that is not assigned yet
    share: Array  # float64 [L], the same per flow that has none yet
    waiting: Array  # int64 [L], flows that have none yet
    link_queue: Array  # int32 [L], heap of links by share
    link_place: Array  # int32 [L]
    tightest: Array  # int32 [L], links that decide now
    counts: Array  # int64 [2]: flows in the queue, links touched


def new_flows(capacity: Array, route: Array, size: Array, owner: Array) -> Flows:
    """Flows of which none has begun."""
    (num_flows, width), num_links = route.shape, len(capacity)
    ints = {name: np.full(num_flows, -1, np.int32) for name in ("queue", "place", "members")}
    entries = {name: np.full(num_flows * width, -1, np.int32) for name in ("next", "previous")}
    floats = {name: np.zeros(num_flows) for name in ("remaining", "rate", "fair")}
    times = {name: np.zeros(num_flows, np.int64) for name in ("since", "finish")}
    rows = {
        name: np.full(num_links, -1, np.int32) for name in ("first", "touched", "link_queue", "link_place", "tightest")
    }
    numbers = {name: np.zeros(num_links, np.int64) for name in ("users", "waiting")}
    shares = {name: np.zeros(num_links) for name in ("left", "share")}
    return Flows(
        capacity=capacity, route=route, size=size, owner=owner, **ints, **entries, **floats, **times, **rows, **numbers,
        **shares, member=np.zeros(num_flows, np.int8), is_touched=np.zeros(num_links, np.bool_),
        counts=np.zeros(2, np.int64),
    )  # fmt: skip


def pad_routes(routes: Sequence[Sequence[int]], width: int = 1) -> Array:
    """Return routes as rows of links, padded with -1, int32 [N, W]."""
    width = max([width, *map(len, routes)])
    return np.array([[*route, *[-1] * (width - len(route))] for route in routes], np.int32).reshape(-1, width)


# --- a heap in which every entry knows its place, by (key, number) ----------------------------------------------


@njit(inline="always")
def _comes_before(a: int, b: int, key: Array) -> bool:
    # Ties are broken by number, so that the order of equal keys is not that of their insertion.
    return bool(key[a] < key[b] or (key[a] == key[b] and a < b))


@kernel
def _settle_place(queue: Array, position_of: Array, key: Array, size: int, hole: int, entry: int) -> None:
    """Put an entry where it belongs, beginning from the hole ``hole``."""
    # The key may have become smaller or larger: the entry rises first, and sinks if it did not rise.
    # ``position_of`` is updated with each move, so that any entry can be found in constant time when its
    # key changes or it leaves.
    while hole > 0:
        parent = (hole - 1) >> 1
        other = queue[parent]
        if not _comes_before(entry, other, key):
            break
        queue[hole] = other
        position_of[other] = hole
        hole = parent
    child = 2 * hole + 1
    while child < size:
        other = queue[child]
        if child + 1 < size and _comes_before(queue[child + 1], other, key):
            child += 1
            other = queue[child]
        if not _comes_before(other, entry, key):
            break
        queue[hole] = other
        position_of[other] = hole
        hole = child
        child = 2 * hole + 1
    queue[hole] = entry
    position_of[entry] = hole


@kernel
def _drop(queue: Array, position_of: Array, key: Array, size: int, entry: int) -> None:
    """Take an entry out of a heap of ``size``."""
    # The last entry fills the gap, wherever that is; it may have to move up or down from there.
    index = position_of[entry]
    position_of[entry] = -1
    last = queue[size - 1]
    if last != entry:
        _settle_place(queue, position_of, key, size - 1, index, last)


# --- flows begin and end -----------------------------------------------------------------------------------------


@kernel
def touch_link(flows: Flows, link: int) -> None:
    """Let the rates of a link's flows be filled anew once the instant is over."""
    # ``touched`` is the work list of ``_reach`` as well: links that it touches are appended behind.
    if not flows.is_touched[link]:
        flows.is_touched[link] = True
        flows.touched[flows.counts[1]] = link
        flows.counts[1] += 1


@kernel
def begin_flow(flows: Flows, f: int, now: int) -> None:
    """Let flow ``f`` use its links; its rate is filled when the instant is over."""
    # Flows over a link are a doubly linked list through the array of (flow, number of the link in its
    # route), so that a flow leaves in constant time per link and nothing is allocated:
    #      first[link] -> entry f*W+k -> next[entry] -> ... -> -1        entry // W is the flow
    flows.remaining[f] = flows.size[f]
    flows.rate[f] = 0.0
    flows.since[f] = now
    flows.finish[f] = NEVER
    width = flows.route.shape[1]
    for k in range(width):
        link = flows.route[f, k]
        if link < 0:
            break
        entry = f * width + k
        other = flows.first[link]
        flows.next[entry] = other
        flows.previous[entry] = -1
        if other >= 0:
            flows.previous[other] = entry
        flows.first[link] = entry
        flows.users[link] += 1
        touch_link(flows, link)
    flows.counts[0] += 1
    _settle_place(flows.queue, flows.place, flows.finish, flows.counts[0], flows.counts[0] - 1, f)


@kernel
def end_flow(flows: Flows, f: int) -> None:
    """Let flow ``f`` leave its links, ended or not."""
    _drop(flows.queue, flows.place, flows.finish, flows.counts[0], f)
    flows.counts[0] -= 1
    # Unlink the flow from the list of each link; a flow that was first passes that on.
    width = flows.route.shape[1]
    for k in range(width):
        link = flows.route[f, k]
        if link < 0:
            break
        entry = f * width + k
        after, before = flows.next[entry], flows.previous[entry]
        if after >= 0:
            flows.previous[after] = before
        if before >= 0:
            flows.next[before] = after
        else:
            flows.first[link] = after
        flows.users[link] -= 1
        touch_link(flows, link)


# --- rates -------------------------------------------------------------------------------------------------------


@kernel
def _reach(flows: Flows) -> int:
    """List all flows that share links, over others or not, with the touched ones; returns how many."""
    # Breadth-first over the graph whose nodes are links and whose edges are flows: only the component
    # that the change is in gets new rates. Flows elsewhere keep theirs exactly, without rounding anew.
    width = flows.route.shape[1]
    num_members = 0
    index = 0
    while index < flows.counts[1]:
        entry = flows.first[flows.touched[index]]
        index += 1
        while entry >= 0:
            f = entry // width
            if flows.member[f] == 0:
                flows.member[f] = _WAITING
                flows.members[num_members] = f
                num_members += 1
                for k in range(width):
                    link = flows.route[f, k]
                    if link < 0:
                        break
                    touch_link(flows, link)
            entry = flows.next[entry]
    return num_members


@kernel
def _leave(flows: Flows, f: int, share: float, size: int) -> int:
    """Take a flow's rate from the links that have not decided; returns how many these are."""
    # The flow takes its share on each link of its route. What is left is divided anew among those that
    # have no rate yet; the share of a link never falls by this, as the flow took no more than the
    # smallest share of all.
    for k in range(flows.route.shape[1]):
        link = flows.route[f, k]
        if link < 0:
            break
        if flows.link_place[link] < 0:
            continue
        flows.left[link] -= share
        flows.waiting[link] -= 1
        if flows.waiting[link] == 0:
            _drop(flows.link_queue, flows.link_place, flows.share, size, link)
            size -= 1
        else:
            flows.share[link] = flows.left[link] / flows.waiting[link]
            _settle_place(flows.link_queue, flows.link_place, flows.share, size, flows.link_place[link], link)
    return size


@kernel
def _fill(flows: Flows) -> None:
    """Give every listed flow its fair rate."""
    # Progressive filling (water filling), with links in a heap by the share that they can offer:
    #      share[link] = capacity that is not assigned / flows without a rate
    #   1. Take the links with the smallest share: they are bottlenecks.
    #   2. Their flows get exactly this share, and leave all links of their routes.
    #   3. Repeat with the links that are left. Shares only grow, so that each link decides once.
    width = flows.route.shape[1]
    size = 0
    for i in range(flows.counts[1]):
        link = flows.touched[i]
        users = flows.users[link]
        if users > 0:
            flows.left[link] = flows.capacity[link]
            flows.waiting[link] = users
            flows.share[link] = flows.capacity[link] / users
            size += 1
            _settle_place(flows.link_queue, flows.link_place, flows.share, size, size - 1, link)
    while size > 0:
        share = flows.share[flows.link_queue[0]]
        num_tightest = 0
        # All links of exactly this share decide together; taking one after the other would let rounding in
        # ``_leave`` make the second slightly different from the first.
        while size > 0 and flows.share[flows.link_queue[0]] == share:
            link = flows.link_queue[0]
            _drop(flows.link_queue, flows.link_place, flows.share, size, link)
            size -= 1
            flows.tightest[num_tightest] = link
            num_tightest += 1
        for i in range(num_tightest):
            entry = flows.first[flows.tightest[i]]
            while entry >= 0:
                f = entry // width
                if flows.member[f] == _WAITING:
                    flows.member[f] = _RATED
                    flows.fair[f] = share
                    size = _leave(flows, f, share, size)
                entry = flows.next[entry]


@kernel
def fill_rates(flows: Flows, now: int) -> int:
    """Fill the rates anew after flows began or ended; returns when the first of all flows will end, ``NEVER`` if none.

    To be called once an instant is over.
    """
    # Bytes are only brought up to date for flows whose rate changes. A flow that keeps its rate keeps
    # its end, too, however often others come and go.
    if flows.counts[1] > 0:
        num_members = _reach(flows)
        _fill(flows)
        for i in range(flows.counts[1]):
            flows.is_touched[flows.touched[i]] = False
        flows.counts[1] = 0
        for i in range(num_members):
            f = flows.members[i]
            flows.member[f] = 0
            fair = flows.fair[f]
            if fair != flows.rate[f]:
                gone = flows.rate[f] * (now - flows.since[f]) / NS_PER_S
                flows.remaining[f] = max(flows.remaining[f] - gone, 0.0)
                flows.rate[f] = fair
                flows.since[f] = now
                # SURE takes off one part in 2**40, so that rounding does not add a whole ns to an exact end.
                wait = np.ceil(flows.remaining[f] * NS_PER_S / fair * SURE)
                flows.finish[f] = now + max(1, int(wait))
                _settle_place(flows.queue, flows.place, flows.finish, flows.counts[0], flows.place[f], f)
    if flows.counts[0] == 0:
        return NEVER
    return int(flows.finish[flows.queue[0]])
