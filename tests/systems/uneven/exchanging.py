"""Nodes that send so many bytes to each other over sockets, and tell when the last ones came."""

from __future__ import annotations

import threading
import time

from windtunnel.systems.uneven.sockets import Sockets


def main(place):
    """``place.config``: addresses, and a list of (source, target, bytes)."""
    addresses, sends = place.config
    mine = [(target, size) for source, target, size in sends if source == place.rank]
    sources = [source for source, target, _ in sends if target == place.rank]
    sockets = Sockets(place.rank, addresses, sources, [target for target, _ in mine], time.monotonic_ns)
    place.tell("ready")
    begun_ns = place.order()
    sockets.start()
    time.sleep(max(0.0, (begun_ns - time.monotonic_ns()) / 1e9))
    threads = [threading.Thread(target=sockets.send, args=one) for one in mine]
    for thread in threads:
        thread.start()
    took_s = {source: (sockets.arrival_ns(source) - begun_ns) / 1e9 for source in sources}
    for thread in threads:
        thread.join()
    place.tell(took_s)
    place.order()
    sockets.close()
    place.tell([sockets.arrival_ns(source) for source in sources])
