"""One process of an executor: a rank that runs plans with a thread for each list of instructions.

In: plans, contents of buffers, requests to run. Out: times and contents. Every instruction becomes a function without
arguments when a plan is loaded, so that a round only calls them. Not here: who starts this (``executor``).
"""

from __future__ import annotations

import functools
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from windtunnel.measure.channels import TRANSPORTS, Channels, Slots, Start
from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import elapsed_ns
from windtunnel.measure.workers import Place
from windtunnel.systems.collectives.interpret import Buffers, compute
from windtunnel.systems.collectives.layouts import numpy_dtype
from windtunnel.systems.collectives.plan import (
    Call,
    Instruction,
    RankPlan,
    Receive,
    ReceiveReduce,
    Send,
    Signal,
    Wait,
)

Action = Callable[[], object]
_REDUCTIONS: Mapping[str, np.ufunc] = {"sum": np.add, "max": np.maximum}
_MAX_INSTRUCTIONS = 64


class Loaded(Protocol):
    """What a rank runs: its buffers, and functions for each of its threads."""

    inputs: Buffers
    actions: list[list[Action]]

    @property
    def buffers(self) -> Buffers:
        """What it stores."""

    def reset(self) -> None:
        """Put everything as it was before the round."""


class LoadedPlan:
    """A plan of one rank with its buffers, as functions."""

    def __init__(
        self,
        plan: RankPlan,
        numbers: Mapping[tuple[str, int], int],
        regions: Mapping[str, int],
        channels: Channels,
    ) -> None:
        self.plan, self.channels, self.numbers = plan, channels, numbers
        self.buffers: Buffers = {
            name: channels.array(regions[name], item.size, numpy_dtype(item.dtype))
            if name in regions
            else np.zeros(item.size, numpy_dtype(item.dtype))
            for name, item in plan.buffers.items()
        }
        self.inputs: Buffers = {}
        self.events: dict[int, threading.Event] = {}
        for item in (item for items in plan.threads.values() for item in items):
            if isinstance(item, Signal):
                self.events[item.event] = threading.Event()
        self.actions = [
            [self._action(item, numbers.get((thread, index), 0)) for index, item in enumerate(items)]
            for thread, items in plan.threads.items()
        ]

    def _action(self, item: Instruction, number: int) -> Action:
        if isinstance(item, Signal):
            return self.events[item.event].set
        if isinstance(item, Wait):
            return self.events.setdefault(item.event, threading.Event()).wait
        if isinstance(item, Send):
            return self.channels.sender(item.peer, number, item.source.of(self.buffers))
        if isinstance(item, Receive | ReceiveReduce):
            target = item.target.of(self.buffers)
            receive = self.channels.receiver(item.peer, number, target)
            if isinstance(item, Receive):
                return lambda: np.copyto(target, receive())
            own, reduce = item.own.of(self.buffers), _REDUCTIONS[item.reduction]
            return lambda: reduce(receive(), own, out=target)
        if isinstance(item, Call):
            if item.kernel.is_compilable:
                arrays = [view.of(self.buffers) for view in item.arguments]
                return functools.partial(item.kernel.function, item.first, item.base, *arrays)
            return functools.partial(
                item.kernel, [view.of(self.buffers) for view in item.arguments], item.first, item.base
            )
        return functools.partial(compute, item, self.buffers)

    def work(self, thread: str, index: int) -> Action:
        """What an instruction does apart from sending and waiting, on the memory that it has in a round."""
        item, number = self.plan.threads[thread][index], self.numbers.get((thread, index), 0)
        if isinstance(item, Signal | Wait):
            return lambda: None
        if isinstance(item, Send):
            source = item.source.of(self.buffers)
            message = self.channels.message(self.plan.rank, item.peer, number, source)
            if message.ctypes.data == source.ctypes.data:  # in a round it is not copied
                message = np.zeros_like(source)
            return functools.partial(np.copyto, message, source)
        if isinstance(item, Receive | ReceiveReduce):
            target = item.target.of(self.buffers)
            message = self.channels.message(item.peer, self.plan.rank, number, target)
            if isinstance(item, Receive):
                return functools.partial(np.copyto, target, message)
            return functools.partial(_REDUCTIONS[item.reduction], message, item.own.of(self.buffers), out=target)
        return self._action(item, 0)

    def reset(self) -> None:
        """Put everything as it was before the round."""
        for event in self.events.values():
            event.clear()
        for name, content in self.inputs.items():
            self.buffers[name][: content.size] = content
        self.channels.begin_round()


class Rank:
    """What a rank answers to its executor."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.transport, self.link, control = place.config
        self.start = Start(Path(control), place.num_ranks, place.rank)
        self.loaded: list[Loaded] = []
        self.pool = ThreadPoolExecutor(1)
        self.sweep = np.ones((2, 0), np.uint8)

    def load(
        self,
        plan: RankPlan,
        numbers: Mapping[tuple[str, int], int],
        slots: Slots,
        regions: Mapping[str, int],
        path: str,
    ) -> None:
        """Prepare a plan."""
        channels = TRANSPORTS[self.transport](self.place.rank, slots, Path(path), self.link)
        self.loaded.append(LoadedPlan(plan, numbers, regions, channels))

    def fill(self, index: int, inputs: Buffers) -> None:
        """Contents that buffers have at the beginning of each round."""
        self.loaded[index].inputs = {name: np.ascontiguousarray(array).reshape(-1) for name, array in inputs.items()}

    def read(self, index: int, names: list[str]) -> Buffers:
        """Contents of buffers."""
        return {name: self.loaded[index].buffers[name] for name in names}

    def round(self, index: int, record: bool) -> tuple[int, list[list[tuple[int, int]]]]:
        """Run a plan once, in step with the other ranks: its time, and begin and end of instructions if asked for."""
        loaded = self.loaded[index]
        loaded.reset()
        start_ns = self.start.meet()
        stamps: list[list[tuple[int, int]]] = [[] for _ in loaded.actions]

        def run_all() -> None:
            for future in futures:
                future.result()

        threads = [functools.partial(self._run, index, i, start_ns, stamps[i], record) for i in range(len(stamps))]
        futures = [self.pool.submit(thread) for thread in threads[1:]]
        self.start.wait_until(start_ns)

        def run() -> None:
            threads[0]()
            run_all()

        return elapsed_ns(run), stamps

    def time_work(self, index: int, positions: list[tuple[str, int]], cache_bytes: int) -> tuple[float, float]:
        """Mean times of instructions without sending and waiting: with data in memory, and right after they have run.

        First each rank moves twice as many bytes as caches hold, as what comes before a step does. All ranks run at the
        same time, as they share the memory; one without instructions only keeps step.
        """
        loaded = self.loaded[index]
        assert isinstance(loaded, LoadedPlan)
        actions = [loaded.work(*position) for position in positions[:_MAX_INSTRUCTIONS]]
        if actions and self.sweep.size != 2 * cache_bytes:
            self.sweep = np.ones((2, cache_bytes), np.uint8)
        np.copyto(self.sweep[0], self.sweep[1])
        self.start.wait_until(self.start.meet())
        cold_ns = sum(elapsed_ns(action) for action in actions)
        self.start.wait_until(self.start.meet())
        cached_ns = 0
        for action in actions:
            action()
            cached_ns += elapsed_ns(action)
        return cold_ns / max(len(actions), 1), cached_ns / max(len(actions), 1)

    def _run(self, index: int, thread: int, start_ns: int, stamps: list[tuple[int, int]], record: bool) -> None:
        """Run one thread of a plan; an error ends the process, as the other thread could wait for ever."""
        words, word = self.start.words, self.start.progress_word(thread)
        self.start.wait_until(start_ns)
        try:
            for number, action in enumerate(self.loaded[index].actions[thread]):
                words[word] = number
                if record:
                    before_ns = time.monotonic_ns()
                    action()
                    stamps.append((before_ns - start_ns, time.monotonic_ns() - start_ns))
                else:
                    action()
            words[word] = len(self.loaded[index].actions[thread])
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def main(place: Place) -> None:
    """Run plans."""
    hold_heap()
    transport = place.config[0]
    if transport == "gloo":
        import torch

        torch.set_num_threads(1)
        place.join()
    answer_orders(place, Rank(place))


def answer_orders(place: Place, rank: Rank) -> None:
    """Do what the executor asks for until it closes the line."""
    place.tell(None)
    while True:
        try:
            order, *arguments = place.order()
        except EOFError:
            return
        place.tell(getattr(rank, order)(*arguments))
