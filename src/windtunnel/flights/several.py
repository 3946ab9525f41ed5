"""Fly several what-ifs of one program; what one of them comes to does not touch the others (room flights).

In: a program and requests. Out: an ``Outcome`` for each, as soon as it is there. Not here: one flight (``_flying``),
what is printed (room cli).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.errors import NotApplicableError, WindtunnelError
from windtunnel.flights._flying import CAPTURE_ITERATIONS, require_flights, verify
from windtunnel.flights.receipt import Receipt
from windtunnel.graph import Graph
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
        """One or two words: flown, does not apply, failed."""
        if self.error is None:
            return "flown"
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
    target: Any, requests: str | Sequence[str | Request], *, graph: Graph | None = None, **options: Any
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
    for request in parse_requests(requests):
        try:
            require_flights(request)
        except WindtunnelError as error:
            yield Outcome(request, error=error)
            continue
        if graph is None:
            graph = subject.capture(CAPTURE_ITERATIONS, options.get("progress"))
        try:
            yield Outcome(request, verify(subject, request, graph=graph, **options))
        except Exception as error:  # whatever it is, the other flights have nothing to do with it
            yield Outcome(request, error=error)
