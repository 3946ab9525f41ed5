"""Kernels of GPUs (room kernels): whether they can be searched here.

In: the name of one. Out: an error that says what is missing. Not here: running them (``_gpu``).
"""

from __future__ import annotations

from windtunnel.errors import NotApplicableError
from windtunnel.hardware import machine

__all__ = ["require_gpu"]


def require_gpu(kernel: str) -> None:
    """Refuse a kernel that nothing here can run.

    Raises
    ------
    NotApplicableError
        There is no GPU.
    """
    if not any(one.kind == "gpu" for one in machine().devices):
        raise NotApplicableError(f"there is no GPU here to evolve {kernel} on, which is a kernel of one",
                                 where="target triple", fix="run this where one is")  # fmt: skip
