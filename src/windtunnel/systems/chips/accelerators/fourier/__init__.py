"""Layers of circulant blocks on an engine of transforms: cycles, size, energy, fixed-point values.

In: sizes of a layer in blocks, a ``FourierEngine``. Out: cycles in closed form and counted, what it takes of a chip,
and what comes out bit for bit. Not here: what an engine is (``hardware``), layers in torch.

Source: Liao et al. (ICCAD 2017); Wang et al. (AAAI 2018); CirCNN (MICRO 2017).
"""

from windtunnel.systems.chips.accelerators.fourier.closed import BlockLayer, EngineUse, engine_use
from windtunnel.systems.chips.accelerators.fourier.counted import counted_cycles

__all__ = ["BlockLayer", "EngineUse", "counted_cycles", "engine_use"]
