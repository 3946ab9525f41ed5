"""Prices on accelerators that are described, not measured: cycles, traffic, energy.

In: matrix products and vector operators, machines as columns. Out: cycles and energy of each pair. A GPU, a TPU and a
candidate of a chip search are one object with other numbers. Not here: what a chip is, and its area (``hardware``).
"""

from windtunnel import registry
from windtunnel.systems.chips.accelerators.energy import product_energy_j, vector_energy_j
from windtunnel.systems.chips.accelerators.engine import Machines, product_cycles
from windtunnel.systems.chips.accelerators.systolic import Gemms

__all__ = ["Gemms", "Machines", "product_cycles", "product_energy_j", "vector_energy_j"]

registry.discover(__name__)
