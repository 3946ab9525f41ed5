"""Communication at the grain of single messages.

In: graphs with collectives, a network. Out: the same graphs with each collective as sends and receives in chunks, or as
one task with its closed form. Not here: running anything but the links themselves.

Internal modules: ``gloo_worker``.
"""

from windtunnel import registry
from windtunnel.comm.algorithms import ALGORITHMS, schedule_of
from windtunnel.comm.expansion import Transport, expand
from windtunnel.comm.schedule import Schedule

__all__ = ["ALGORITHMS", "Schedule", "Transport", "expand", "schedule_of"]

registry.discover(__name__, skip=["gloo_worker"])
