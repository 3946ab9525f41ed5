"""A clock of events for policies that decide while they run.

In: handlers to call at simulated times, and messages over shared links. Out: the handlers called in order of time,
those of one time in the order in which they were asked for. Not here: any policy; graphs (``event_engine.py``).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import InputError
from windtunnel.simulate.flows import NEVER, Flows, begin_flow, end_flow, fill_rates, new_flows, pad_routes, touch_link

__all__ = ["EventClock", "FairFlows"]

Handler = Callable[[], object]

_LATEST_NS = 1 << 62
_MAX_EVENTS = 100_000_000


class EventClock:
    """Calls handlers at simulated times; equal programs give equal runs.

    Parameters
    ----------
    links_bytes_per_s : float [L], optional
        Rates of links, for ``flows``.
    max_events : int
        More handlers than this are taken for a program that never ends.

    Attributes
    ----------
    now_ns : int
    flows : FairFlows
        Messages that share the links.

    Raises
    ------
    InputError
        A rate is not above 0.

    Examples
    --------
    >>> clock = EventClock(links_bytes_per_s=[1e9])
    >>> said = []
    >>> _ = clock.after(50, lambda: said.append(("timer", clock.now_ns)))
    >>> for name in "ab":
    ...     _ = clock.flows.start([0], 100, lambda name=name: said.append((name, clock.now_ns)))
    >>> clock.run()
    200
    >>> said
    [('timer', 50), ('a', 200), ('b', 200)]
    """

    def __init__(self, links_bytes_per_s: ArrayLike = (), *, max_events: int = _MAX_EVENTS) -> None:
        self.now_ns = 0
        self.flows = FairFlows(self, np.array(links_bytes_per_s, dtype=np.float64))
        self._max_events = max_events
        self._num_events = 0
        self._sequence = 0
        self._heap: list[tuple[int, int, Handler]] = []
        self._handlers: dict[int, Handler] = {}

    def __len__(self) -> int:
        return len(self._handlers) + len(self.flows)

    def at(self, time_ns: int, handler: Handler) -> int:
        """Call ``handler()`` at a time that is not over yet; returns a number with which it can be canceled.

        Raises
        ------
        InputError
            The time is over, or no whole number of ns that 64 bits hold.
        """
        if not isinstance(time_ns, int | np.integer) or not self.now_ns <= time_ns < _LATEST_NS:
            raise InputError(
                f"an event cannot be at {time_ns} ns when the clock shows {self.now_ns} ns",
                fix="give a whole number of ns from now on, less than 2**62",
            )
        # The number breaks ties, so that handlers of one time are called in the order in which they were asked for.
        self._sequence += 1
        heapq.heappush(self._heap, (int(time_ns), self._sequence, handler))
        self._handlers[self._sequence] = handler
        return self._sequence

    def after(self, delay_ns: int, handler: Handler) -> int:
        """Call ``handler()`` when ``delay_ns`` have gone by; see :meth:`at`."""
        return self.at(self.now_ns + delay_ns, handler)

    def cancel(self, event: int) -> bool:
        """Forget an event; returns whether it was still to come."""
        # The entry stays in the heap, where removing it would take linear time, and is skipped when it comes up.
        return self._handlers.pop(event, None) is not None

    def run(self, until_ns: int | None = None) -> int:
        """Call what is to be called, through ``until_ns`` or until nothing is left; returns the time then.

        Messages that end at a time are told before the other events of that time.

        Raises
        ------
        InputError
            More than ``max_events`` handlers were called.
        """
        last_ns = _LATEST_NS if until_ns is None else until_ns
        while (upcoming_ns := self._upcoming_ns()) <= last_ns:
            self.now_ns = upcoming_ns
            for handler in self.flows.ending():
                self._call(handler)
            while self._heap and self._heap[0][0] == upcoming_ns:
                _, event, handler = heapq.heappop(self._heap)
                if self._handlers.pop(event, None) is not None:
                    self._call(handler)
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)
        return self.now_ns

    def _upcoming_ns(self) -> int:
        while self._heap and self._heap[0][1] not in self._handlers:
            heapq.heappop(self._heap)
        upcoming_ns = self._heap[0][0] if self._heap else NEVER
        # rates are filled when an instant is over
        return upcoming_ns if upcoming_ns == self.now_ns else min(upcoming_ns, self.flows.next_end_ns())

    def _call(self, handler: Handler) -> None:
        self._num_events += 1
        if self._num_events > self._max_events:
            raise InputError(
                f"more than {self._max_events:,} events were handled by {self.now_ns} ns",
                where=f"{len(self)} are to come; the last one called {getattr(handler, '__qualname__', handler)}",
                fix="look for a handler that asks for itself again and again, or pass a larger max_events",
            )
        handler()


class FairFlows:
    """Messages on a clock that share links, max-min fair; made by ``EventClock``.

    The rates are those of :func:`windtunnel.simulate.replay` for tasks with a route, by the same code.
    """

    def __init__(self, clock: EventClock, links_bytes_per_s: NDArray[np.float64]) -> None:
        if not ((links_bytes_per_s > 0) & (links_bytes_per_s < math.inf)).all():
            raise InputError("a link needs a rate above 0", where=f"links_bytes_per_s {links_bytes_per_s}"[:200])
        self._clock = clock
        self._num_links = len(links_bytes_per_s)
        self._state = _room(links_bytes_per_s, 16, 4)
        self._unused = list(range(16))[::-1]
        self._running: dict[int, tuple[int, Handler]] = {}  # number told: place, what to call
        self._number = 0
        self._next_end_ns: int | None = NEVER

    def __len__(self) -> int:
        return len(self._running)

    def start(self, route: Sequence[int], size_bytes: float, on_done: Handler) -> int:
        """Send bytes over all links of a route at once; ``on_done()`` is called when the last one has arrived.

        Parameters
        ----------
        route : sequence of int
            Numbers of links, each once.
        size_bytes : float
            More than 0.
        on_done : callable

        Returns
        -------
        int, with which it can be canceled.

        Raises
        ------
        InputError
            There is no such link, or nothing to send.
        """
        if not len(route) or len(set(route)) < len(route) or not all(0 <= item < self._num_links for item in route):
            raise InputError(
                f"{list(route)[:8]} is no route over {self._num_links} links", fix="name links from 0 on, each once"
            )
        if not 0 < size_bytes < math.inf:
            raise InputError(f"a message of {size_bytes} bytes never ends, or never begins", fix="send more than 0")
        if not self._unused or len(route) > self._state.route.shape[1]:
            self._grow(len(route))
        # Places of flows that have ended are used again, so that arrays grow with the flows under way only.
        index = self._unused.pop()
        self._state.route[index] = pad_routes([route], self._state.route.shape[1])[0]
        self._state.size[index] = size_bytes
        self._number += 1
        self._state.owner[index] = self._number
        self._running[self._number] = index, on_done
        begin_flow(self._state, index, self._clock.now_ns)
        self._next_end_ns = None
        return self._number

    def cancel(self, flow: int) -> bool:
        """Stop a message; returns whether it was still on its way."""
        if flow not in self._running:
            return False
        end_flow(self._state, self._running[flow][0])
        self._next_end_ns = None
        self._forget(flow)
        return True

    def set_rate(self, link: int, bytes_per_s: float) -> None:
        """From now on a link has another rate, for messages under way, too.

        Raises
        ------
        InputError
            There is no such link, or the rate is not above 0.
        """
        if not (0 <= link < self._num_links and 0 < bytes_per_s < math.inf):
            raise InputError(f"link {link} cannot have {bytes_per_s} bytes/s", fix="give it a rate above 0")
        self._state.capacity[link] = bytes_per_s
        touch_link(self._state, link)
        self._next_end_ns = None

    def next_end_ns(self) -> int:
        """When the first message ends if none comes or goes; beyond all times if there is none."""
        if self._next_end_ns is None:
            self._next_end_ns = int(fill_rates(self._state, self._clock.now_ns))
        return self._next_end_ns

    def ending(self) -> list[Handler]:
        """Take out the messages that end now; returns what to call, in the order in which they started."""
        state, ending = self._state, list[int]()
        while state.counts[0] and state.finish[state.queue[0]] == self._clock.now_ns:
            ending.append(int(state.owner[state.queue[0]]))
            end_flow(state, int(state.queue[0]))
            self._next_end_ns = None
        return [self._forget(flow) for flow in sorted(ending)]

    def _forget(self, flow: int) -> Handler:
        index, handler = self._running.pop(flow)
        self._unused.append(index)
        return handler

    def _grow(self, width: int) -> None:
        """Make room for twice as many messages, and for longer routes."""
        old, (size, narrow) = self._state, self._state.route.shape
        wide = max(width, narrow)
        new = _room(old.capacity, 2 * size, wide)
        new.route[:size, :narrow] = old.route
        new.first[:] = _renumber_entries(old.first, narrow, wide)
        # Entries of the linked lists are numbered flow * width + link: a new width renumbers all of them.
        for name in ("next", "previous"):
            rows = _renumber_entries(getattr(old, name).reshape(size, narrow), narrow, wide)
            getattr(new, name).reshape(2 * size, wide)[:size, :narrow] = rows
        for name in set(Flows._fields) - {"route", "first", "next", "previous"}:
            getattr(new, name)[: len(getattr(old, name))] = getattr(old, name)
        self._state = new
        self._unused += range(2 * size - 1, size - 1, -1)


def _room(capacity: NDArray[np.float64], num_flows: int, width: int) -> Flows:
    route, owner = np.full((num_flows, width), -1, np.int32), np.zeros(num_flows, np.int64)
    return new_flows(capacity, route, np.zeros(num_flows), owner)


def _renumber_entries(entries: NDArray[Any], narrow: int, wide: int) -> NDArray[Any]:
    """Entries of flows with ``narrow`` links each as those of flows with ``wide`` links."""
    return np.where(entries < 0, -1, entries // narrow * wide + entries % narrow)
