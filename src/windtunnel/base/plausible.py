"""What no answer can be (imports only errors and units): asked before anything is shown.

In: the numbers of an answer, and the captured ones that it was derived from; or the document of any verb, whose numbers
are known by their names. Out: nothing, or an error that says that the defect is ours. An input that is implausible
itself excuses the answer: then the reader of the input warns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.errors import ImplausibleError
from windtunnel.units import format_duration, format_ratio, format_size

__all__ = ["MAX_STEP_NS", "MIN_STEP_NS", "is_plausible_step", "require_plausible", "require_plausible_document"]

MIN_STEP_NS = 1_000
"""One training or inference step: a single kernel takes longer."""
MAX_STEP_NS = 86_400 * 10**9
"""One day."""
_MAX_BYTES = 2**60
_ROUNDING = 1.005
# names that documents of verbs give to such numbers
_STEPS = ("predicted_ns", "predicted_step_ns", "step_ns")
_CAPTURED = ("baseline_ns", "captured_ns", "predicted_baseline_ns")
_SHARES = ("mfu",)
_SIZES = ("baseline_peak_bytes", "memory_bytes", "peak_bytes", "peak_reserved_bytes", "peak_rounded_bytes")
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


def require_plausible_document(document: Mapping[str, Any]) -> None:
    """Refuse to show a document in which a number cannot be true, wherever in it that is.

    A predicted step that is derived from a captured one takes at least a microsecond; any takes less than a day, and
    none a negative time. What-ifs whose parameters the user gave may ask for any factor. Model FLOPs do not exceed the
    peak of the devices, and sizes in memory are counts.

    Parameters
    ----------
    document : mapping
        Of a verb; other numbers than those are not judged.

    Raises
    ------
    ImplausibleError
        Names the number and its range.

    Examples
    --------
    >>> require_plausible_document({"answers": [{"baseline_ns": 12e6, "predicted_ns": 8e6}]})
    """
    _require_plausible_values(document, "the answer")


def _require_plausible_values(value: Any, what: str) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            _require_plausible_values(item, what)
    if not isinstance(value, Mapping):
        return
    what = next(
        (f"{what}: {value[key]}" for key in ("whatif", "target", "name") if isinstance(value.get(key), str)), what
    )
    given = value.get("parameters")
    is_given = isinstance(given, Mapping) and any(given.values())  # by the user, who may ask for a factor of a billion
    captured = [value[key] for key in _CAPTURED if _is_number(value.get(key))]
    for key, item in value.items():
        if not _is_number(item):
            _require_plausible_values(item, what)
        elif key in _STEPS and (item < 0 or (not is_given and (item > MAX_STEP_NS or captured))):
            require_plausible(f"{what}, {key},", step_ns=item, captured_ns=captured[0] if captured else None)
        elif key in _SHARES:
            require_plausible(f"{what}, {key},", mfu_ratio=item)
        elif key in _SIZES and not 0 <= item <= _MAX_BYTES:
            raise ImplausibleError(f"{what}, {key}, is {item:,} bytes", where=what, fix=_FIX)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
