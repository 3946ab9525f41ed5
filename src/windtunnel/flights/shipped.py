"""Errors of predictions that were flown before the package was given away.

In: ``shipped.json``, the flights of four bars on the jobs that they name. Out: residuals, as a ledger gives them: a
prediction has an interval before its user has flown anything. ``python -m benchmarks.tables`` writes the file from
``docs/receipts/bars.json``. Not here: what users flew (``ledger``).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

from windtunnel.flights.ledger import Residual, family_of

__all__ = ["read_shipped_residuals", "residuals_of"]


@functools.cache
def read_shipped_residuals() -> tuple[Residual, ...]:
    """Those of all bars in the file."""
    text = (resources.files("windtunnel.flights") / "shipped.json").read_text(encoding="utf-8")
    return tuple(result for load in json.loads(text)["bars"].values() for result in residuals_of(load["errors"]))


def residuals_of(errors: Mapping[str, Any]) -> list[Residual]:
    """Residuals by ``job/change``, each given as predicted over measured time of an iteration, less 1.

    Examples
    --------
    >>> [(one.whatif, round(one.log_residual, 3)) for one in residuals_of({"cnn/batch-size:factor=2": 0.05})]
    [('batch-size', -0.049)]
    """
    result = []
    for subject, error in errors.items():
        whatif = "+".join(step.split(":")[0] for step in subject.partition("/")[2].split("+"))
        result.append(Residual(whatif, family_of(whatif), subject, -math.log1p(error)))
    return result
