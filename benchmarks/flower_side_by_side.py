"""Federated averaging in virtual time beside Flower's simulation: the same split, batches and first weights.

Ten clients with skewed data (Dirichlet, 0.5), a perceptron on digits, plain SGD, equal shares. Flower has two cores
and runs before and after ours, which has one core of this process. Compared are accuracies on held-out images, seconds
of the rounds alone, without the start of either program; Flower's whole time is said beside them.

    python -m benchmarks.flower_side_by_side --peer-python ENVIRONMENT/bin/python

The environment has ``flwr[simulation]`` and torch; or ``WINDTUNNEL_PEER_FLOWER`` names it.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import bar

TARGET = "accuracies within 0.5 points on the mean of 3 seeds, ours >= 3 x as fast"
NUM_WORKERS, HIDDEN, RATE, BATCH, LOCAL, ROUNDS = 10, 64, 0.05, 32, 20, 10


def job_of(seed: int):
    """The job, and each client's samples in order, [clients, rounds, steps, batch]."""
    from windtunnel.systems.uneven.job import Samples
    from windtunnel.systems.uneven.jobs import train_job
    from windtunnel.systems.uneven.partitions import Partition, split

    job = train_job(f"mlp:lr={RATE},hidden={HIDDEN},batch={BATCH}")
    partition = Partition("dirichlet", {"alpha": 0.5, "min_size": BATCH}, seed)
    parts = split(job.sample_labels(), NUM_WORKERS, partition)
    samples = [Samples(part, seed, rank) for rank, part in enumerate(parts)]
    orders = [[[one.draw(BATCH).numpy() for _ in range(LOCAL)] for _ in range(ROUNDS)] for one in samples]
    return job, partition, np.array(orders)


def ours(seed: int) -> dict:
    import torch
    from tests.systems.uneven.small import free_fleet

    from windtunnel import registry
    from windtunnel.systems.uneven.goal import Goal
    from windtunnel.systems.uneven.model import train_virtually

    torch.set_num_threads(1)
    job, partition, _ = job_of(seed)
    fleet = free_fleet([1.0] * NUM_WORKERS)
    fleet = replace(fleet, partition=partition)
    duration_ns = round((LOCAL * ROUNDS + 0.3) * fleet.step_ns)
    policy = registry.get("strategy", "fedavg").function(local=LOCAL)
    begun = time.perf_counter()
    run = train_virtually(job, fleet, "fedavg", policy, Goal(duration_ns, every_ns=duration_ns), seed=seed)
    return {"accuracy": run.points[-1].accuracy, "seconds": time.perf_counter() - begun}


def theirs(python: str, seed: int, folder: Path) -> dict:
    import torch

    job, _, orders = job_of(seed)
    torch.manual_seed(seed)
    weights = {f"w{at}": one.detach().numpy() for at, one in enumerate(job.model().parameters())}
    path = folder / f"{seed}.npz"
    np.savez(
        path, inputs=job.inputs.numpy(), targets=job.targets.numpy(), test_inputs=job.test_inputs.numpy(),
        test_targets=job.test_targets.numpy(), orders=orders, hidden=HIDDEN, **weights,
    )  # fmt: skip
    script = Path(__file__).parent / "peers" / "flower.py"
    done = subprocess.run(
        [python, "-I", "-W", "ignore", str(script), str(path), str(ROUNDS), str(RATE), "2"],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
    found: dict = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=os.environ.get("WINDTUNNEL_PEER_FLOWER"), metavar="PATH")
    python = parser.parse_args().peer_python
    if python is None:
        raise SystemExit("name a Python that has flwr[simulation] and torch: --peer-python ENVIRONMENT/bin/python")
    rows = []
    ours(0)  # what is compiled is compiled
    with tempfile.TemporaryDirectory() as name:
        for seed in range(3):
            first = theirs(python, seed, Path(name))
            rows.append({"seed": seed, "ours": ours(seed), "theirs": [first, theirs(python, seed, Path(name))]})
    off = statistics.mean(row["ours"]["accuracy"] - row["theirs"][0]["accuracy"] for row in rows)
    speedup = min(min(one["rounds_s"] for one in row["theirs"]) / row["ours"]["seconds"] for row in rows)
    bar.report("flower_side_by_side", speedup, TARGET, abs(off) <= 0.005 and speedup >= 3, accuracy_off=off, rows=rows)


if __name__ == "__main__":
    main()
