"""Strategies of synchronization, one file per family; found by their registration alone.

In: what a worker or a server just saw. Out: what it does next. No strategy reads a clock, sleeps or touches a socket.
"""

from windtunnel import registry

registry.discover(__name__)
