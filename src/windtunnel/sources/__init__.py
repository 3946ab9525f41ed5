"""Everything from the outside world that becomes a graph.

In: programs that run here, traces that others made. Out: ``Graph``. Not here: prices, what-ifs, simulated time.
One file or sub-package per format, found by its registration alone; ``timeline`` is what the formats of recorded
timelines share. Importing this package needs no torch.
"""

from windtunnel import registry

registry.discover(__name__)
