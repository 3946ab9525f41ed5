"""How far to trust a prediction, from the flights that were made before (room flights).

In: residuals of the ledger and predicted speed-ups. Out: an interval for each, by split conformal prediction: if
the new prediction's error is exchangeable with the kept ones, the truth lies inside with at least the stated
confidence, whatever the errors' distribution. Where too few receipts back a number, it says so
instead. Flights of the very same job and change correct the number itself.

Source: Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005; Lei et al., JASA 2018 (split
conformal).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.flights.ledger import Ledger, Residual, family_of
from windtunnel.flights.receipt import Receipt, model_fingerprint, subject_of
from windtunnel.flights.shipped import shipped_residuals
from windtunnel.graph import Strings
from windtunnel.measure.fingerprint import machine
from windtunnel.whatifs import Answer

__all__ = ["Backing", "conformal_quantile", "corrected_by", "interval_of", "with_intervals"]


_REPEATED = 0.05  # as a logarithm; flights of one program on two days
_PAPER = "paper"  # source of published ratios


@dataclass(frozen=True, slots=True)
class Backing:
    """A predicted speed-up with what past flights say of it.

    ``scope`` is ``"job"``, ``"what-if"``, ``"family"``, ``"shipped"``, ``"all"`` or ``""``; with ``""`` no receipt
    backs the number and the interval is NaN. ``"job"``: this very change was flown on this very job, and ``speedup`` is
    the predicted one times ``correction``. ``"shipped"``: flights of the what-if or its family that come with the
    package were needed, too.
    """

    speedup: float
    low: float
    high: float
    confidence: float
    num_receipts: int
    scope: str
    correction: float = 1.0

    @property
    def is_backed(self) -> bool:
        """Whether there were receipts enough for an interval."""
        return bool(self.scope)

    def __str__(self) -> str:
        if not self.is_backed:
            return f"{self.speedup:.2f}x (no receipt backs this number)"
        whose = {
            "job": " of this job",
            "what-if": "",
            "family": " of its family",
            "shipped": " that come with windtunnel",
            "all": " of other what-ifs",
        }[self.scope]
        span = f"{self.low:.2f}-{self.high:.2f}, {self.confidence:.0%}"
        return f"{self.speedup:.2f}x ({span}, {self.num_receipts} receipts{whose})"


def conformal_quantile(scores: Sequence[float], confidence: float) -> float:
    """The ceil((n + 1) confidence)-th smallest score; infinite where n is too small for the confidence.

    Examples
    --------
    >>> conformal_quantile([1, 2, 3, 4, 5, 6, 7, 8, 9], 0.9)
    9.0
    >>> conformal_quantile([1, 2, 3], 0.9)
    inf
    """
    rank = math.ceil((len(scores) + 1) * confidence - 1e-9)
    return float(np.sort(np.asarray(scores))[rank - 1]) if rank <= len(scores) else math.inf


def interval_of(
    whatif: str,
    speedup: float,
    ledger: Ledger | Sequence[Residual],
    *,
    confidence: float = 0.9,
    subject: str = "",
    shipped: Sequence[Residual] = (),
) -> Backing:
    """Back a predicted speed-up by the receipts of its what-if, else of its family, else of all.

    Flights of one subject (same what-if, parameters, model and hardware) count once, by their median. ``subject``
    names one to be left out. Where the what-if and its family have too few, ``shipped`` ones are added to them.
    """
    residuals = ledger.residuals() if isinstance(ledger, Ledger) else ledger
    residuals = [residual for residual in residuals if residual.subject != subject]
    both = [*residuals, *shipped]

    def is_own(residual: Residual) -> bool:
        return residual.whatif == whatif

    def is_related(residual: Residual) -> bool:
        return residual.family == family_of(whatif)

    scopes = [
        ("what-if", filter(is_own, residuals)),
        ("family", filter(is_related, residuals)),
        ("shipped", filter(is_own, both)),
        ("shipped", filter(is_related, both)),
        ("all", residuals),
    ]
    for scope, belonging in scopes:
        scores = [abs(residual) for residual in _one_per_subject(belonging)]
        quantile = conformal_quantile(scores, confidence)
        if math.isfinite(quantile):
            reach = float(np.exp(quantile))
            return Backing(speedup, speedup / reach, speedup * reach, confidence, len(scores), scope)
    return Backing(speedup, math.nan, math.nan, confidence, 0, "")


def with_intervals(
    answers: Iterable[Answer], ledger: Ledger | Path | str | None = None, *, confidence: float = 0.9
) -> list[Answer]:
    """Attach to every answer that applies what past flights say of it; the answers themselves stay as they are.

    Parameters
    ----------
    answers : iterable of Answer
    ledger : Ledger or path, optional
        ``~/.windtunnel/receipts.db`` by default; one that is not there backs nothing.
    confidence : float
        Share of truths that the intervals shall hold.
    """
    kept = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    residuals, found = kept.residuals(), list(answers)
    names, host = {answer.name for answer in found}, machine()
    receipts = [one for one in kept.receipts() if one.whatif in names and one.hardware_fingerprint == host]
    model = model_fingerprint(found[0].baseline.graph) if receipts else ""
    return sorted((_backed(answer, model, residuals, receipts, confidence) for answer in found), key=_rank)


def _rank(answer: Answer) -> tuple[bool, float]:
    """The fastest first, those that do not apply last: what was flown may have moved an answer."""
    return not answer.is_applicable, -answer.speedup if answer.is_applicable else 0.0


def _backed(
    answer: Answer, model: str, residuals: Sequence[Residual], receipts: Sequence[Receipt], confidence: float
) -> Answer:
    if not answer.is_applicable:
        return answer
    subject = subject_of(answer.name, answer.given, model, machine())
    own = [receipt for receipt in receipts if receipt.subject == subject]
    if own:
        is_disturbed = answer.price_waited_ratio > 0
        backing = corrected_by(own, answer.speedup, residuals, confidence=confidence, is_disturbed=is_disturbed)
        return answer.backed_by(backing)
    shipped = shipped_residuals() if _is_like_shipped(answer) else ()
    return answer.backed_by(interval_of(answer.name, answer.speedup, residuals, confidence=confidence, shipped=shipped))


def _is_like_shipped(answer: Answer) -> bool:
    """Whether captured operators were priced on the machine: other graphs and published ratios err in other ways."""
    if answer.remake is not None or not answer.baseline.graph.meta.program:
        return False
    sources = answer.graph.tasks.get("cost_source")
    return not (isinstance(sources, Strings) and _PAPER in sources.values)


def corrected_by(
    own: Sequence[Receipt],
    speedup: float,
    residuals: Sequence[Residual],
    *,
    confidence: float = 0.9,
    is_disturbed: bool = False,
) -> Backing:
    """A predicted speed-up corrected by flights of the same change on the same job.

    The factor is the median of measured over predicted. A prediction whose prices were measured beside other programs
    says nothing that the flights do not say better: then the flights' own speed-up is the answer. The interval reaches
    as far as the widest of: the flights' own intervals, how far they lie apart, and how far repeated flights of other
    subjects lie apart (``_REPEATED`` until there are enough of these).
    """
    ratios = np.log([receipt.measured / receipt.predicted for receipt in own])
    correction = float(np.exp(np.median(ratios)))
    repeats = [abs(value) for value in _repeats(residuals)]
    repeated = conformal_quantile(repeats, confidence)
    own_reach = max(math.log(high / low) / 2 for low, high in (receipt.measured_interval for receipt in own))
    reach = max(own_reach, float(np.ptp(ratios)) / 2, repeated if math.isfinite(repeated) else _REPEATED)
    if is_disturbed:
        correction = float(np.exp(np.median(np.log([receipt.measured for receipt in own])))) / speedup
    found = speedup * correction
    return Backing(found, found * math.exp(-reach), found * math.exp(reach), confidence, len(own), "job", correction)


def _repeats(residuals: Iterable[Residual]) -> Iterable[float]:
    """How far flights of one subject lie from their median, of all that were flown more than once."""
    by_subject: dict[str, list[float]] = {}
    for residual in residuals:
        by_subject.setdefault(residual.subject, []).append(residual.log_residual)
    for values in by_subject.values():
        if len(values) > 1:
            yield from (value - float(np.median(values)) for value in values)


def _one_per_subject(residuals: Iterable[Residual]) -> list[float]:
    by_subject: dict[str, list[float]] = {}
    for residual in residuals:
        by_subject.setdefault(residual.subject, []).append(residual.log_residual)
    return [float(np.median(values)) for values in by_subject.values()]
