"""What a GPU timeline means, whatever file it was read from: events in, a graph out.

A profiler records when operators, calls and kernels ran. Which of them waited for which, it does not record, or only
in part; that is found here. A reader of a format fills one type, `Events`::

    bytes of a file -> a reader, such as sources.kineto -> Events (events)
                                                             |
    device    launches, stream order, what explains each start; invalid_records
    waits     streams that wait for events, calls that block
    host      threads cut into leaf slices (slices) with operator, phase and layer
    lines     the program's line of each event
    columns   kinds of tasks, collectives
    operators which task stands for an operator, with its inputs and its work
    memory    which slice allocates, which one frees
    window    the part that is asked for, and steps
    threads   hand-offs between host threads
    edges     all of that as edges, with the lags that were measured
                                                             |
    build     tasks, edges, resources -> Graph -> explain (why each device task began)

    Events -> recorded (device events as they stand in the file) -> tables (intervals)

``names`` has the vocabulary of PyTorch and of communication libraries, ``rules`` the constants for what is inferred.

Internal modules: ``device``, ``edges``, ``invalid_records``, ``lines``, ``memory``, ``operators``,
``threads``, ``waits``, ``window``.
"""

from windtunnel.sources.timeline.build import build_graph
from windtunnel.sources.timeline.events import Category, Events
from windtunnel.sources.timeline.rules import TimelineRules

__all__ = ["Category", "Events", "TimelineRules", "build_graph"]
