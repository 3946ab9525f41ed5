"""The slow, obvious replay that the engines must equal bit for bit: heapq, dicts and lists, one task at a time.

Rules: an instant is played in rounds; a round takes all events of the instant, then begins what can begin. What
beginning tasks release counts from the next round on. Time is whole nanoseconds. Flows get max-min fair rates, all of
them, whenever an instant ends in which one began or ended.
"""

import heapq
import math
from collections import defaultdict
from fractions import Fraction

from windtunnel.graph import Discipline

ONE = 2**30


def fair_rates(routes, capacity):
    """Max-min fair rate of each flow by progressive filling: {flow: [links]}, {link: bytes per second}."""
    left, rates = dict(capacity), {}
    users = {link: {flow for flow, route in routes.items() if link in route} for link in capacity}
    while any(users.values()):
        shares = {link: left[link] / len(users[link]) for link in users if users[link]}
        share = min(shares.values())
        leaving = {flow for link in users for flow in users[link] if shares.get(link) == share}
        for flow in leaving:
            rates[flow] = share
            for link in routes[flow]:
                users[link].remove(flow)
                left[link] -= share
    return rates


class ReferenceFlows:
    """What flows now: {flow: [route, bytes left, rate, since, end]}."""

    def __init__(self, capacity):
        self.capacity, self.flows, self.has_changed = capacity, {}, False

    def begin(self, flow, route, size, now):
        self.flows[flow] = [route, float(size), 0.0, now, math.inf]
        self.has_changed = True

    def end(self, flow):
        del self.flows[flow]
        self.has_changed = True

    def fill(self, now):
        """New rates for all; one whose rate stays is left alone. To be called when an instant is over."""
        if not self.has_changed:
            return
        self.has_changed = False
        for flow, rate in fair_rates({flow: state[0] for flow, state in self.flows.items()}, self.capacity).items():
            route, left, old, since, _ = self.flows[flow]
            if rate != old:
                left = max(left - old * (now - since) / 1e9, 0.0)
                end = now + max(1, math.ceil(left * 1e9 / rate * (1 - 2**-40)))
                self.flows[flow] = [route, left, rate, now, end]

    def next_end(self):
        return min((state[4] for state in self.flows.values()), default=math.inf)

    def ending(self, now):
        return [flow for flow, state in self.flows.items() if state[4] == now]


def reference_replay(graph):
    """Start and finish of every task, as two lists."""
    tasks, edges, resources = graph.tasks, graph.edges, graph.resources
    num = graph.num_tasks

    def listed(table, name, neutral, size):
        return table[name].tolist() if name in table else [neutral] * size

    joins = listed(tasks, "is_arrival_join", False, num)
    duration = [0 if joins[v] else d for v, d in enumerate(tasks["duration_ns"].tolist())]
    place = [-1 if joins[v] else r for v, r in enumerate(tasks["resource"].tolist())]
    priority = listed(tasks, "priority", 0, num)
    ready = [0 if joins[v] else e for v, e in enumerate(listed(tasks, "earliest_ns", 0, num))]
    discipline, slots = resources["discipline"].tolist(), resources["slots"].tolist()
    curve = resources["slowdown"].tolist() if "slowdown" in resources else [[] for _ in slots]

    routes, sizes = listed(tasks, "route", -1, num), listed(tasks, "message_bytes", 0, num)
    sends = [routes[v] >= 0 and sizes[v] > 0 and not joins[v] for v in range(num)]
    flows = ReferenceFlows(dict(enumerate(listed(resources, "rate", 1.0, graph.num_resources))))

    out_edges, missing = defaultdict(list), defaultdict(int)
    for src, dst, lag, from_start in zip(
        edges["src"].tolist(), edges["dst"].tolist(),
        listed(edges, "lag_ns", 0, graph.num_edges), listed(edges, "from_start", False, graph.num_edges), strict=True,
    ):  # fmt: skip
        out_edges[src].append((dst, lag, from_start))
        missing[dst] += 1
    num_arrivals, total_arrivals = defaultdict(int), dict(missing)

    start, finish = [None] * num, [None] * num
    events = []  # (time, what, which)
    waiting, running = defaultdict(list), defaultdict(int)
    users, work, since = defaultdict(dict), defaultdict(Fraction), defaultdict(int)
    released = []  # ready now, begin in this round if the resource lets them

    def rate(r):
        n = len(users[r])
        measured = curve[r]
        if not measured:
            slow = n / slots[r] if n > slots[r] else 1.0
        else:
            slow = measured[n - 1] if n <= len(measured) else measured[-1] * n / len(measured)
        return Fraction(max(1, math.ceil(ONE / slow)), ONE)

    def settle(r, now):
        if users[r]:
            work[r] += rate(r) * (now - since[r])
        since[r] = now

    def release(edge, now):
        dst, lag, _ = edge
        if joins[dst]:
            heapq.heappush(events, (now + lag, "arrival", dst))
            return
        ready[dst] = max(ready[dst], now + lag)
        missing[dst] -= 1
        if missing[dst] == 0:
            heapq.heappush(events, (ready[dst], "ready", dst))

    for v in range(num):
        if missing[v] == 0:
            heapq.heappush(events, (ready[v], "ready", v))
    now = 0
    while events or flows.flows:
        if not events or events[0][0] > now:
            flows.fill(now)
        now = min(events[0][0] if events else math.inf, flows.next_end())
        changed, begun = set(), []
        for v in flows.ending(now):
            flows.end(v)
            if place[v] < 0 or discipline[place[v]] != Discipline.SHARED:
                running[place[v]] -= 1
            heapq.heappush(events, (now, "flowed", v))
        while events and events[0][0] == now:
            _, what, which = heapq.heappop(events)
            done = []
            if what == "ready":
                released.append(which)
            elif what == "end" and sends[which]:
                flows.begin(which, graph.meta.routes[routes[which]], sizes[which], now)
            elif what == "end":
                running[place[which]] -= 1
                done = [which]
            elif what == "flowed":
                done = [which]
            elif what == "share":
                settle(which, now)
                done = sorted(v for v, end in users[which].items() if end <= work[which])
                for v in done:
                    del users[which][v]
                    changed.add(which)
                    if sends[v]:
                        flows.begin(v, graph.meta.routes[routes[v]], sizes[v], now)
                done = [v for v in done if not sends[v]]
            elif what == "begun":  # its start edges, one round after it began
                for edge in out_edges[which]:
                    if edge[2]:
                        release(edge, now)
            else:
                k = num_arrivals[which]
                num_arrivals[which] += 1
                fired = out_edges[which][k : k + 1]
                if k + 1 == total_arrivals[which]:
                    fired = out_edges[which][k:]
                    start[which] = finish[which] = now
                for edge in fired:
                    release(edge, now)
            for v in done:
                finish[v] = now
                for edge in out_edges[v]:
                    if not edge[2]:
                        release(edge, now)
        for v in sorted(released):
            r = place[v]
            if r >= 0 and discipline[r] != Discipline.SHARED:
                key = priority[v] if discipline[r] == Discipline.PRIORITY else 0
                heapq.heappush(waiting[r], (key, ready[v], v))
            elif r >= 0:
                settle(r, now)
                users[r][v] = work[r] + duration[v]
                begun.append(v)
                changed.add(r)
            else:
                begun.append(v)
                heapq.heappush(events, (now + duration[v], "end", v))
        released.clear()
        for r, queue in waiting.items():
            while queue and running[r] < slots[r]:
                v = heapq.heappop(queue)[-1]
                running[r] += 1
                begun.append(v)
                heapq.heappush(events, (now + duration[v], "end", v))
        for v in begun:
            start[v] = now
            heapq.heappush(events, (now, "begun", v))
        for r in changed:
            if users[r]:
                wait = math.ceil((min(users[r].values()) - work[r]) / rate(r))
                heapq.heappush(events, (now + wait, "share", r))
    return start, finish
