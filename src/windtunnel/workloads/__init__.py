"""The workload interface, and small models with synthetic data that can be run.

In: sizes and a seed. Out: ``Workload``: models, optimizers and a function that does one training iteration. Not here:
measuring; the models of the suite (``systems.suite.workloads``). One file per model, found by its registration alone;
importing this package needs no torch.
"""

from windtunnel import registry
from windtunnel.workloads.workload import Workload

__all__ = ["Workload"]

registry.discover(__name__, skip=["images"])
