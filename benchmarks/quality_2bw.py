"""What a delay of one batch costs a training, and what it gains: 2BW beside vanilla and flush on the same seeds.

A small decoder learns the characters of War and Peace: in one process (vanilla), as a pipeline that is flushed (1F1B)
and as one that is not (2BW), the same windows of text for all. A delay costs most in the first batches: this goes on
until the rate has fallen to 0, as one trains. Quality: the mean loss of the last fifth of the batches,
2BW's over vanilla's, less 1, the worst seed. Speed: the step of the flushed pipeline over that of 2BW, run in turns,
beside what the replays of both schedules predict; there are as many ranks as this host has cores for, and as few
microbatches as 2BW may have, so that flushing costs most.
``--batches N``, ``--seeds N``, ``--ranks N``.
"""

import argparse
import statistics

from tests.shared_data import find_shared

from benchmarks import bar

MOST_LOSS, MOST_RATIO_ERROR = 0.02, 0.10
TARGET = (
    f"final loss within {MOST_LOSS:.0%} of vanilla on every seed; step of flush over step of 2BW within "
    f"{MOST_RATIO_ERROR:.0%} of the predicted ratio"
)


def final(losses) -> float:
    """The mean of the last fifth."""
    return statistics.fmean(losses[-max(1, len(losses) // 5) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    options, _ = parser.parse_known_args()
    from benchmarks.peers.char_lm import TEXT

    if find_shared(TEXT) is None:
        bar.report("quality_2bw", 0.0, TARGET, False, reason=f"public data {TEXT} is not here")
        return
    from benchmarks.peers.delayed import delayed_training
    from windtunnel.search.placement.baselines import even
    from windtunnel.search.placement.search import place
    from windtunnel.systems.pipelines.generate import generate
    from windtunnel.systems.pipelines.training.model import stage_of_modules, step_ns
    from windtunnel.systems.pipelines.training.run import job_of
    from windtunnel.systems.pipelines.training.train import orders_of, train_pipeline

    ranks, batches = options.ranks, options.batches

    def table_of(schedule: str):
        return lambda number: generate(schedule, ranks, ranks, num_batches=number)

    job = job_of("char-lm", {}, ranks, ranks)
    plan = place(job.layers.problem)
    plan = plan if len(set(plan.device.tolist())) == ranks else even(job.layers.problem)
    places = stage_of_modules(job, plan)
    flush_ns, free_ns = (step_ns(job, plan, job.conditions, table_of(one)) for one in ("1f1b", "2bw"))
    rows, measured = {}, []
    for seed in range(options.seeds):
        found = {
            schedule: train_pipeline(
                orders_of("char-lm", {"seed": seed, "num_batches": batches}, places, table_of(schedule), batches)
            )
            for schedule in ("1f1b", "2bw")
        }
        losses, _ = delayed_training("char-lm", {"seed": seed, "num_batches": batches}, places, batches, ranks, "flush")
        off = {name: final(one.losses) / final(losses) - 1 for name, one in found.items()}
        measured.append(found["1f1b"].step_ns.value / found["2bw"].step_ns.value)
        rows[seed] = {"vanilla": final(losses), "flush_off": off["1f1b"], "2bw_off": off["2bw"]}
    worst = max(one["2bw_off"] for one in rows.values())
    ratio, predicted = statistics.median(measured), flush_ns / free_ns
    is_as_predicted = abs(ratio / predicted - 1) <= MOST_RATIO_ERROR
    bar.report(
        "quality_2bw", worst, TARGET, worst <= MOST_LOSS and is_as_predicted, seeds=rows,
        flush_over_2bw=ratio, each=measured, predicted=predicted, batches=batches, ranks=ranks,
    )  # fmt: skip


if __name__ == "__main__":
    main()
