"""Partial flights: run only the changed operators, old form and new form side by side.

In: a program, an old and a new form, a time budget. Out: ``Ratios``: new over old duration per call, forward and
backward. The ratio, not the isolated time, is what a what-if applies to the durations seen in the real step. Both
forms run interleaved (old new, new old, ...) with the data flow, the allocator and the caches that they have in the
step. Results are kept in the profile database. Not here: what becomes of the laps (``ratios``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost.rerun.form import BASELINE, Form, require_uncompiled
from windtunnel.cost.rerun.program import Program
from windtunnel.cost.rerun.ratios import (
    MIN_ROUNDS,
    Ratios,
    Rounds,
    group_calls,
    key_of,
    look_up_ratios,
    ratios_of,
    summarize,
)
from windtunnel.errors import NotApplicableError, PriceError
from windtunnel.measure.database import ProfileDatabase
from windtunnel.measure.devices import HostClock, StreamClock, require_captured_device, stream_clock
from windtunnel.measure.disturbance import watch_disturbance
from windtunnel.measure.host_state import hold_heap
from windtunnel.measure.turns import rounds

if TYPE_CHECKING:
    from windtunnel.cost.rerun.interpreter import Interpreter

__all__ = ["lacks_kernel", "measure_ratios"]

Floats = NDArray[np.float64]
_MAX_ROUNDS, _MAX_DISTURBED_ROUNDS = 15, 30  # more where others disturb the first ones
_MIN_GROWTH = 0.5  # of what operators give, against that of the batch: weights and losses stay as they are


def measure_ratios(
    program: Program,
    new: Form,
    old: Form = BASELINE,
    *,
    database: ProfileDatabase | None = None,
    budget_s: float = 6.0,
    progress: Progress | None = None,
    device_clock: StreamClock | HostClock | None = None,
) -> Ratios:
    """Measure how much longer every call takes in the new form.

    A program that ran on a GPU runs there again, and what the host takes for its calls is measured apart from what
    their kernels take.

    Parameters
    ----------
    program : Program
    new, old : Form
    database : ProfileDatabase, optional
        Looked up first and filled afterwards; None keeps nothing.
    budget_s : float
        Time for the interleaved rounds; at least three rounds are flown.
    progress : callable, optional
        Called with (what, done, total).
    device_clock : StreamClock or HostClock, optional
        That of the GPU by default, if the program ran on one.

    Returns
    -------
    Ratios

    Raises
    ------
    AbsentDeviceError
        The program ran on a GPU, and there is none here, or another one.
    NotApplicableError
        This processor has no kernel for an operator in the new form.
    PriceError
        The program cannot be run again in this form.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    require_uncompiled(program.compiled, new)
    _require_one_device(program)
    clock = device_clock or stream_clock(program.device)
    require_captured_device(program.captured_on, clock)
    hold_heap()  # as capture and flights do
    known = look_up_ratios(program, new, old, database=database, device_clock=clock)
    if known is not None:
        return known
    groups = group_calls(program, new, old)
    flown = _fly(program, new, old, budget_s, progress, clock)
    measurements = summarize(flown, groups, partial(key_of, program, new, old, clock))
    waited_ratio = float(np.median(flown.waited)) if flown.is_disturbed else 0.0
    if database is not None and not waited_ratio:
        database.add(measurements.values())
    return replace(ratios_of(program, groups, measurements), waited_ratio=waited_ratio)


def _require_one_device(program: Program) -> None:
    if len(program.devices) > 1:
        raise PriceError(
            "this process computes on several GPUs, whose operators cannot be run again one after the other",
            where=", ".join(program.devices),
            fix="take published ratios (prices='paper'), or verify the what-if by a real run",
        )


# --- flying -----------------------------------------------------------------------------------------------


def _fly(
    program: Program,
    new: Form,
    old: Form,
    budget_s: float,
    progress: Progress | None,
    clock: StreamClock | HostClock | None,
) -> Rounds:
    from windtunnel.cost.rerun.interpreter import CANNOT_RUN, Interpreter

    opaque: set[int] = set()
    try:
        pair = Interpreter(program, old, opaque, clock), Interpreter(program, new, opaque, clock)
        known = -1
        while known != len(opaque):  # values drawn later may fail another call: then all laps are taken anew
            _rehearse(*pair, opaque)
            _require_growth(*pair)
            known = len(opaque)
            result = _interleave(*pair, budget_s, progress, is_on_device=clock is not None)
    except (*CANNOT_RUN, MemoryError) as error:
        raise PriceError(
            f"the captured operators cannot be run again: {str(error).partition(chr(10))[0]}",
            where=f"form {new.label}",
            fix="take published ratios (prices='paper'), or verify the what-if by a real run",
        ) from error
    result.bytes_ratio = _bytes_ratio(pair[0].output_bytes, pair[1].output_bytes)
    return result


def _rehearse(first: Interpreter, second: Interpreter, opaque: set[int]) -> None:
    """Until both forms run the same calls."""
    known = -1
    while known != len(opaque):
        known = len(opaque)
        first.rehearse()
        second.rehearse()
    lacking = next((key for key, failure in second.failures.items() if lacks_kernel(failure)), None)
    if lacking is not None and lacking not in first.failures:
        raise NotApplicableError(
            f"this processor has no {first.program.calls[lacking].operator} in that form",
            where=second.failures[lacking],
        )


def lacks_kernel(error: object) -> bool:
    """Whether an error of torch says that this processor has no such kernel: oneDNN has no primitive for it.

    Examples
    --------
    >>> lacks_kernel(RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive"))
    True
    """
    return "could not create a primitive" in str(error)


def _require_growth(old: Interpreter, new: Interpreter) -> None:
    """Another batch must reach the operators: a size that no input has changes nothing, and buys nothing."""
    requested, created = new.form.batch_ratio - 1.0, float(old.output_bytes.sum())
    if not requested or not created:
        return
    extended = float(new.output_bytes.sum()) / created - 1.0
    if abs(extended) < _MIN_GROWTH * abs(requested):
        raise PriceError(
            f"a batch of {new.form.batch[1]} instead of {new.form.batch[0]} changes what operators give by only "
            f"{extended:+.0%}: where the batch lies is not seen in the inputs",
            where=f"form {new.form.label}",
            fix="say how many samples the captured batch has (samples=), or verify the what-if by a real run",
        )


def _interleave(
    old: Interpreter, new: Interpreter, budget_s: float, progress: Progress | None, *, is_on_device: bool
) -> Rounds:
    result = Rounds(is_on_device=is_on_device)
    for turn in rounds(MIN_ROUNDS, _MAX_DISTURBED_ROUNDS, budget_s, progress=progress, what="operators in both forms"):
        # rounds that other programs disturbed are followed by more, and the quiet ones of all count
        if turn >= _MAX_ROUNDS and not result.is_disturbed:
            break
        with watch_disturbance() as stretch:
            # who goes first alternates: the first of two finds colder caches
            order = (new, old) if turn % 2 else (old, new)
            if is_on_device:
                laps = {form: form.run_on_device() for form in order}
            else:
                whole = {form: form.run() for form in order}
                laps = {form: (whole[form], form.run(detail=True)) for form in (old, new)}
        result.old.append(laps[old][0])
        result.new.append(laps[new][0])
        result.old_detail.append(laps[old][1])
        result.new_detail.append(laps[new][1])
        result.waited.append(stretch.lost_ratio)
    return result.quiet_rounds()


def _bytes_ratio(old: Floats, new: Floats) -> Floats:
    ratio: Floats = np.divide(new, old, out=np.ones(len(old)), where=old > 0)
    return ratio
