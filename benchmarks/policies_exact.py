"""Every strategy of uneven training beside its own few lines, and its bytes counted by hand.

The direct forms are those of the tests (``tests/systems/uneven/direct.py``): plain modules, no state machines. Here on
two real jobs: a perceptron and a small convolutional network. Twenty rounds of each, in double precision;
weights of all workers and of the server are compared to 1e-6 (over 1 or the largest weight). Then: one worker is serial
SGD, bit for bit; bytes of exchanges that do not hang on data; four real processes over gloo beside virtual time, for 50
steps or more.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import bar

TARGET = "0 differing: direct forms to 1e-6, one worker = serial SGD bit for bit, bytes exact, real BSP to 1e-6"
MOST_OFF = 1e-6
# digits have pixels that are always dark: equal gradients, of which rounding says which are the largest
JOBS = ("mlp:data=gratings", "lenet:batch=4")
ALONE = (("bsp", {}), ("local-sgd", {"tau": 3}), ("fedavg", {"local": 5}), ("adacomm", {"tau": 4}), ("ssp", {}),
         ("asp", {}), ("gaia", {"threshold": 0.0}), ("hop", {}),
         ("all-to-all", {}), ("ako", {}))  # fmt: skip


def doubled(job, momentum: float):
    """The same job in double precision, with SGD: rounding moves nothing over a threshold or another way in a pool."""
    import torch

    rate = job.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    return replace(
        job, model=lambda: job.model().double(), inputs=job.inputs.double(), test_inputs=job.test_inputs.double(),
        optimizer=lambda ps: torch.optim.SGD(ps, lr=rate, momentum=momentum),
    )  # fmt: skip


def equalities(job_name: str) -> list[dict]:
    from tests.systems.uneven.direct import CASES, NO_MOMENTUM
    from tests.systems.uneven.small import beside_direct

    from windtunnel.systems.uneven.jobs import train_job

    rows = []
    for case, (strategy, numbers, *_) in CASES.items():
        is_plain = strategy in NO_MOMENTUM or case == "fedavg of every step"
        job = doubled(train_job(job_name), 0.0 if is_plain else 0.9)
        rounds = 20 * numbers.get("tau", numbers.get("local", 1))
        off, num_steps = beside_direct(job, case, 10 * rounds + 3)
        rows.append({"what": f"{case} on {job_name}", "steps": num_steps, "off": off, "equal": off <= MOST_OFF})
    return rows


def alone() -> list[dict]:
    """One worker; where a server serves, it has what was committed last."""
    from tests.systems.uneven.small import free_fleet, serial, small_job, trained

    from windtunnel import registry

    rows = []
    for strategy, numbers in ALONE:
        job = small_job(momentum=0.0 if strategy in ("all-to-all", "ako") else 0.9)
        serves = registry.get("strategy", strategy).function(**numbers).server is not None
        run = trained(job, free_fleet([1.0], has_server=serves), strategy, duration_s=0.505, **numbers)
        is_equal = any(
            np.array_equal(serial(job, np.arange(160), done), run.weights)
            for done in range(len(run.steps) - serves, len(run.steps) + 1)
        )
        rows.append({"what": f"{strategy} alone", "steps": len(run.steps), "equal": is_equal})
    return rows


def sizes() -> list[dict]:
    """Bytes in a window of 20 steps of four workers: what arrived by its end, from the first message on."""
    from tests.systems.uneven.small import free_fleet, small_job, trained

    from windtunnel.systems.uneven.job import FlatModel

    num, steps = 4, 20
    shapes = FlatModel(small_job(), 0).shapes
    size = sum(shapes)
    ring = 2 * (num - 1) * 4 * size  # of all workers together: each chunk 2 (P - 1) times over its own wire
    kept = sum(max(1, int(one * 0.1 + 1e-9)) for one in shapes)
    expected = {
        "bsp": ({}, ring * steps),
        "local-sgd": ({"tau": 5}, ring * steps // 5),
        "fedavg": ({"local": 10}, ring * steps // 10),
        "slowmo": ({"tau": 5}, ring * steps // 5),
        "diloco": ({"tau": 10}, ring * steps // 10),
        "overlap-local-sgd": ({"tau": 5}, ring * steps // 5),
        "all-to-all": ({}, num * (num - 1) * 4 * size * steps),
        "gaia": ({"threshold": 0.0}, num * (num - 1) * (4 * size + -(-size // 8)) * steps),
        "dgc": ({"sparsity": 0.9, "warm_up": 0}, num * (num - 1) * 8 * kept * steps),
        "ako": ({"partitions": 4}, num * (num - 1) * 4 * size * steps // 4),
        "hop": ({}, num * 2 * 4 * size * steps),
    }
    rows = []
    for strategy, (numbers, wanted) in expected.items():
        run = trained(small_job(), free_fleet([1.0] * num), strategy, duration_s=steps / 100 + 0.003, **numbers)
        found = int(run.messages[:, 4].sum())
        rows.append({"what": f"bytes of {strategy}", "found": found, "expected": wanted, "equal": found == wanted})
    fleet = free_fleet([1.0] * num, has_server=True)
    for strategy, numbers in (("bsp", {}), ("ssp", {}), ("asp", {})):
        run = trained(small_job(), fleet, strategy, duration_s=steps / 100 + 0.003, **numbers)
        found, wanted = int(run.messages[:, 4].sum()), 2 * num * 4 * size * steps
        what = f"bytes of {strategy} over a server"
        rows.append({"what": what, "found": found, "expected": wanted, "equal": found == wanted})
    return rows


def really() -> dict:
    """Four processes over gloo, each sum a ring, beside virtual time: the weights after 50 steps."""
    from tests.systems.uneven.small import fleet_of, without_server

    from windtunnel import registry
    from windtunnel.systems.uneven.goal import Goal
    from windtunnel.systems.uneven.jobs import train_job
    from windtunnel.systems.uneven.model import train_virtually
    from windtunnel.systems.uneven.run import train_really

    with tempfile.TemporaryDirectory() as folder:
        fleet = without_server(fleet_of(Path(folder), [1.0] * 4, rate="20 MB/s", latency="1 ms"))
    fleet = replace(fleet, step_ns=60_000_000)
    policy, job, end_ns = registry.get("strategy", "bsp").function(), train_job("mlp"), 8 * 10**9
    real = train_really("mlp", fleet, "bsp", {}, Goal(end_ns, every_ns=end_ns))
    num_steps = int((real.steps[:, 0] == 0).sum())
    whole = train_virtually(job, fleet, "bsp", policy, Goal(2 * end_ns, every_ns=2 * end_ns))
    ends = whole.steps[whole.steps[:, 0] == 0]
    offs = []
    for count in (num_steps - 1, num_steps):  # the last sum may have been under way
        middle_ns = int(ends[count, 1] + ends[count, 2]) // 2  # of the step behind the last one
        virtual = train_virtually(job, fleet, "bsp", policy, Goal(middle_ns, every_ns=middle_ns))
        offs.append(float(np.abs(virtual.weights - real.weights).max()))
    off = min(offs)
    is_equal = off <= MOST_OFF and num_steps >= 50
    return {"what": "real BSP of 4 processes", "steps": num_steps, "off": off, "equal": is_equal}


def main() -> None:
    import torch

    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    rows = [row for job in JOBS for row in equalities(job)]
    rows += [*alone(), *sizes(), really()]
    differing = [row for row in rows if not row["equal"]]
    worst = max(row["off"] for row in rows if "off" in row)
    bar.report("policies_exact", len(differing), TARGET, not differing, of=len(rows), worst=worst, differing=differing)


if __name__ == "__main__":
    main()
