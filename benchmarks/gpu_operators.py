"""How far the shipped model of operators is off on shapes, and on a chip, that it did not learn from.

Timings of an H100 and an H200 are split by operator and shape into five parts, each predicted by a model of the other
four. Then all timings of one chip are predicted by a model of the other one's. The shipped file is what all of these
timings train. Without the shared timings the bar cannot be measured.

    python -m benchmarks.gpu_operators --verbose
"""

import numpy as np

from benchmarks.bar import is_verbose, report, table
from benchmarks.gpu.timings import read_all, shared_folder
from benchmarks.gpu.train_operator_model import (
    LEVEL,
    errors,
    examples_of,
    formula_residuals,
    held_out,
    interval_of,
    other_chip,
)
from windtunnel.cost.operators.facts import FAMILIES
from windtunnel.cost.operators.learned_model import SHIPPED, read_shipped_model

TARGETS, CHIP_TARGET = (10.0, 30.0), 20.0
CHIPS = ("h100-sxm5-80g", "h200-sxm5-141g")


def main() -> None:
    """Print the bar, and with --verbose the table of families and types."""
    target = "held out by shape: median <= 10 %, p90 <= 30 % of each family; leaving a chip out: median <= 20 %"
    shared = shared_folder()
    if shared is None:
        report("gpu_operators", 100.0, target, holds=False, reason="the shared timings are not here")
        return
    examples = examples_of(read_all(shared))
    residuals = held_out(examples)
    families = {name: errors(residuals[examples.rows_of(name)]) for name in FAMILIES}
    by_formula = formula_residuals(examples)
    bare = {name: errors(by_formula[examples.rows_of(name)])["median"] for name in FAMILIES}
    chips = {name: errors(row[np.isfinite(row)]) for name in CHIPS for row in [other_chip(examples, name)]}
    inside = [_is_inside(residuals[examples.rows_of(name)], examples.fold[examples.rows_of(name)]) for name in FAMILIES]
    if is_verbose():
        print(table([{"family": name, "formula": bare[name], **row} for name, row in families.items()]))
        dtypes = sorted(set(examples.facts.dtype.tolist()))
        cells = {
            (name, dtype): (examples.facts.family == name) & (examples.facts.dtype == dtype)
            for name in FAMILIES
            for dtype in dtypes
        }
        rows = [
            {"family": name, "type": dtype, **errors(residuals[mask])}
            for (name, dtype), mask in cells.items()
            if mask.any()
        ]
        print(table(rows))
    report(
        "gpu_operators",
        errors(residuals)["median"],
        target,
        all(row["median"] <= TARGETS[0] and row["p90"] <= TARGETS[1] for row in families.values())
        and all(row["median"] <= CHIP_TARGET for row in chips.values()),
        p90_percent=errors(residuals)["p90"],
        num_timings=len(examples),
        num_families_within=sum(row["median"] <= TARGETS[0] and row["p90"] <= TARGETS[1] for row in families.values()),
        num_families=len(FAMILIES),
        families=families,
        formula_median_percent=bare,
        left_out_chips=chips,
        covered_percent=100 * float(np.concatenate(inside).mean()),
        file_mib=SHIPPED.stat().st_size / 2**20,
        level=read_shipped_model().level,
    )


def _is_inside(residuals: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Whether each residual lies in the interval of the residuals of the other folds."""
    inside = np.zeros(len(residuals), dtype=bool)
    for number in np.unique(fold):
        low, high = interval_of(residuals[fold != number], LEVEL)
        inside[fold == number] = (residuals[fold == number] >= low) & (residuals[fold == number] <= high)
    return inside


if __name__ == "__main__":
    main()
