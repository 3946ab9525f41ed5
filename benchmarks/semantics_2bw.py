"""Pipelines of four real processes train exactly as their recurrences say.

Each schedule trains 50 batches on four gloo processes, and the same batches in one process, written down as the
recurrence: W(t+1) = W(t) - lr * grad f(W(t-1)) for 2BW, f(W(t)) for those that are flushed, the staggered rule for
PipeDream's stashing. Compared are all losses and the last weights. Then a rank is killed (-9) in the middle, training
resumes from the last checkpoint, and the weights must be those of a run that was never stopped, bit for bit.
``--batches N``.
"""

import argparse
import dataclasses
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import bar

MOST_ERROR = 1e-6
TARGET = f"every schedule within {MOST_ERROR:g} of its recurrence; resumed after kill -9: bit-equal"
STAGES, MICROBATCHES = 4, 4
MLP = ("mlp", {"batch_size": 32, "width": 32, "depth": 3}, {str(at): min(at // 2, 3) for at in range(7)})
DECODER = (
    "decoder-lm", {"size": "tiny"}, {"words": 0, "blocks.0": 1, "blocks.1": 2, "norm": 3, "scores": 3},
)  # fmt: skip
CASES = {  # schedule, microbatches, job, rule, clipped, recomputed
    "2bw": ("2bw", MICROBATCHES, MLP, "2bw", {}),
    "2bw decoder-lm": ("2bw", MICROBATCHES, DECODER, "2bw", {}),
    "2bw recomputed": ("2bw", MICROBATCHES, DECODER, "2bw", {"recomputes": True}),
    "2bw, m = 2p": ("2bw", 2 * MICROBATCHES, MLP, "2bw", {}),
    "1f1b": ("1f1b", MICROBATCHES, MLP, "flush", {}),
    "gpipe": ("gpipe", MICROBATCHES, MLP, "flush", {}),
    "zb-h1": ("zb-h1", MICROBATCHES, MLP, "flush", {}),
    "pipedream": ("pipedream", 1, MLP, "stash", {}),
}


def orders(schedule: str, microbatches: int, job: tuple, num_batches: int, **more: object):
    from windtunnel.systems.pipelines.generate import generate
    from windtunnel.systems.pipelines.training.train import orders_of

    workload, parameters, places = job
    return orders_of(
        workload, parameters, places,
        lambda length: generate(schedule, STAGES, microbatches, num_batches=length), num_batches,
        returns_weights=True, **more,
    )  # fmt: skip


def weights_of(trained) -> dict:
    return {name: one for report in trained.reports for part in report.weights.values() for name, one in part.items()}


def errors_of(schedule: str, microbatches: int, job: tuple, rule: str, more: dict, num_batches: int):
    """Largest relative error of a loss, and of a weight."""
    from benchmarks.peers.delayed import delayed_training, largest_error
    from windtunnel.systems.pipelines.training.train import train_pipeline

    trained = train_pipeline(orders(schedule, microbatches, job, num_batches, **more))
    losses, weights = delayed_training(*job, num_batches, microbatches, rule)
    worst = max(abs(one - two) / abs(two) for one, two in zip(trained.losses, losses, strict=True))
    return worst, largest_error(weights_of(trained), weights)


def resumed(num_batches: int) -> dict:
    """Kill rank 2 after a checkpoint, go on, compare with a run that was never stopped."""
    from benchmarks.peers.delayed import largest_error
    from windtunnel.errors import FlightError
    from windtunnel.systems.pipelines.training import train
    from windtunnel.systems.pipelines.training.train import train_pipeline

    whole = train_pipeline(orders("2bw", MICROBATCHES, MLP, num_batches))
    workers: list = []
    launcher = train.Workers

    class Watched(launcher):
        def __enter__(self):
            workers.append(self)
            return super().__enter__()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        killed_s = []

        def kill() -> None:
            while not (folder / "pipeline.json").exists():
                time.sleep(0.01)
            killed_s.append(time.monotonic())
            os.kill(workers[0]._processes[2].pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        train.Workers = Watched
        killer.start()
        message = ""
        try:
            train_pipeline(orders("2bw", MICROBATCHES, MLP, 100 * num_batches, folder=folder, every=1))
        except FlightError as error:
            message = error.message
        ended_s = time.monotonic()
        killer.join()
        train.Workers = launcher
        again = orders("2bw", MICROBATCHES, MLP, 100 * num_batches, folder=folder, resumes=True)
        left = num_batches - again.first_batch
        tables = orders("2bw", MICROBATCHES, MLP, left).tables
        later = train_pipeline(dataclasses.replace(again, segments=(left,), tables=tables, folder=folder))
    is_equal = whole.losses[later.first_batch :] == later.losses
    return {
        "resumed_after": later.first_batch,
        "told": message,
        "ended_within_s": round(ended_s - killed_s[0], 2),
        "bit_equal": is_equal and largest_error(weights_of(later), weights_of(whole)) == 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=50)
    options, _ = parser.parse_known_args()
    found = {name: errors_of(*case, options.batches) for name, case in CASES.items()}
    again = resumed(options.batches)
    worst = max(max(pair) for pair in found.values())
    holds = worst <= MOST_ERROR and again["bit_equal"] and "rank 2 was killed" in again["told"]
    weights = {name: pair[1] for name, pair in found.items()}
    losses = max(pair[0] for pair in found.values())
    bar.report("semantics_2bw", worst, TARGET, holds, weights=weights, losses=losses, **again)


if __name__ == "__main__":
    main()
