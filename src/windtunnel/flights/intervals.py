"""How far to trust a prediction, from the flights that were made before.

In: residuals of the ledger and predicted speed-ups. Out: an interval for each. One rule serves every verb; the page
``docs/howto/intervals.md`` states it:

1. The scores are ``|log(measured / predicted)|`` of flights of the same what-if, else of its family, else of these
   together with the flights that ship with the package. Flights of one job and change count once, by their median.
2. The half-width is the split-conformal quantile of the scores. It is capped at ``_MAX_OF_MEDIAN`` times their median,
   so that a few bad flights do not widen every later prediction.
3. A prediction is never narrower than its own measurements (``Answer.reach``).
4. Where this very job and change were flown under the same conditions, their measured speed-up is the answer, and the
   interval is as wide as the flights themselves and their scatter.

Source: Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005; Lei et al., JASA 2018 (split
conformal).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel.flights.ledger import Ledger, Residual, family_of, read_shipped_residuals
from windtunnel.flights.receipt import Receipt, conditions_of, model_fingerprint, subject_of
from windtunnel.graph import Strings
from windtunnel.measure.fingerprint import machine
from windtunnel.whatifs import Answer

__all__ = ["Backing", "backing_from_flights", "conformal_quantile", "interval_of", "with_intervals"]


_REPEATED = 0.05  # as a logarithm; flights of one program on two days
_PAPER = "paper"  # source of published ratios
# A 90 % quantile is 2.4 medians for normal errors, 3.3 for Laplace's and 6.3 for Cauchy's.
_MAX_OF_MEDIAN = 5.0


@dataclass(frozen=True, slots=True)
class Backing:
    """A predicted speed-up with what past flights say of it.

    ``scope`` is ``"job"``, ``"what-if"``, ``"family"``, ``"shipped"`` or ``""``; with ``""`` no receipt backs the
    number and the interval is NaN. ``"job"``: this very change was flown on this very job, and ``speedup`` is the
    measured one, which is the predicted one times ``correction``. ``"shipped"``: flights of the what-if or its family
    that come with the package were needed, too.
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


def _robust_quantile(scores: Sequence[float], confidence: float) -> float:
    """The conformal quantile, but at most ``_MAX_OF_MEDIAN`` medians: one bad flight in ten is the largest of ten."""
    quantile = conformal_quantile(scores, confidence)
    return min(quantile, _MAX_OF_MEDIAN * float(np.median(scores))) if math.isfinite(quantile) else math.inf


def interval_of(
    whatif: str,
    speedup: float,
    ledger: Ledger | Sequence[Residual],
    *,
    confidence: float = 0.9,
    subject: str = "",
    shipped: Sequence[Residual] = (),
) -> Backing:
    """Back a predicted speed-up by the receipts of its what-if, else of its family.

    Flights of one subject (same what-if, parameters, model, hardware and conditions) count once, by their median.
    ``subject`` names one to be left out. Where the what-if and its family have too few, ``shipped`` ones are added.
    Flights of other families say nothing: a copy of tensors errs in other ways than another arithmetic.
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
    ]
    for scope, evidence in scopes:
        scores = [abs(residual) for residual in _one_per_subject(evidence)]
        quantile = _robust_quantile(scores, confidence)
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
        One that has an interval already is backed anew from its graph: nothing is corrected twice.
    ledger : Ledger or path, optional
        ``~/.windtunnel/receipts.db`` by default; one that is not there backs nothing.
    confidence : float
        Share of truths that the intervals shall hold.
    """
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    residuals, predicted = book.residuals(), [answer.without_interval() for answer in answers]
    names, host = {answer.name for answer in predicted}, machine()
    receipts = [
        receipt for receipt in book.receipts() if receipt.whatif in names and receipt.hardware_fingerprint == host
    ]
    model = model_fingerprint(predicted[0].baseline.graph) if receipts else ""
    backed = (_add_backing(answer, model, residuals, receipts, confidence) for answer in predicted)
    return sorted(backed, key=_rank)


def _rank(answer: Answer) -> tuple[bool, float]:
    """The fastest first, those that do not apply last: what was flown may have moved an answer."""
    return not answer.is_applicable, -answer.speedup if answer.is_applicable else 0.0


def _add_backing(
    answer: Answer, model: str, residuals: Sequence[Residual], receipts: Sequence[Receipt], confidence: float
) -> Answer:
    if not answer.is_applicable:
        return answer
    conditions = conditions_of(answer.baseline.graph)
    subject = subject_of(answer.name, answer.given, model, machine(), conditions)
    own = [receipt for receipt in receipts if receipt.subject == subject]
    if own:
        return answer.with_flight_interval(backing_from_flights(own, answer.speedup, residuals, confidence=confidence))
    shipped = read_shipped_residuals() if _is_like_shipped(answer) else ()
    return answer.with_flight_interval(
        interval_of(answer.name, answer.speedup, residuals, confidence=confidence, shipped=shipped)
    )


def _is_like_shipped(answer: Answer) -> bool:
    """Whether captured operators were priced on the machine: other graphs and published ratios err in other ways."""
    if answer.remake is not None or not answer.baseline.graph.meta.program:
        return False
    sources = answer.graph.tasks.get("cost_source")
    return not (isinstance(sources, Strings) and _PAPER in sources.values)


def backing_from_flights(
    own: Sequence[Receipt], speedup: float, residuals: Sequence[Residual], *, confidence: float = 0.9
) -> Backing:
    """What flights of the same change on the same job measured, which no prediction can say better.

    The answer is the median of the measured speed-ups, however this prediction was priced. The interval reaches as far
    as the widest of: the flights' own intervals, how far they lie apart, and how far repeated flights of other
    subjects lie apart (``_REPEATED`` until there are enough of these).
    """
    logs = np.log([receipt.measured for receipt in own])
    measured = float(np.exp(np.median(logs)))
    repeated = _robust_quantile([abs(value) for value in _repeats(residuals)], confidence)
    widest = max(math.log(high / low) / 2 for low, high in (receipt.measured_interval for receipt in own))
    reach = max(widest, float(np.ptp(logs)) / 2, repeated if math.isfinite(repeated) else _REPEATED)
    low, high = measured * math.exp(-reach), measured * math.exp(reach)
    return Backing(measured, low, high, confidence, len(own), "job", measured / speedup)


def _repeats(residuals: Iterable[Residual]) -> Iterable[float]:
    """How far flights of one subject lie from their median, of all that were flown more than once."""
    for values in _by_subject(residuals).values():
        if len(values) > 1:
            yield from (value - float(np.median(values)) for value in values)


def _one_per_subject(residuals: Iterable[Residual]) -> list[float]:
    return [float(np.median(values)) for values in _by_subject(residuals).values()]


def _by_subject(residuals: Iterable[Residual]) -> dict[str, list[float]]:
    by_subject: dict[str, list[float]] = {}
    for residual in residuals:
        by_subject.setdefault(residual.subject, []).append(residual.log_residual)
    return by_subject
