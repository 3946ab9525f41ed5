"""Kernels of GPUs (room kernels): whether their code could be searched here.

In: nothing. Out: an error that says what is missing. Not here: searching them.
"""

from __future__ import annotations

import llvmlite.binding as llvm

from windtunnel.errors import MissingExtraError, NotApplicableError
from windtunnel.hardware import machine

__all__ = ["require_gpu"]

_TRIPLE = "nvptx64-nvidia-cuda"


def require_gpu(asked: str) -> None:
    """Refuse what this host cannot do.

    Raises
    ------
    NotApplicableError
        There is no GPU, or its kernels cannot be searched yet.
    MissingExtraError
        The compiler's library was built without a target for it.
    """
    if not any(one.kind == "gpu" for one in machine().devices):
        raise NotApplicableError(f"there is no GPU here to evolve a kernel on ({asked} was asked for)",
                                 where="--on", fix="leave out --on: kernels of processors need none")  # fmt: skip
    llvm.initialize_all_targets()
    try:
        llvm.Target.from_triple(_TRIPLE)
    except RuntimeError as error:
        raise MissingExtraError(f"llvmlite was built without the target {_TRIPLE}",
                                fix="install an llvmlite that has it, or leave out --on") from error  # fmt: skip
    raise NotApplicableError("kernels of GPUs are not searched yet", where="--on", fix="leave out --on")
