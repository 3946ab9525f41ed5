"""What a collective and a byte take, fitted to models whose stalls were measured, on models that were left out.

Eleven small models on two ranks: residual networks of several depths, widths, with and without norms and shortcuts,
VGGs and perceptrons. Stalls within the machine and over a link of 12.5 MB/s; each tier is fitted, each model foretold
by the others. Then signs: without norms the network sends fewer, smaller tensors and must stall less; without shortcuts
it sends the same and must not differ beyond its interval. ``--turns N``, ``--batches N``.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks import bar
from benchmarks.stash_jobs import MODELS

TARGET = (
    "median error on models left out <= 15 % over >= 8 models, in each tier; no norms: less stall; no shortcuts: "
    "within noise"
)
RATE = 12.5e6


def main() -> None:
    from windtunnel.systems.stalls.features import fit_tiers
    from windtunnel.systems.stalls.run import Surroundings, measure_stalls

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    around = Surroundings(RATE, reads=False)
    script = Path(__file__).with_name("stash_jobs.py")
    found = {
        name: measure_stalls(f"{script}:{name}", around, num_batches=given.batches, num_turns=given.turns)
        for name in MODELS
    }
    models = fit_tiers(list(found.values()))
    errors = {tier: statistics.median(model.left_out_errors) for tier, model in models.items()}
    stalls = {
        name: {stall.cause: stall.per_iteration_ns for stall in one.stalls if stall.cause in ("exchange", "network")}
        for name, one in found.items()
    }
    plain, bare, open_ = (stalls[name]["exchange"] for name in ("resnet20", "resnet20_no_norm", "resnet20_no_shortcut"))
    checks = {
        "errors": len(errors) == 2 and max(errors.values()) <= 0.15,
        "no norms": bare.value < plain.value,
        "no shortcuts": open_.low <= plain.high and plain.low <= open_.high,
    }
    bar.report(
        "stall_features", max(errors.values(), default=float("nan")), TARGET, all(checks.values()), checks=checks,
        errors=errors,
        models={tier: [model.counts, model.collective_ns, model.bandwidth_bytes_per_s, model.rest_ns,
                       list(model.left_out_errors)] for tier, model in models.items()},
        stalls_ms={name: {cause: [one.low / 1e6, one.value / 1e6, one.high / 1e6] for cause, one in both.items()}
                   for name, both in stalls.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main()
