"""A PyTorch program that runs here: a step function or a whole script, captured by hooks.

Public modules: ``annotate``, ``boundary``, ``compiled``, ``device_operators``, ``fake``, ``flop_count``, ``hooks``,
``kernels``, ``launch``, ``lines``, ``live``, ``phase_and_layer``, ``ranks``, ``script``, ``step``.
"""

from windtunnel.sources.torch.script import capture_script
from windtunnel.sources.torch.step import capture

__all__ = ["capture", "capture_script"]
