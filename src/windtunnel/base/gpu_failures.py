"""What to do about failures that GPUs cause.

In: the text of an exception. Out: advice, or nothing where it is none of these. The message itself stays: drivers and
torch say how much memory is free, and which devices meet. Not here: raising.
"""

from __future__ import annotations

import re

__all__ = ["gpu_advice"]

_ADVICE = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (
            r"cuda out of memory|cuda error: out of memory|outofmemoryerror|hip out of memory",
            "train on a smaller batch; `windtunnel memory --fake SCRIPT` predicts the peak, `--fit` the largest batch",
        ),
        (
            r"cannot re-initialize cuda in forked subprocess|bad.?fork",
            "start processes by 'spawn' (multiprocessing_context='spawn' of a DataLoader), or use CUDA after it only",
        ),
        (
            r"no cuda gpus are available|found no nvidia driver|not compiled with cuda|no nvidia driver on your system"
            r"|no cuda-capable device|cuda driver version is insufficient",
            "run it where a GPU is, with torch for it; `windtunnel capture --fake --device cuda SCRIPT` needs no GPU",
        ),
        (
            r"cupti_error_insufficient_privileges|err_nvgpuctrperm|insufficient.privileges",
            "let users profile: NVreg_RestrictProfilingToAdminUsers=0 for the driver, or --cap-add=SYS_ADMIN",
        ),
        (
            r"expected all tensors to be on the same device|is on cpu, different from other tensors|"
            r"tensors? .*on different devices",
            "move model, batch and optimizer state to one device, and make it run by itself first",
        ),
        (
            r"invalid device ordinal",
            "the device is not here: see CUDA_VISIBLE_DEVICES, and torch.cuda.device_count()",
        ),
    )
)


def gpu_advice(text: str) -> str:
    """What to do about a failure with this text; empty where no GPU has to do with it.

    Examples
    --------
    >>> gpu_advice("CUDA error: invalid device ordinal")
    'the device is not here: see CUDA_VISIBLE_DEVICES, and torch.cuda.device_count()'
    >>> gpu_advice("division by zero")
    ''
    """
    return next((advice for pattern, advice in _ADVICE if pattern.search(text)), "")
