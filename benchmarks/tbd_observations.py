"""The eight observations of the TBD paper, put to the test on a run of the suite.

In: results of the suite (sweeps over batch sizes, threads, ranks and links), and shares of memory where they were
tracked. Out: one ``Observation`` each: shown, refuted, or not checked, with the numbers that say so. Nothing is tuned
towards the paper. Not here: making the results.

Source: Zhu et al., TBD: Benchmarking and Analyzing Deep Neural Network Training, IISWC 2018, section 4.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.systems.suite.results import Result
from windtunnel.units import format_rate

__all__ = ["FLAT_GAIN", "Observation", "observe"]

FLAT_GAIN = 0.1
"""A doubling of the batch that gains less than this has no more to give."""
_GIGABIT_BYTES_PER_S = 125_000_000
_LOW_CPU = 0.15
_PAPER_SHARES = (0.60, 0.90)
_FASTER, _LOST = 1.05, 0.9


@dataclass(frozen=True)
class Observation:
    """What the paper saw, and what this machine shows.

    Attributes
    ----------
    is_shown : bool or None
        None where the run holds nothing to check it with.
    finding : str
        The numbers, in a sentence.
    numbers : mapping
        The same for machines.
    """

    number: int
    claim: str
    is_shown: bool | None
    finding: str
    numbers: Mapping[str, object] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``shown``, ``refuted`` or ``not checked``."""
        return "not checked" if self.is_shown is None else "shown" if self.is_shown else "refuted"


def observe(
    results: Sequence[Result],
    feature_map_shares: Mapping[str, float] | None = None,
    kernels: Mapping[str, Sequence[tuple[str, float, float]]] | None = None,
) -> list[Observation]:
    """Put all eight to the test.

    Parameters
    ----------
    results : sequence of Result
    feature_map_shares : mapping
        By workload: the share of feature maps in the peak of a training step; by default as predicted for the results.
    kernels : mapping
        By workload: long kernels that compute little: name, share of the operators' time, arithmetic utilization.
    """
    measured = [result for result in results if result.is_measured]
    sweeps = _sweeps(measured)
    return [
        _growth(sweeps),
        _busy(sweeps),
        _arithmetic(sweeps, kernels or {}),
        _cpu(measured),
        _faster_device(measured),
        _feature_maps(_shares(measured) if feature_map_shares is None else feature_map_shares),
        _pointless_memory(sweeps),
        _links(measured),
    ]


Sweeps = dict[str, list[Result]]


def _sweeps(measured: Sequence[Result]) -> Sweeps:
    """By workload: one-rank results over at least three batch sizes, ascending, at the most threads that has them."""
    by_cell: dict[tuple[str, int], dict[int, Result]] = defaultdict(dict)
    for result in measured:
        if result.cell.num_ranks == 1:
            by_cell[result.cell.workload, result.cell.num_threads][result.batch_size] = result
    found: Sweeps = {}
    for (workload, _), by_batch in sorted(by_cell.items()):
        if len(by_batch) >= 3:
            found[workload] = [by_batch[batch_size] for batch_size in sorted(by_batch)]
    return found


def _gain(sweep: Sequence[Result]) -> float:
    return sweep[-1].throughput.value / sweep[0].throughput.value


def _last_gain(sweep: Sequence[Result]) -> float:
    """What the last step of the sweep gained per doubling of the batch."""
    doublings = math.log2(sweep[-1].batch_size / sweep[-2].batch_size)
    gain: float = (sweep[-1].throughput.value / sweep[-2].throughput.value) ** (1 / doublings) - 1
    return gain


def _of(sweeps: Sweeps, family: str) -> Sweeps:
    return {name: sweep for name, sweep in sweeps.items() if sweep[-1].family == family}


def _growth(sweeps: Sweeps) -> Observation:
    claim = (
        "throughput grows with the batch for all models and saturates for convolutional ones, not for recurrent ones"
    )
    conv, recurrent = _of(sweeps, "convolutional"), _of(sweeps, "recurrent")
    if not conv or not recurrent:
        return _unchecked(1, claim, "a sweep over three batch sizes of a convolutional and a recurrent model")
    gains = {name: _gain(sweep) for name, sweep in sweeps.items()}
    last = {name: _last_gain(sweep) for name, sweep in sweeps.items()}
    grow = [name for name, gain in gains.items() if gain > 1]
    flat = [name for name in conv if last[name] < FLAT_GAIN]
    rising = [name for name in recurrent if last[name] >= FLAT_GAIN]
    is_shown = len(grow) == len(gains) and len(flat) == len(conv) and len(rising) == len(recurrent)
    finding = (
        f"{len(grow)} of {len(gains)} grow ({_each(gains, '{:.2f}x')}); the last doubling gives "
        f"{_each(last, '{:+.0%}')}: {len(flat)} of {len(conv)} convolutional ones have saturated (< {FLAT_GAIN:.0%}), "
        f"{len(rising)} of {len(recurrent)} recurrent ones have not"
    )
    return Observation(1, claim, is_shown, finding, {"gains": gains, "last_doubling": last})


def _busy(sweeps: Sweeps) -> Observation:
    claim = "recurrent models have low compute utilization even at their largest batch"
    used = {
        name: (sweep[0].compute_utilization, sweep[-1].compute_utilization, sweep[-1].family)
        for name, sweep in sweeps.items()
        if sweep[0].compute_utilization is not None and sweep[-1].compute_utilization is not None
    }
    at_most = {name: float(most or 0) for name, (_, most, _) in used.items()}
    recurrent = {name: at_most[name] for name in used if used[name][2] == "recurrent"}
    others = {name: at_most[name] for name in used if used[name][2] == "convolutional"}
    if not recurrent or not others:
        return _unchecked(2, claim, "captured graphs of a recurrent and a convolutional model")
    low, high = (statistics.median(values.values()) for values in (recurrent, others))
    grow = sum(float(most or 0) > float(least or 0) for least, most, _ in used.values())
    finding = (
        f"at the largest batch recurrent {_each(recurrent, '{:.0%}')} (median {low:.0%}), convolutional "
        f"{_each(others, '{:.0%}')} (median {high:.0%}); the batch raised it for {grow} of {len(used)}"
    )
    return Observation(2, claim, low < 0.9 * high, finding, {"compute_utilization": at_most})


def _arithmetic(sweeps: Sweeps, kernels: Mapping[str, Sequence[tuple[str, float, float]]]) -> Observation:
    claim = (
        "arithmetic utilization grows with the batch and stays low for recurrent models; convolutional ones too have "
        "long kernels that use little of the peak, batch norm among the first"
    )
    used = {
        name: [sum(result.arithmetic_utilization.values()) for result in sweep]
        for name, sweep in sweeps.items()
        if all(result.arithmetic_utilization for result in sweep)
    }
    last = {name: values[-1] for name, values in used.items()}
    recurrent, conv = ({name: last[name] for name in _of(sweeps, family) if name in last} for family in _RULED)
    if not recurrent or not conv:
        return _unchecked(3, claim, "sweeps with counted FLOP of a recurrent and a convolutional model")
    grow = [name for name, values in used.items() if values[-1] > values[0]]
    low, high = statistics.median(recurrent.values()), statistics.median(conv.values())
    finding = (
        f"it grew for {len(grow)} of {len(used)}; at the largest batch recurrent {_each(recurrent, '{:.0%}')}, "
        f"convolutional {_each(conv, '{:.0%}')}"
    )
    for name, rows in kernels.items():
        longest = ", ".join(f"{op} {share:.0%} of the time at {use:.1%} of the peak" for op, share, use in rows[:4])
        finding += f"; long kernels with little arithmetic in {name}: {longest or 'none'}"
    has_norm = not kernels or any("norm" in op for rows in kernels.values() for op, _, _ in rows)
    is_shown = len(grow) == len(used) and low < high and has_norm
    return Observation(3, claim, is_shown, finding, {"at_largest_batch": last, "kernels": dict(kernels)})


_RULED = ("recurrent", "convolutional")


def _cpu(measured: Sequence[Result]) -> Observation:
    claim = f"the host's CPU is little used (most models below {_LOW_CPU:.0%} of 28 cores, beside a GPU)"
    used = {r.cell.key: r.cpu_utilization for r in measured if r.cpu_utilization is not None and r.cell.num_ranks == 1}
    if not used:
        return _unchecked(4, claim, "results with CPU utilization")
    median = statistics.median(used.values())
    low = sum(value < _LOW_CPU for value in used.values())
    finding = f"median {median:.0%} over {len(used)} cells, {low} below {_LOW_CPU:.0%}; the CPU is the device here"
    return Observation(4, claim, low > len(used) / 2, finding, {"median": median, "cells": len(used)})


def _faster_device(measured: Sequence[Result]) -> Observation:
    claim = "a faster device gives more throughput but is used less (here: twice the threads)"
    by_work: dict[tuple[str, int], dict[int, Result]] = defaultdict(dict)
    for result in measured:
        if result.cell.num_ranks == 1 and result.arithmetic_utilization:
            by_work[result.cell.workload, result.batch_size][result.cell.num_threads] = result
    pairs = {f"{name} b{batch}": by for (name, batch), by in by_work.items() if len(by) >= 2}
    if not pairs:
        return _unchecked(5, claim, "the same work on two numbers of threads")
    faster, used = {}, {}
    for name, by_threads in pairs.items():
        few, many = by_threads[min(by_threads)], by_threads[max(by_threads)]
        faster[name] = many.throughput.value / few.throughput.value
        before, after = (sum(each.arithmetic_utilization.values()) for each in (few, many))
        used[name] = after / before
    num_faster, num_less = (
        sum(map(test, values)) for test, values in ((_gains, faster.values()), (_drops, used.values()))
    )
    finding = (
        f"throughput rose by more than 5 % for {num_faster} of {len(pairs)} ({_each(faster, '{:.2f}x')}), arithmetic "
        f"utilization fell for {num_less} ({_each(used, '{:.2f}x')})"
    )
    is_shown = num_faster > len(pairs) / 2 and num_less > len(pairs) / 2
    return Observation(5, claim, is_shown, finding, {"speedup": faster, "utilization_ratio": used})


def _gains(ratio: float) -> bool:
    return ratio > _FASTER


def _drops(ratio: float) -> bool:
    return ratio < 1


def _shares(measured: Sequence[Result]) -> dict[str, float]:
    """Of every workload at its largest batch."""
    by_batch = sorted(measured, key=lambda result: result.batch_size)
    return {
        result.cell.workload: result.predicted_memory_by_category.get("feature map", 0) / result.predicted_memory_bytes
        for result in by_batch
        if result.predicted_memory_bytes
    }


def _feature_maps(shares: Mapping[str, float]) -> Observation:
    low, high = _PAPER_SHARES
    claim = "feature maps dominate memory: 62-89 % of the footprint"
    if not shares:
        return _unchecked(6, claim, "tracked memory")
    within = [name for name, share in shares.items() if low <= share <= high]
    finding = f"{_each(shares, '{:.0%}')}; {len(within)} of {len(shares)} between {low:.0%} and {high:.0%}"
    is_shown = statistics.median(shares.values()) > 0.5
    return Observation(6, claim, is_shown, f"{finding}; shown where the median is above half", {"shares": dict(shares)})


def _pointless_memory(sweeps: Sweeps) -> Observation:
    claim = "filling the memory with the largest batch can be pointless: throughput is flat before"
    found: dict[str, tuple[float, float]] = {}
    for name, sweep in sweeps.items():
        sizes = [result.predicted_memory_bytes or result.peak_resident_bytes for result in sweep[-2:]]
        if sizes[0] and sizes[1]:
            found[name] = (_last_gain(sweep), sizes[1] / sizes[0])
    if not found:
        return _unchecked(7, claim, "a sweep over batch sizes with memory")
    pointless = [name for name, (gain, _) in found.items() if gain < FLAT_GAIN]
    texts = ", ".join(f"{name} {gain:+.0%} for {memory:.2f}x memory" for name, (gain, memory) in found.items())
    finding = f"the last doubling of the batch: {texts}; less than {FLAT_GAIN:.0%} for {len(pointless)} of {len(found)}"
    return Observation(7, claim, bool(pointless), finding, {"gain_and_memory": found})


def _links(measured: Sequence[Result]) -> Observation:
    claim = "data parallelism over machines needs fast links; gigabit Ethernet ruins it"
    by_work: dict[tuple[str, int], dict[int, Result]] = defaultdict(dict)
    for result in measured:
        if result.cell.num_ranks > 1:
            by_work[result.cell.workload, result.cell.batch_size][result.cell.link_bytes_per_s] = result
    found = {
        (name, link): result.throughput.value / by_link[0].throughput.value
        for (name, _), by_link in by_work.items()
        for link, result in sorted(by_link.items())
        if link and 0 in by_link
    }
    at_gigabit = [ratio for (_, link), ratio in found.items() if link == _GIGABIT_BYTES_PER_S]
    if not at_gigabit:
        return _unchecked(8, claim, "two ranks with a free and with an emulated link of 1 Gb/s")
    texts = {f"{name} at {format_rate(link)}": ratio for (name, link), ratio in found.items()}
    finding = f"throughput of two ranks against a free link: {_each(texts, '{:.2f}x')}; 125 MB/s are 1 Gb/s"
    return Observation(8, claim, min(at_gigabit) < _LOST, finding, {"slow_over_free": texts})


def _each(values: Mapping[str, float], form: str) -> str:
    show: Callable[[float], str] = form.format
    return ", ".join(f"{name} {show(value)}" for name, value in values.items())


def _unchecked(number: int, claim: str, needed: str) -> Observation:
    return Observation(number, claim, None, f"this run does not hold {needed}")
