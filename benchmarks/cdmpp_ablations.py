"""What each part of CDMPP's recipe is worth on held-out networks (R3): labels, losses, places, heads, our own parts.

One device and one split for all; each variant differs from ``paper-small`` in one thing and trains equally long, with
two seeds. What the paper shows: Box-Cox far below raw labels, the hybrid loss below each of its parts, places help.
Every claim is shown or refuted by the median over seeds; none is tuned for. ``--budget SECONDS`` of one training,
``--device NAME``, ``--verbose`` for the table.
"""

import argparse
import statistics
import sys
from dataclasses import replace
from typing import get_args

from benchmarks.bar import is_verbose, report, table
from benchmarks.program_data import MISSING, shipped_set

SEEDS = (0, 1)
LOSSES = ("mse", "mape", "mspe", "mae")
RAW = ("none", "std", "min-max")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=25.0)
    parser.add_argument("--device", default="avx512-1")
    return parser.parse_known_args()[0]


def variants():
    """Recipes by name; the first is what all others are compared with."""
    from windtunnel.systems.tensor_programs.model.predictor import RECIPES
    from windtunnel.systems.tensor_programs.model.transforms import LabelKind

    base = RECIPES["paper-small"]
    found = {"paper-small": base}
    found |= {f"labels {kind}": replace(base, labels=kind) for kind in get_args(LabelKind) if kind != base.labels}
    found |= {f"loss {kind}": replace(base, loss=kind) for kind in LOSSES}
    found["without places"] = replace(base, network=replace(base.network, has_positions=False))
    found["heads per leaf"] = replace(base, network=replace(base.network, heads="per-leaf"))
    found["efficiency, not seconds"] = replace(base, target="efficiency", labels="log")
    found["without context"] = replace(base, context="none")
    return found


def main() -> int:
    from windtunnel.cost.metrics import mape
    from windtunnel.systems.tensor_programs.model.predictor import train
    from windtunnel.systems.tensor_programs.model.samples import labels_of
    from windtunnel.systems.tensor_programs.model.splits import split_by_network

    asked = options()
    claim = "all variants trained; each published claim shown or refuted with its numbers"
    programs = shipped_set()
    if programs is None:
        report("cdmpp_ablations", float("nan"), claim, holds=False, reason=MISSING)
        return 1
    split = split_by_network(programs, asked.device)
    truth = labels_of(programs, split.test)
    error: dict[str, float] = {}
    for name, recipe in variants().items():
        found = []
        for seed in SEEDS:
            training = replace(recipe.training, budget_s=asked.budget, seed=seed)
            predictor, _ = train(programs, split, replace(recipe, training=training))
            found.append(mape(predictor.predict(programs, split.test), truth))
        error[name] = statistics.median(found)
        print(f"{name}: {error[name]:.3f} ({', '.join(f'{one:.3f}' for one in found)})", file=sys.stderr, flush=True)
    base = error["paper-small"]
    verdicts = {
        "Box-Cox below half of raw labels": base < 0.5 * min(error[f"labels {kind}"] for kind in RAW),
        "hybrid loss below MSE, MAPE and MSPE": base < min(error[f"loss {kind}"] for kind in LOSSES[:3]),
        "places help": base < error["without places"],
        "one masked head agrees with one per number of leaves within a tenth": (
            abs(base / error["heads per leaf"] - 1) < 0.1
        ),
        "efficiency against the bound below seconds": error["efficiency, not seconds"] < base,
    }
    if is_verbose():
        print(table([{"variant": name, "mape": value, "over_base": value / base} for name, value in error.items()]))
    report(
        "cdmpp_ablations",
        base,
        claim,
        len(error) == len(variants()),
        mape=error,
        shown=[name for name, verdict in verdicts.items() if verdict],
        refuted=[name for name, verdict in verdicts.items() if not verdict],
        budget_s=asked.budget,
        seeds=len(SEEDS),
        split=split.kind,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
