"""Everything from the outside world that becomes a graph (room sources).

In: programs that run here, traces that others made. Out: ``Graph``. Not here: prices, what-ifs, simulated time.
One sub-package per format. Importing this room registers its sources and needs no torch.
"""

from windtunnel.sources import chakra, execution_trace, kineto, torch

__all__ = ["chakra", "execution_trace", "kineto", "torch"]
