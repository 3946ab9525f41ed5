"""A PyTorch program that runs here: a step function or a whole script, captured by hooks."""

from windtunnel.sources.torch.script import capture_script
from windtunnel.sources.torch.step import capture

__all__ = ["capture", "capture_script"]
