"""What a delay of one batch costs a training, and what it gains: 2BW beside vanilla and flush on the same seeds.

A small decoder learns the characters of War and Peace: in one process (vanilla), as a pipeline that is flushed (1F1B)
and as one that is not (2BW), the same windows of text for all. Quality: the mean loss of the last fifth of the batches,
2BW's over vanilla's, less 1, the worst seed. Speed: the step of the flushed pipeline over that of 2BW, run in turns,
beside what the replays of both schedules predict; there are as many ranks as this host has cores for, and as few
microbatches as 2BW may have, so that flushing costs most.
``--batches N``, ``--seeds N``, ``--ranks N``.
"""

import argparse
import statistics

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar

MOST_LOSS, MOST_RATIO_ERROR = 0.02, 0.10
TARGET = (
    f"final loss within {MOST_LOSS:.0%} of vanilla on every seed; step of flush over step of 2BW within "
    f"{MOST_RATIO_ERROR:.0%} of the predicted ratio"
)


def final(losses: list[float]) -> float:
    """The mean of the last fifth."""
    return statistics.fmean(losses[-max(1, len(losses) // 5) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    options, _ = parser.parse_known_args()
    from benchmarks.peers.char_lm import TEXT

    if find_shared(TEXT) is None:
        bar.report("quality_2bw", 0.0, TARGET, False, reason=f"public data {TEXT} is not here")
        return
    from benchmarks.peers.delayed import delayed_training
    from windtunnel.training.pipelines.job import PipelineSpec, planned_pipeline
    from windtunnel.training.pipelines.train import train_pipeline

    rows, worst, measured = {}, 0.0, []
    predicted_ns = {}
    for seed in range(options.seeds):
        found = {}
        for schedule in ("1f1b", "2bw"):
            spec = PipelineSpec("char-lm", {"seed": seed}, options.ranks, options.ranks, schedule)
            planned = planned_pipeline(spec)
            predicted_ns.setdefault(schedule, []).append(planned.predicted_ns)
            found[schedule] = train_pipeline(planned.orders(options.batches))
        losses, _ = delayed_training(
            "char-lm", {"seed": seed}, planned.stage_of, options.batches, options.ranks, "flush"
        )
        vanilla = final(losses)
        off = {name: final(one.losses) / vanilla - 1 for name, one in found.items()}
        worst = max(worst, off["2bw"])
        measured.append(found["1f1b"].step_ns.value / found["2bw"].step_ns.value)
        rows[seed] = {"vanilla": vanilla, **{f"{name}_off": one for name, one in off.items()}}
    ratio = statistics.median(measured)
    known = all(one is not None for each in predicted_ns.values() for one in each)
    predicted = float(np.median(predicted_ns["1f1b"]) / np.median(predicted_ns["2bw"])) if known else float("nan")
    error = abs(ratio / predicted - 1)
    bar.report(
        "quality_2bw", worst, TARGET, bool(worst <= MOST_LOSS and error <= MOST_RATIO_ERROR), seeds=rows,
        flush_over_2bw=ratio, each=measured, predicted=predicted if known else None,
        batches=options.batches, ranks=options.ranks,
    )  # fmt: skip


if __name__ == "__main__":
    main()
