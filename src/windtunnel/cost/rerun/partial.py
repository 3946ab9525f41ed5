"""Partial flights: run only the changed operators, old form and new form side by side.

In: a program, an old and a new form, a time budget. Out: ``Ratios``: new over old duration per call, forward and
backward. The ratio, not the isolated time, is what a what-if applies to the durations seen in the real step. Both
forms run interleaved (old new, new old, ...) with the data flow, the allocator and the caches that they have in the
step. Results are kept in the profile database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.cost.rerun.form import BASELINE, Form, require_uncompiled
from windtunnel.cost.rerun.program import NOT_FLOWN, Program
from windtunnel.errors import NotApplicableError, PriceError
from windtunnel.measure.allocator import hold_heap
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.devices import HostClock, StreamClock, stream_clock
from windtunnel.measure.disturbance import MAX_WAITED_RATIO, watch_disturbance
from windtunnel.measure.fingerprint import libraries, machine, package_versions
from windtunnel.measure.rounds import quiet, quiet_rows, rounds, spread_of_quiet, spread_ratio

if TYPE_CHECKING:
    from windtunnel.cost.rerun.interpreter import Interpreter, Lap

__all__ = ["Ratios", "lacks_kernel", "look_up_ratios", "measure_ratios"]

Floats = NDArray[np.float64]
_Key = tuple[str, str, str, str, int, str, str]
_MIN_ROUNDS, _MAX_ROUNDS, _MAX_SERIES = 3, 15, 2  # a second series of rounds where others disturb the first
_PHASES = ("forward", "backward")
_ON_DEVICE = ("device forward", "device backward")  # of programs on a GPU, whose host times are the other two
_METHOD = 3  # raised whenever a form is run or timed in another way: older measurements are then not used
_MIN_GROWTH = 0.5  # of what operators give, against that of the batch: weights and losses stay as they are
_SMALL_SHARE = 0.001  # calls below this share of a phase have one ratio together


@dataclass(frozen=True)
class Ratios:
    """New over old, per call of a program: C calls.

    Parameters
    ----------
    forward, backward : float [C]
        Of durations; 1 where a call could not be run again.
    output_bytes : float [C]
        Of the bytes of the results.
    forward_total, backward_total : float
        Of a whole pass, which is known better than the ratio of any one call; NaN where it says nothing.
    spread_ratio : float
        Interquartile range of the whole ratio over its median.
    rounds : int
        Interleaved rounds.
    waited_ratio : float
        Share of the time for which other programs kept this one from running; such ratios are used, and not kept.
    failures : frozenset of int
        Calls that could not be run again.
    device : Ratios, optional
        Of the kernels of a program that runs on a GPU; the others are then those of the host, which launches them.
    """

    forward: Floats
    backward: Floats
    output_bytes: Floats
    forward_total: float = 1.0
    backward_total: float = 1.0
    spread_ratio: float = 0.0
    rounds: int = 0
    waited_ratio: float = 0.0
    failures: frozenset[int] = frozenset()
    device: Ratios | None = None


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
        The program ran on a GPU, and there is none here.
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
    hold_heap()  # as capture and flights do
    known = look_up_ratios(program, new, old, database=database, device_clock=clock)
    if known is not None:
        return known
    groups = _groups(program, new, old)
    flown = _fly(program, new, old, budget_s, progress, clock)
    measurements = _summarize(flown, groups, partial(_key, program, new, old, clock))
    waited_ratio = float(np.median(flown.waited)) if flown.is_disturbed else 0.0
    if database is not None and not waited_ratio:
        database.add(measurements.values())
    return replace(_ratios(program, groups, measurements), waited_ratio=waited_ratio)


def _require_one_device(program: Program) -> None:
    if len(program.devices) > 1:
        raise PriceError(
            "this process computes on several GPUs, whose operators cannot be run again one after the other",
            where=", ".join(program.devices),
            fix="take published ratios (prices='paper'), or verify the what-if by a real run",
        )


# --- flying -----------------------------------------------------------------------------------------------


@dataclass
class _Rounds:
    """Laps of both forms, round by round, and what the rehearsal learnt.

    On the host alone ``old_detail`` and ``new_detail`` time every autograd node; of a program on a device they are
    what the device took, and the other two what the host took.
    """

    is_on_device: bool = False
    old: list[Lap] = field(default_factory=list)
    new: list[Lap] = field(default_factory=list)
    old_detail: list[Lap] = field(default_factory=list)
    new_detail: list[Lap] = field(default_factory=list)
    bytes_ratio: Floats = field(default_factory=lambda: np.ones(0))
    waited: list[float] = field(default_factory=list)

    @property
    def is_disturbed(self) -> bool:
        """Whether too few rounds were left alone."""
        return sum(share <= MAX_WAITED_RATIO for share in self.waited) < _MIN_ROUNDS

    def quiet_rounds(self) -> _Rounds:
        """The rounds that were left alone; all where these are too few."""
        if self.is_disturbed:
            return self
        left = [index for index, share in enumerate(self.waited) if share <= MAX_WAITED_RATIO]
        return _Rounds(
            is_on_device=self.is_on_device,
            old=[self.old[index] for index in left],
            new=[self.new[index] for index in left],
            old_detail=[self.old_detail[index] for index in left],
            new_detail=[self.new_detail[index] for index in left],
            bytes_ratio=self.bytes_ratio,
            waited=[self.waited[index] for index in left],
        )


def _fly(
    program: Program,
    new: Form,
    old: Form,
    budget_s: float,
    progress: Progress | None,
    clock: StreamClock | HostClock | None,
) -> _Rounds:
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
) -> _Rounds:
    result = _Rounds(is_on_device=is_on_device)
    for _ in range(_MAX_SERIES):
        for turn in rounds(_MIN_ROUNDS, _MAX_ROUNDS, budget_s, progress=progress, what="operators in both forms"):
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
        # a series that other programs disturbed is followed by another, and the quiet rounds of all count
        if not result.is_disturbed:
            break
    return result.quiet_rounds()


def _bytes_ratio(old: Floats, new: Floats) -> Floats:
    ratio: Floats = np.divide(new, old, out=np.ones(len(old)), where=old > 0)
    return ratio


# --- from laps to measurements -------------------------------------------------------------------------------


def _groups(program: Program, *forms: Form) -> NDArray[np.int64]:
    """Calls with one ratio share a group: equal calls, and calls that run as one; int [C], -1 for marks."""
    numbers: dict[Any, int] = {}
    runs = [pair for form in forms for pair in (*form.ranges_to_recompute(program.recomputed), *form.compiled)]
    ranges = [*program.compiled, *runs]
    groups = []
    for index, call in enumerate(program.calls):
        key: Any = next(((first, last) for first, last in ranges if first <= index < last), None)
        key = key or (call.schema, call.signature)
        groups.append(-1 if call.mark else numbers.setdefault(key, len(numbers)))
    return np.array(groups, dtype=np.int64)


def _summarize(
    rounds: _Rounds, groups: NDArray[np.int64], key_of: Callable[[int, str], _Key]
) -> dict[tuple[int, str], Measurement]:
    """One measurement per group and phase."""
    times = _phase_times(rounds)
    rows: dict[tuple[int, str], Measurement] = {}
    for phase, (old_C, new_C, spread) in times.items():
        for group in range(int(groups.max(initial=-1)) + 1):
            members = np.flatnonzero(groups == group)
            rows[group, phase] = Measurement(
                *key_of(int(members[0]), phase),
                float(old_C[members].sum()),
                float(new_C[members].sum()),
                spread,
                len(rounds.old),
                float(np.median(rounds.bytes_ratio[members])),
            )
    return rows


def _phase_times(rounds: _Rounds) -> dict[str, tuple[Floats, Floats, float]]:
    """Old and new time per call, of each phase, and how far the ratio of their sums varies."""
    if rounds.is_on_device:
        host, device = (rounds.old, rounds.new), (rounds.old_detail, rounds.new_detail)
        parts = [("forward_ns", host), ("backward_ns", host), ("forward_ns", device), ("backward_ns", device)]
        return {
            phase: _times_by_call(*([getattr(lap, name) for lap in laps] for laps in sides))
            for phase, (name, sides) in zip((*_PHASES, *_ON_DEVICE), parts, strict=True)
        }
    forward = [[lap.forward_ns for lap in laps] for laps in (rounds.old, rounds.new)]
    backward = [[lap.backward_ns for lap in laps] for laps in (rounds.old_detail, rounds.new_detail)]
    totals = [
        [[lap.forward_total_ns for lap in laps] for laps in (rounds.old, rounds.new)],
        [[lap.backward_total_ns for lap in laps] for laps in (rounds.old, rounds.new)],
    ]
    times = {}
    for phase, laps, total in zip(_PHASES, (forward, backward), totals, strict=True):
        old, new = map(quiet_rows, laps)
        if rounds.is_disturbed:  # calls are short and have quiet moments, whole passes have none
            times[phase] = old, new, spread_of_quiet(*laps)
        else:
            times[phase] = _scale_to_total(old, total[0]), _scale_to_total(new, total[1]), _spread(*total)
    return times


def _times_by_call(old: list[Floats], new: list[Floats]) -> tuple[Floats, Floats, float]:
    sums = [[float(times.sum()) for times in laps] for laps in (old, new)]
    return quiet_rows(old), quiet_rows(new), _spread(*sums)


def _spread(old: list[float], new: list[float]) -> float:
    if min(old, default=0.0) <= 0:
        return 0.0
    return spread_ratio(np.array(new) / np.array(old))


def _pool_small_calls(measurements: dict[tuple[int, str], Measurement]) -> dict[tuple[int, str], Measurement]:
    """Give the calls that are too small to matter, and to be timed well, the ratio of all of them together."""
    result = dict(measurements)
    for phase in dict.fromkeys(phase for _, phase in measurements):
        rows = {key: measurement for key, measurement in measurements.items() if key[1] == phase}
        total_ns = sum(row.old_ns for row in rows.values())
        small = {key: row for key, row in rows.items() if row.old_ns < _SMALL_SHARE * total_ns}
        old_ns, new_ns = (sum(getattr(item, name) for item in small.values()) for name in ("old_ns", "new_ns"))
        result |= {key: replace(item, old_ns=old_ns, new_ns=new_ns) for key, item in small.items()}
    return result


def _scale_to_total(parts: Floats, totals: list[float]) -> Floats:
    return parts * (quiet(totals) / parts.sum()) if parts.sum() > 0 else parts


def _key(program: Program, new: Form, old: Form, clock: StreamClock | HostClock | None, index: int, phase: str) -> _Key:
    # the same operator costs otherwise in other company (its inputs' types in the new form),
    # so the program is part of the key
    call = program.calls[index]
    ours = f", windtunnel {_release()}" if new.replaced or old.replaced else ""
    change = f"{old.label} -> {new.label} (method {_METHOD}{ours})"
    signature = f"{call.shapes} {call.types} {program.fingerprint}.{_digest(call.schema + call.signature)}"
    where = machine() if clock is None else f"{machine()} {clock.device_name}"
    return call.operator, signature, phase, change, program.threads, where, libraries()


@cache
def _release() -> str:
    """Layers of ours change from one to the next."""
    return package_versions().get("windtunnel", "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def look_up_ratios(
    program: Program,
    new: Form,
    old: Form = BASELINE,
    *,
    database: ProfileDatabase | None,
    device_clock: StreamClock | HostClock | None = None,
) -> Ratios | None:
    """What the profile database knows about this change, or None unless it knows all of it."""
    if database is None:
        return None
    clock = device_clock or stream_clock(program.device)
    groups = _groups(program, new, old)
    requested: dict[tuple[int, str], _Key] = {}
    for index, group in enumerate(groups.tolist()):
        for phase in _PHASES if clock is None else (*_PHASES, *_ON_DEVICE):
            if group >= 0:
                requested.setdefault((group, phase), _key(program, new, old, clock, index, phase))
    known = database.find_all(requested.values())
    is_usable = [key in known and known[key].is_trusted for key in requested.values()]
    if not all(is_usable) or not requested:
        return None
    return _ratios(program, groups, {item: known[key] for item, key in requested.items()})


def _total(measurements: dict[tuple[int, str], Measurement], phase: str) -> float:
    rows = [measurement for (_, named), measurement in measurements.items() if named == phase]
    old_ns = sum(row.old_ns for row in rows)
    return sum(row.new_ns for row in rows) / old_ns if old_ns > 0 else 1.0


def _ratios(
    program: Program,
    groups: NDArray[np.int64],
    measurements: dict[tuple[int, str], Measurement],
) -> Ratios:
    phases = dict.fromkeys((*_PHASES, *(phase for _, phase in measurements)))
    columns = {phase: np.ones(len(program.calls)) for phase in (*phases, "bytes")}
    pooled = _pool_small_calls(measurements)
    for index, group in enumerate(groups.tolist()):
        if group >= 0:
            for phase in phases:
                columns[phase][index] = pooled[group, phase].ratio
            columns["bytes"][index] = measurements[group, "forward"].bytes_ratio
    rows = list(measurements.values())
    about: dict[str, Any] = {
        "spread_ratio": max((row.spread_ratio for row in rows), default=0.0),
        "rounds": max((row.rounds for row in rows), default=0),
        "failures": frozenset(_list_failures(program, groups, measurements)),
    }
    sides = [
        Ratios(
            columns[forward],
            columns[backward],
            columns["bytes"],
            forward_total=_total(measurements, forward),
            backward_total=_total(measurements, backward),
            **about,
        )
        for forward, backward in ((_PHASES, _ON_DEVICE) if _ON_DEVICE[0] in phases else (_PHASES,))
    ]
    return replace(sides[0], device=sides[1]) if len(sides) > 1 else sides[0]


def _list_failures(
    program: Program, groups: NDArray[np.int64], measurements: dict[tuple[int, str], Measurement]
) -> Iterator[int]:
    """Calls that neither form could run: they took no time at all."""
    for index, group in enumerate(groups.tolist()):
        if group >= 0 and program.calls[index].phase not in NOT_FLOWN:
            forward = measurements[group, "forward"]
            if forward.old_ns == forward.new_ns == 0.0:
                yield index
