"""What a program holds at its peak in another form, by running it alone.

In: a captured program or its optimizers, and a form. Out: bytes at the peak, with what operators allocate for
themselves. The difference between two forms, not the number itself, is what a what-if applies to the peak seen in the
real step: what lies around the program there is the same before and after.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from windtunnel.base.extras import require
from windtunnel.cost.rerun.form import BASELINE, Form
from windtunnel.cost.rerun.optimizer import UpdateForm, step_of
from windtunnel.cost.rerun.program import Program
from windtunnel.errors import PriceError
from windtunnel.measure.devices import stream_clock

__all__ = ["ProgramPeak", "program_peaks", "update_extra_bytes"]


@dataclass(frozen=True, slots=True)
class ProgramPeak:
    """Peak memory of a program that runs in isolation, and the part of it that its inputs take, in bytes."""

    peak_bytes: int
    input_bytes: int


def program_peaks(program: Program, *forms: Form) -> list[ProgramPeak]:
    """Run forward and backward passes in each form and follow the storages.

    Parameters
    ----------
    program : Program
    forms : Form

    Returns
    -------
    list of ProgramPeak
        In each form: parameters, inputs, gradients, everything between; no optimizer state.

    Raises
    ------
    AbsentDeviceError
        The program ran on a GPU, and there is none here.
    PriceError
        The program cannot be run again.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    from windtunnel.cost.rerun.interpreter import CANNOT_RUN

    stream_clock(program.device)  # refuses a device that is not here
    keyed = _Keyed(program)
    try:
        # calls that one form cannot run are run by none
        opaque = frozenset[int]().union(*(_find_failing_calls(keyed, form) for form in forms))
        return [_measure_program_peak(keyed, form, opaque) for form in forms]
    except (*CANNOT_RUN, MemoryError) as error:
        raise PriceError(
            f"the captured operators cannot be run again: {str(error).partition(chr(10))[0]}",
            where=", ".join(form.label for form in forms),
        ) from error


class _Keyed:
    """A program that equals every other with the same calls."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __hash__(self) -> int:
        return hash(self.program.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.program.fingerprint == other.program.fingerprint


@lru_cache(maxsize=64)
def _find_failing_calls(keyed: _Keyed, form: Form) -> frozenset[int]:
    from windtunnel.cost.rerun.interpreter import Interpreter

    # the baseline tells call by call what cannot be run; where several run as one, the first failure would end it
    opaque = set() if form == BASELINE else set(_find_failing_calls(keyed, BASELINE))
    Interpreter(keyed.program, form, opaque).rehearse()
    return frozenset(opaque)


@lru_cache(maxsize=64)  # the baseline is asked for again with every what-if
def _measure_program_peak(keyed: _Keyed, form: Form, opaque: frozenset[int]) -> ProgramPeak:
    from windtunnel.cost.rerun.interpreter import Interpreter
    from windtunnel.sources.memory.watch import Watch

    if keyed.program.devices:
        return _measure_device_peak(keyed.program, form, opaque)
    with _only_new_objects():
        ready = Interpreter(keyed.program, form, set(opaque))
        ready.rehearse()
        watch = Watch(workspace=True)
        with watch.learning():
            ready.run()
        with watch:
            ready.run()
        return ProgramPeak(watch.profile().peak_bytes, ready.input_bytes)


def _measure_device_peak(program: Program, form: Form, opaque: frozenset[int]) -> ProgramPeak:
    """By the counters of the caching allocator."""
    import torch

    from windtunnel.cost.rerun.interpreter import Interpreter

    before = torch.cuda.memory_allocated()
    ready = Interpreter(program, form, set(opaque))
    ready.rehearse()
    torch.cuda.reset_peak_memory_stats()
    ready.run()
    return ProgramPeak(torch.cuda.max_memory_allocated() - before, ready.input_bytes)


@contextmanager
def _only_new_objects() -> Iterator[None]:
    """Looking for tensors passes over all that is there already, as graphs and modules: millions of other objects."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def update_extra_bytes(optimizers: Sequence[Mapping[str, Any]], form: UpdateForm) -> int:
    """What an update holds beyond parameters, gradients and state, at most, all optimizers one after the other.

    Parameters
    ----------
    optimizers : list of dict
        ``graph.meta.optimizers``.
    form : UpdateForm

    Raises
    ------
    PriceError
        A class is not one of ``torch.optim``, or it does not know an option.
    """
    require("torch", extra="torch")
    from windtunnel.sources.memory.watch import Watch

    most = 0
    with _only_new_objects():
        for optimizer in optimizers:
            step = step_of(optimizer, form)
            step()
            step()  # state is there from the second update on
            watch = Watch(workspace=True)
            with watch:
                step()
            profile = watch.profile()
            most = max(most, profile.peak_bytes - int(profile.total_bytes[-1]) if profile.events.num_rows else 0)
    return most
