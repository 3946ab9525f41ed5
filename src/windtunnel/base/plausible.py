"""What no answer can be (imports only errors and units): every verb asks here before it prints a prediction.

In: the numbers of an answer, and the captured ones that it was derived from. Out: nothing, or an error that says that
the defect is ours. An input that is implausible itself excuses the answer: then the reader of the input warns.
"""

from __future__ import annotations

from windtunnel.errors import ImplausibleError
from windtunnel.units import format_duration, format_ratio, format_size

__all__ = ["MAX_STEP_NS", "MIN_STEP_NS", "is_plausible_step", "require_plausible"]

MIN_STEP_NS = 1_000
"""One training or inference step: a single kernel takes longer."""
MAX_STEP_NS = 86_400 * 10**9
"""One day."""
_ROUNDING = 1.005
_FIX = "this is a defect of windtunnel: please report the command, and the graph if you can share it"


def is_plausible_step(step_ns: float) -> bool:
    """Whether a step can take this long.

    Examples
    --------
    >>> is_plausible_step(12e6), is_plausible_step(0), is_plausible_step(1.6e18)
    (True, False, False)
    """
    return MIN_STEP_NS <= step_ns <= MAX_STEP_NS


def require_plausible(
    what: str,
    *,
    step_ns: float | None = None,
    captured_ns: float | None = None,
    mfu_ratio: float | None = None,
    memory_bytes: float | None = None,
    capacity_bytes: float | None = None,
) -> None:
    """Refuse to print an answer that cannot be true.

    Parameters
    ----------
    what : str
        The answer in words, such as ``the step predicted for h100``.
    step_ns : float, optional
        Predicted: at least a microsecond, at most a day.
    captured_ns : float, optional
        What it was derived from: where that is implausible, so may be the answer.
    mfu_ratio : float, optional
        Model FLOPs over what the device can do at its peak: at most 1.
    memory_bytes, capacity_bytes : float, optional
        Held at once, and what the device really has; for what was held, not for what would be needed.

    Raises
    ------
    ImplausibleError
        Names the number and its range.
    """
    is_excused = captured_ns is not None and not is_plausible_step(captured_ns)
    if step_ns is not None and not is_excused and not is_plausible_step(step_ns):
        limits = f"{format_duration(MIN_STEP_NS)} to {format_duration(MAX_STEP_NS)}"
        raise ImplausibleError(
            f"{what} takes {format_duration(step_ns)}, and no step is outside of {limits}", where=what, fix=_FIX
        )
    if mfu_ratio is not None and mfu_ratio > _ROUNDING:
        raise ImplausibleError(
            f"{what} computes at {format_ratio(mfu_ratio)} of the peak of its devices", where=what, fix=_FIX
        )
    if memory_bytes is not None and capacity_bytes and memory_bytes > _ROUNDING * capacity_bytes:
        raise ImplausibleError(
            f"{what} held {format_size(memory_bytes)}, and there are only {format_size(capacity_bytes)}",
            where=what,
            fix=_FIX,
        )
