"""Fly several what-ifs of one program; what one of them comes to does not touch the others.

In: a program and requests. Out: an ``Outcome`` for each, as soon as it is there. Not here: one flight (``run``),
what is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights.receipt import Receipt
from windtunnel.flights.run import capture_baseline, remaining_time, require_flights, verify
from windtunnel.graph import Graph
from windtunnel.measure.deadline import OutOfTimeError
from windtunnel.measure.turns import StopRule
from windtunnel.sources.targets import target_of
from windtunnel.whatifs import Request, parse_requests

__all__ = ["Outcome", "verify_several"]


@dataclass(frozen=True)
class Outcome:
    """What one requested flight came to: a receipt, or the error that kept it from one.

    Attributes
    ----------
    request : Request
    receipt : Receipt or None
        In the ledger already.
    error : Exception or None
    """

    request: Request
    receipt: Receipt | None = None
    error: Exception | None = None

    @property
    def status(self) -> str:
        """A few words: flown, does not apply, out of time, failed."""
        if self.error is None:
            return "flown"
        if isinstance(self.error, OutOfTimeError):
            return "out of time"
        return "does not apply" if isinstance(self.error, NotApplicableError) else "failed"

    @property
    def exit_code(self) -> int:
        """0 for a receipt; an error that is not ours counts as bad input."""
        if self.error is None:
            return 0
        return self.error.exit_code if isinstance(self.error, WindtunnelError) else WindtunnelError.exit_code

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        error = self.error
        return {
            "whatif": str(self.request),
            "status": self.status,
            "message": str(getattr(error, "message", error)),
            "where": getattr(error, "where", ""),
            "fix": getattr(error, "fix", ""),
        }


def verify_several(
    target: Any,
    requests: str | Sequence[str | Request],
    *,
    graph: Graph | None = None,
    rule: StopRule | None = None,
    time_limit_s: float | None = None,
    **options: Any,
) -> Iterator[Outcome]:
    """Predict and fly each of several what-ifs, whatever becomes of the others.

    Parameters
    ----------
    target
        As of :func:`windtunnel.verify`.
    requests : str or sequence
        ``"amp,fused-optimizer"``, or one text or request each.
    graph : Graph, optional
        A capture of the baseline; captured once for all flights if not given.
    rule : StopRule, optional
        Of each flight.
    time_limit_s : float, optional
        Of everything together: the capture, the predictions and all flights, which share what is left of it. What was
        not done by then has an outcome with an ``OutOfTimeError``.
    **options
        More of what :func:`windtunnel.verify` takes.

    Yields
    ------
    Outcome
        In the order of the requests, each when its flight has ended; its receipt is in the ledger by then.

    Raises
    ------
    WindtunnelError
        The baseline itself cannot be captured.
    """
    given = {name: options.pop(name) for name in ("argv", "model", "optimizer") if name in options}
    subject = target_of(target, **given)
    if graph is None and isinstance(target, Graph):
        graph = target
    rule = options["rule"] = rule or StopRule()
    requested, left_s = parse_requests(requests), remaining_time(time_limit_s)
    late: OutOfTimeError | None = None
    for i, request in enumerate(requested):
        try:
            require_flights(request)
        except WindtunnelError as error:
            yield Outcome(request, error=error)
            continue
        if late is None and left_s() <= 0:
            late = OutOfTimeError("not flown: the time was up", where=str(subject))
        if late is None and graph is None:
            try:
                graph = capture_baseline(subject, left_s(), options.get("progress"))
            except OutOfTimeError as error:
                late = error
        if late is not None:
            yield Outcome(request, error=late)
            continue
        if time_limit_s is not None:
            options.update(time_limit_s=left_s(), rule=replace(rule, time_limit_s=left_s() / (len(requested) - i)))
        try:
            yield Outcome(request, verify(subject, request, graph=graph, **options))
        except Exception as error:  # whatever it is, the other flights have nothing to do with it
            yield Outcome(request, error=error)
