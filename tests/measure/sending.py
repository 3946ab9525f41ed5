"""Two ranks that send bytes through a socket."""

from __future__ import annotations

import socket
import time

PORT = 29_517


def main(place):
    """Rank 0 receives and tells the rate in bytes per second."""
    address, size_bytes = place.config
    if place.rank == 0:
        with socket.create_server((address, PORT)) as server:
            connection, _ = server.accept()
            with connection:
                left = size_bytes - len(connection.recv(1 << 16))
                begun_s = time.perf_counter()
                whole = left
                while left > 0:
                    left -= len(connection.recv(1 << 16))
                place.tell(whole / (time.perf_counter() - begun_s))
        return
    for _ in range(100):
        try:
            sender = socket.create_connection((address, PORT))
            break
        except OSError:
            time.sleep(0.05)
    with sender:
        sender.sendall(bytes(size_bytes))
    place.tell(None)
