"""What the workers of the tests do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def main(place):
    """Do what the configuration says."""
    print(f"last words of rank {place.rank}", flush=True)
    return ACTIONS[place.config](place)


def echo(place):
    """Answer with the place and the order."""
    place.tell((place.rank, place.num_ranks, place.order()))


def count(place):
    """Say three numbers, then that it is done."""
    for number in range(3):
        place.tell(number)
    place.tell(f"done {place.rank}")


def fails(place):
    """The second rank fails while the first waits."""
    if place.rank == 0:
        place.order()
    if place.config == "raise":
        raise ValueError("out of luck")
    if place.config == "leave":
        os._exit(7)
    if place.config == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def tick(place):
    """Say the time until the end."""
    while True:
        place.tell(time.monotonic())
        time.sleep(0.005)


def threads(place):
    """Say the cores of three threads, twice."""
    release = threading.Event()
    others = [threading.Thread(target=release.wait, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    ids = [threading.get_native_id(), *(other.native_id for other in others)]
    for _ in range(2):
        place.tell([sorted(os.sched_getaffinity(one)) for one in ids])
        try:
            place.order()
        except EOFError:
            return


def fork(place):
    """Have a child that waits, and say who it is."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        sys.exit()
    place.tell(child)
    time.sleep(60)


ACTIONS = {"echo": echo, "count": count, "tick": tick, "threads": threads, "fork": fork}
ACTIONS |= dict.fromkeys(("raise", "leave", "die", "quiet"), fails)
