"""Convolutions on a grid that skips zeros: cycles, traffic and energy of the three passes of training.

In: sizes of a layer, which of its values are zero, a ``SparseGrid``. Out: cycles by pass and mode. Not here: what a
grid is (``hardware``), where the zeros come from (``sources``).

Source: Sarma et al., "Exploiting Activation based Gradient Output Sparsity to Accelerate Backpropagation in CNNs"
(2021). Sizes of its chip are not published, so that the grid's are ours.
"""

from windtunnel.systems.chips.accelerators.sparse.layer import LayerCycles, LayerZeros, PassCycles, layer_cycles
from windtunnel.systems.chips.accelerators.sparse.shape import PHASES, ConvShape, shape_of
from windtunnel.systems.chips.accelerators.sparse.tiles import MODES

__all__ = [
    "MODES",
    "PHASES",
    "ConvShape",
    "LayerCycles",
    "LayerZeros",
    "PassCycles",
    "layer_cycles",
    "shape_of",
]
