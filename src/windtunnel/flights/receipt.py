"""What one flight measured, and what was predicted of it.

In: a prediction and a measurement. Out: a ``Receipt`` that prints as one line, is a table and JSON. Not here: running
(``measure.turns``), keeping (``ledger``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from windtunnel.base.reading import format_value
from windtunnel.errors import InputError
from windtunnel.graph import Graph, Kind
from windtunnel.measure.fingerprint import now, package_versions
from windtunnel.measure.stats import Estimate
from windtunnel.units import format_duration

__all__ = ["Receipt", "conditions_of", "encode", "model_fingerprint", "subject_of", "table_of"]

SCHEMA = "windtunnel.receipt/1"
_LEAST, _MOST = 1e-30, 1e30
_MADE_BY = "windtunnel verify writes receipts"


def encode(value: Any) -> str:
    """JSON that any file can hold: halves of characters, which no UTF-8 has, become question marks."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True).encode(errors="replace").decode()


def subject_of(
    whatif: str,
    parameters: Mapping[str, Any],
    model_fingerprint: str,
    hardware_fingerprint: str,
    conditions: Mapping[str, Any] | None = None,
) -> str:
    """What is flown on what and under which conditions, as text that is equal for equal things."""
    strings = (whatif, encode(dict(parameters)), model_fingerprint, hardware_fingerprint)
    return "\n".join((*strings, encode(dict(conditions))) if conditions else strings)


def conditions_of(graph: Graph) -> dict[str, Any]:
    """What a speed-up depends on that neither the program nor the hardware says: threads, processes and their link.

    A receipt that was measured behind a slow link says nothing of the same script on a fast one.
    """
    result = {"num_threads": graph.meta.hardware.get("num_threads"), "ranks": graph.meta.origin.get("ranks")}
    return {name: value for name, value in result.items() if value}


def model_fingerprint(graph: Graph) -> str:
    """Digest of what a program computes in an iteration: operators, layers and sizes.

    Two captures of one program agree: neither times count nor what the host does between operators.
    """
    works = graph.select(kind=(Kind.COMPUTE, Kind.COMM, Kind.COPY))
    columns = [graph.tasks.strings(name).to_numpy()[works] for name in ("op", "layer") if name in graph.tasks]
    sizes = [graph.tasks[name][works] for name in ("flops", "bytes_read", "param_bytes") if name in graph.tasks]
    rows = sorted(zip(*(column.astype(str).tolist() for column in (*columns, *sizes)), strict=True))
    return hashlib.sha256(repr(rows).encode(errors="replace")).hexdigest()[:16]


@dataclass(frozen=True)
class Receipt:
    """One prediction and the real run that tested it. Times are of one iteration, in ns.

    Attributes
    ----------
    whatif : str
        Name of the what-if; of a combination, names joined by ``+``.
    predicted_baseline_ns, predicted_ns : float
        Replayed iteration of the capture, as it was and with the what-if.
    baseline, changed : Estimate
        Measured iteration without and with it: medians over rounds.
    speedup : Estimate
        Measured baseline over changed iteration, paired within rounds.
    samples_ratio : float
        Samples of a changed iteration over those of the baseline's.
    neighbors_ratio : float
        Share of all cores that other programs took during the flight.
    conditions : mapping
        Threads, processes and link under which it was measured, as ``conditions_of`` gives them.
    """

    whatif: str
    predicted_baseline_ns: float
    predicted_ns: float
    baseline: Estimate
    changed: Estimate
    speedup: Estimate
    samples_ratio: float = 1.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    model_fingerprint: str = ""
    hardware_fingerprint: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    num_rounds: int = 0
    confidence: float = 0.9
    neighbors_ratio: float = 0.0
    notes: tuple[str, ...] = ()
    date: str = field(default_factory=now)
    versions: Mapping[str, str] = field(default_factory=package_versions)

    @property
    def predicted(self) -> float:
        """Predicted speed-up per sample: above 1 is faster."""
        return self.samples_ratio * self.predicted_baseline_ns / self.predicted_ns

    @property
    def measured(self) -> float:
        """Measured speed-up per sample: above 1 is faster."""
        return self.samples_ratio * self.speedup.value

    @property
    def measured_interval(self) -> tuple[float, float]:
        """Ends of the interval of the measured speed-up per sample."""
        return self.samples_ratio * self.speedup.low, self.samples_ratio * self.speedup.high

    @property
    def subject(self) -> str:
        """What was flown on what and under which conditions; flights of one subject repeat each other."""
        fingerprints = (self.model_fingerprint, self.hardware_fingerprint)
        return subject_of(self.whatif, self.parameters, *fingerprints, self.conditions)

    @property
    def measured_ns(self) -> float:
        """Measured iteration with the what-if."""
        return self.changed.value

    @property
    def error_ratio(self) -> float:
        """Predicted over measured iteration time, less 1: +0.05 predicted 5 % too long.

        Both are relative to the baseline of their own run: a ratio travels from one minute to the next, a time does
        not.
        """
        return self.measured / self.predicted - 1

    @property
    def drift_ratio(self) -> float:
        """Flown over captured baseline, less 1: how much the machine changed in between."""
        return self.baseline.value / self.predicted_baseline_ns - 1

    @property
    def absolute_error_ratio(self) -> float:
        """The same with plain times: holds the machine's drift between capture and flight too."""
        return self.predicted_ns / self.changed.value - 1

    def __str__(self) -> str:
        low, high = self.measured_interval
        times = f"{format_duration(self.baseline.value)} -> {format_duration(self.changed.value)}"
        return (
            f"{self.whatif}  predicted {self.predicted:.2f}x, measured {self.measured:.2f}x ({low:.2f}-{high:.2f}, "
            f"{self.confidence:.0%}), off by {self.error_ratio:+.1%}; {times}, {self.num_rounds} rounds"
        )

    def json(self) -> str:
        """One JSON document with raw units."""
        return encode(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the derived ones too."""
        derived = {
            "predicted_speedup": self.predicted,
            "measured_speedup": self.measured,
            "error_ratio": self.error_ratio,
            "absolute_error_ratio": self.absolute_error_ratio,
            "drift_ratio": self.drift_ratio,
        }
        return {"schema": SCHEMA, **asdict(self), **derived}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Receipt:
        """Read back what :meth:`to_dict` gave.

        Raises
        ------
        InputError
            It is no receipt, or its times cannot be.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"a receipt is a mapping, not {format_value(values)}", fix=_MADE_BY)
        try:
            known = {key: values[key] for key in cls.__dataclass_fields__ if key in values}
            receipt: Receipt = msgspec.convert(known, cls)
        except (msgspec.ValidationError, RecursionError, UnicodeError) as error:
            raise InputError(f"this is no receipt: {error}", fix=_MADE_BY) from error
        receipt._check()
        try:
            encode(receipt.to_dict())
        except ValueError as error:
            raise InputError("a number of this receipt is not finite", fix=_MADE_BY) from error
        return receipt

    def _check(self) -> None:
        """Refuse times and ratios that no flight can have shown."""
        positive = {
            "predicted_baseline_ns": self.predicted_baseline_ns,
            "predicted_ns": self.predicted_ns,
            "samples_ratio": self.samples_ratio,
            "confidence": self.confidence,
        }
        for name in ("baseline", "changed", "speedup"):
            estimate = getattr(self, name)
            positive |= {f"{name}.{end}": getattr(estimate, end) for end in ("value", "low", "high")}
        for name, value in positive.items():
            if not _LEAST < value < _MOST:
                raise InputError(f"{name} of a receipt is {value}", where=name, fix=_MADE_BY)

    def table(self) -> pa.Table:
        """One row, the columns as in :meth:`json`, estimates spread over three columns."""
        return table_of([self])


def table_of(receipts: list[Receipt]) -> pa.Table:
    """Receipts as a table, one row each."""
    return pa.Table.from_pylist([_flat(receipt) for receipt in receipts])


def _flat(receipt: Receipt) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in receipt.to_dict().items():
        if key in ("baseline", "changed", "speedup"):
            unit = "" if key == "speedup" else "_ns"
            flat |= {
                f"{key}{unit}": value["value"],
                f"{key}_low{unit}": value["low"],
                f"{key}_high{unit}": value["high"],
            }
        elif key in ("parameters", "conditions", "versions", "notes"):
            flat[key] = encode(value)
        else:
            flat[key] = value
    return flat
