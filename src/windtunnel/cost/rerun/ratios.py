"""Ratios of new to old durations, and the measurements that they are kept as.

In: laps of a program in two forms, or measurements of the profile database. Out: ``Ratios``. Equal calls, and calls
that run as one, are one measurement; calls too small to be timed well share a ratio. Not here: running anything
(``partial``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.rerun.form import BASELINE, Form
from windtunnel.cost.rerun.program import NOT_FLOWN, Program
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.devices import HostClock, StreamClock, stream_clock
from windtunnel.measure.disturbance import MAX_WAITED_RATIO
from windtunnel.measure.fingerprint import libraries, machine, package_versions
from windtunnel.measure.turns import quiet, quiet_rows, spread_of_quiet, spread_ratio

if TYPE_CHECKING:
    from windtunnel.cost.rerun.interpreter import Lap

__all__ = [
    "MIN_ROUNDS",
    "Ratios",
    "Rounds",
    "group_calls",
    "key_of",
    "look_up_ratios",
    "ratios_of",
    "summarize",
]

Floats = NDArray[np.float64]
_Key = tuple[str, str, str, str, int, str, str]
MIN_ROUNDS = 3
_PHASES = ("forward", "backward")
_ON_DEVICE = ("device forward", "device backward")  # of programs on a GPU, whose host times are the other two
_METHOD = 4  # raised whenever a form is run or timed in another way: older measurements are then not used
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
    old_forward_ns, old_backward_ns : float
        What a whole pass took in the old form when it was run again; 0 if that is not known.
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
    old_forward_ns: float = 0.0
    old_backward_ns: float = 0.0
    spread_ratio: float = 0.0
    rounds: int = 0
    waited_ratio: float = 0.0
    failures: frozenset[int] = frozenset()
    device: Ratios | None = None

    def correct_forward_total(self, captured_forward_ns: float, captured_backward_ns: float) -> float:
        """Ratio of a captured forward pass, whose operators lack what it takes to call them again from outside.

        Autograd calls operators itself, so the backward pass tells how fast the machine was during the capture and when
        they ran again. A forward pass that took longer than that to run again was held up between its operators, in
        both forms alike. What remains is never taken for a slower machine during the capture.

        Examples
        --------
        >>> ones = np.ones(1)
        >>> ratios = Ratios(ones, ones, ones, forward_total=1.5, old_forward_ns=800.0, old_backward_ns=400.0)
        >>> ratios.correct_forward_total(400.0, 400.0)  # 400 ns more
        2.0
        >>> ratios.correct_forward_total(400.0, 200.0)  # all ran at half the pace
        1.5
        """
        total = self.forward_total
        if not (total > 0 and min(self.old_forward_ns, self.old_backward_ns) > 0):
            return total
        pace, backward_pace = captured_forward_ns / self.old_forward_ns, captured_backward_ns / self.old_backward_ns
        if not min(pace, backward_pace) > 0:
            return total
        dilution = max(1.0, min(backward_pace, max(pace, 1.0)) / pace)
        # the same difference over less time; a power where less is left, which stays above zero
        return 1.0 + dilution * (total - 1.0) if total > 1.0 else total**dilution


@dataclass
class Rounds:
    """Laps of both forms, round by round, and what the rehearsal found.

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
        return sum(share <= MAX_WAITED_RATIO for share in self.waited) < MIN_ROUNDS

    def quiet_rounds(self) -> Rounds:
        """The rounds that were left alone; all where these are too few."""
        if self.is_disturbed:
            return self
        left = [index for index, share in enumerate(self.waited) if share <= MAX_WAITED_RATIO]
        return Rounds(
            is_on_device=self.is_on_device,
            old=[self.old[index] for index in left],
            new=[self.new[index] for index in left],
            old_detail=[self.old_detail[index] for index in left],
            new_detail=[self.new_detail[index] for index in left],
            bytes_ratio=self.bytes_ratio,
            waited=[self.waited[index] for index in left],
        )


def group_calls(program: Program, *forms: Form) -> NDArray[np.int64]:
    """Calls with one ratio share a group: equal calls, and calls that run as one; int [C], -1 for marks."""
    numbers: dict[Any, int] = {}
    runs = [pair for form in forms for pair in (*form.ranges_to_recompute(program.recomputed), *form.compiled)]
    chunked = [(first, last) for form in forms for first, last, _ in form.chunked]
    ranges = [*program.compiled, *runs, *chunked]
    groups = []
    for index, call in enumerate(program.calls):
        key: Any = next(((first, last) for first, last in ranges if first <= index < last), None)
        key = key or (call.schema, call.signature)
        groups.append(-1 if call.mark else numbers.setdefault(key, len(numbers)))
    return np.array(groups, dtype=np.int64)


def summarize(
    rounds: Rounds, groups: NDArray[np.int64], key_of: Callable[[int, str], _Key]
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


def _phase_times(rounds: Rounds) -> dict[str, tuple[Floats, Floats, float]]:
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


def key_of(
    program: Program, new: Form, old: Form, clock: StreamClock | HostClock | None, index: int, phase: str
) -> _Key:
    """Under which key the database keeps a call's measurement."""
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
    groups = group_calls(program, new, old)
    requested: dict[tuple[int, str], _Key] = {}
    for index, group in enumerate(groups.tolist()):
        for phase in _PHASES if clock is None else (*_PHASES, *_ON_DEVICE):
            if group >= 0:
                requested.setdefault((group, phase), key_of(program, new, old, clock, index, phase))
    known = database.find_all(requested.values())
    is_usable = [key in known and known[key].is_trusted for key in requested.values()]
    if not all(is_usable) or not requested:
        return None
    return ratios_of(program, groups, {item: known[key] for item, key in requested.items()})


def _total(measurements: dict[tuple[int, str], Measurement], phase: str) -> float:
    old_ns = _old_ns(measurements, phase)
    return sum(row.new_ns for (_, named), row in measurements.items() if named == phase) / old_ns if old_ns > 0 else 1.0


def _old_ns(measurements: dict[tuple[int, str], Measurement], phase: str) -> float:
    return sum(row.old_ns for (_, named), row in measurements.items() if named == phase)


def ratios_of(
    program: Program,
    groups: NDArray[np.int64],
    measurements: dict[tuple[int, str], Measurement],
) -> Ratios:
    """Ratios of all calls, from a measurement for each group and phase."""
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
            old_forward_ns=_old_ns(measurements, forward),
            old_backward_ns=_old_ns(measurements, backward),
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
