"""DLion beside those that it was compared with, on micro-clouds of unequal workers and links, in virtual time.

Six workers whose speeds are as 24:24:12:12:4:4 cores, cards as 50:50:35:35:20:20 Mbit/s (scaled to the model), CIFAR-10
(a subset; drawn images where it is absent) at half its width, a small convolutional network. Settings: unequal speeds,
unequal links, both, and both changing over time. All train until an accuracy on held-out images; then DLion with each
technique off. Beside it: how equal step times are after three adjustments; bytes of messages over the budget of links
that carry some but not all of a gradient (95 of 100 within 5 %, none above); and, after speeds change, when all steps
are as long again. ``--accuracy A``, ``--seconds N`` at most, ``--processes N`` at once.
"""

import argparse
import math
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import bar

TARGET = (
    "step times within 1.15 of each other after 3 adjustments; bytes within 5 % of what binding links carry; combined "
    "<= 0.8 x the best of four baselines; slower without each technique; changed speeds are made good in 2 adjustments"
)
SPEEDS, RATES = (24, 24, 12, 12, 4, 4), (50, 50, 35, 35, 20, 20)
EQUAL_SPEED, EQUAL_RATE = 12, 35
STEP_MS = 600.0  # of a worker with 4 cores
RATE_UNIT = 20_000.0  # bytes per s for each Mbit/s: a model of 5 MB over 50 Mbit/s, scaled to ours
ADJUST_EVERY = 20
TURN_S = 60  # after which each takes the place of the worker two further on
JOB = "lenet:lr=0.05,momentum=0,batch=8,shrink=2"  # all batches begin with half a percent of the samples
BASELINES = {
    "all-to-all": ("all-to-all", {}),
    "ako": ("ako", {}),
    "gaia": ("gaia", {"threshold": 0.01, "reduce": "mean"}),
    "hop": ("hop", {}),
}
DLION = {"adjust_every": ADJUST_EVERY}
ABLATIONS = {
    "dlion": DLION,
    "without batches by power": {"adjust_every": 0},
    "without budgets by link": {**DLION, "least": 100.0},
    "without weights of the best": {**DLION, "transfer_every": 0},
}
SETTINGS = ("speeds", "links", "both", "changing")
MOST_SPREAD = 1.15
Case = tuple[str, str, str, tuple[tuple[str, object], ...], float, float]


def fleet_of(setting: str, folder: Path):
    """The six workers of one setting."""
    from windtunnel.systems.uneven.fleet import read_fleet

    speeds = SPEEDS if setting != "links" else (EQUAL_SPEED,) * 6
    rates = RATES if setting != "speeds" else (EQUAL_RATE,) * 6
    lines = [f'step_time = "{STEP_MS} ms"', f'overhead_time = "{STEP_MS / 10} ms"']
    for at, (speed, rate) in enumerate(zip(speeds, rates, strict=True)):
        shown: tuple[object, str] = speed / 4, f"{rate * RATE_UNIT:.0f} B/s"
        if setting == "changing":
            places = [(at + 2 * turn) % 6 for turn in range(60)]
            traces = {
                f"speed{at}.csv": ("speed", [speeds[place] / 4 for place in places]),
                f"rate{at}.csv": ("bytes_per_s", [rates[place] * RATE_UNIT for place in places]),
            }
            for name, (column, values) in traces.items():
                body = "".join(f"{TURN_S * turn},{value}\n" for turn, value in enumerate(values))
                (folder / name).write_text(f"t_s,{column}\n{body}", encoding="utf-8")
            shown = f'"speed{at}.csv"', f"rate{at}.csv"
        lines.append(f'[[workers]]\nspeed = {shown[0]}\nup = "{shown[1]}"\ndown = "{shown[1]}"\nlatency = "10 ms"')
    path = folder / "cluster.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_fleet(path)


def trained(case: Case) -> dict:
    """Seconds of virtual time to the accuracy, and what else is asked of one run."""
    import torch

    from windtunnel import registry
    from windtunnel.systems.uneven.goal import Goal
    from windtunnel.systems.uneven.jobs import train_job
    from windtunnel.systems.uneven.model import train_virtually

    setting, name, strategy, numbers, accuracy, seconds = case
    torch.set_num_threads(1)
    job = train_job(JOB)
    policy = registry.get("strategy", strategy).function(**dict(numbers))
    used: list[float] = []
    noting(used)
    with tempfile.TemporaryDirectory() as folder:
        fleet = fleet_of(setting, Path(folder))
        goal = Goal(round(seconds * 1e9), accuracy=accuracy, every_ns=10**10)
        run = train_virtually(job, fleet, name, policy, goal, seed=1)
    reached_ns = run.time_to(accuracy=accuracy)
    found = {
        "setting": setting, "name": name, "seconds": math.inf if reached_ns is None else reached_ns / 1e9,
        "accuracy": max(point.accuracy for point in run.points), "steps": np.bincount(run.steps[:, 0]).tolist(),
        "data": job.name,
    }  # fmt: skip
    if strategy == "dlion":
        budget = np.quantile(used, [0.0, 0.05, 0.5, 1.0]).tolist() if used else [1.0] * 4
        adjustments = recovered(run) if setting == "changing" else 0.0
        found |= {"spread": spread_of(run), "budget": budget, "adjustments": adjustments}
    return found


def spread_of(run) -> tuple[float, float]:
    """Longest over shortest step of the six workers: at first, and between the third adjustment and the next."""
    ratios = []
    for at in (0, 3 * ADJUST_EVERY + ADJUST_EVERY // 2):
        times = []
        for worker in range(6):
            steps = run.steps[run.steps[:, 0] == worker]
            if len(steps) <= at:
                return math.inf, math.inf
            times.append(int(steps[at, 2] - steps[at, 1]))
        ratios.append(max(times) / min(times))
    return ratios[0], ratios[1]


def noting(used: list[float]):
    """``largest_that_fits`` as it is, noting bytes over budget where a link carries some but not all."""
    from windtunnel.systems.uneven.policy import sparse_bytes
    from windtunnel.systems.uneven.strategies import dlion

    chosen = dlion.largest_that_fits

    def noted(gradient, shapes, budget_bytes, least_percent):
        indices = chosen(gradient, shapes, budget_bytes, least_percent)
        sent, everything = sparse_bytes(len(indices), len(gradient)), sparse_bytes(len(gradient), len(gradient))
        least = sparse_bytes(len(chosen(gradient, shapes, 0, least_percent)), len(gradient))
        if least < budget_bytes < everything:
            used.append(sent / budget_bytes)
        return indices

    dlion.largest_that_fits = noted


def recovered(run) -> float:
    """Adjustments from a change of speeds until steps are within 1.15 of each other again: the most over changes."""
    most = 0.0
    for turn in range(1, int(run.elapsed_ns / 1e9 / TURN_S)):
        begin_ns, end_ns = turn * TURN_S * 10**9, (turn + 1) * TURN_S * 10**9
        rows = run.steps[(run.steps[:, 1] >= begin_ns) & (run.steps[:, 2] < end_ns)]
        times = [(rows[rows[:, 0] == worker][:, 2] - rows[rows[:, 0] == worker][:, 1]) for worker in range(6)]
        num = min(map(len, times))
        spreads = [max(one[at] for one in times) / min(one[at] for one in times) for at in range(num)]
        good = [at for at, spread in enumerate(spreads) if spread <= MOST_SPREAD]
        most = max(most, (good[0] if good else math.inf) / ADJUST_EVERY)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accuracy", type=float, default=0.42)
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    ends = (given.accuracy, given.seconds)
    cases: list[Case] = [
        (setting, name, strategy, tuple(numbers.items()), *ends)
        for setting in SETTINGS
        for name, (strategy, numbers) in {**BASELINES, "dlion": ("dlion", DLION)}.items()
    ]
    cases += [("both", name, "dlion", tuple(numbers.items()), *ends) for name, numbers in list(ABLATIONS.items())[1:]]
    with multiprocessing.get_context("spawn").Pool(given.processes, maxtasksperchild=1) as pool:
        rows = list(pool.imap_unordered(trained, cases, chunksize=1))
    times = {
        setting: {row["name"]: row["seconds"] for row in rows if row["setting"] == setting} for setting in SETTINGS
    }
    own = {row["setting"]: row for row in rows if row["name"] == "dlion"}
    ratios = {setting: one["dlion"] / min(one[name] for name in BASELINES) for setting, one in times.items()}
    checks = {
        "step times": own["both"]["spread"][0] >= 3 and own["both"]["spread"][1] <= MOST_SPREAD,
        "budget": own["both"]["budget"][1] >= 0.95 and own["both"]["budget"][-1] <= 1.05,
        "combined": ratios["both"] <= 0.8,
        "ablations": all(times["both"][name] > times["both"]["dlion"] for name in ABLATIONS if name != "dlion"),
        "recovery": own["changing"]["adjustments"] <= 2,
    }
    bar.report(
        "dlion", ratios["both"], TARGET, all(checks.values()), checks=checks, accuracy=given.accuracy, ratios=ratios,
        times_s=times, own=[[name, row["spread"], row["budget"], row["adjustments"]] for name, row in own.items()],
        data=rows[0]["data"], rows=[[row["setting"], row["name"], row["accuracy"], row["steps"]] for row in rows],
    )  # fmt: skip


if __name__ == "__main__":
    main()
