"""Stalls that are planted, found by differential runs on two cores; a network that nobody ran, foretold and then run.

1. Four jobs over links of 25, 12.5 and 6.25 MB/s, each link's rate measured: stalls over the fastest and the slowest
fit a line to what a replay of one captured rank says; the one between is foretold and run. 2. The time alone and all
differences, over a run that has every cause. 3. Trials with one planted cause each: a reader limited to 20 MB/s, a link
of 50 Mbit/s, a delay of 2 ms; which cause takes longest? And trials with none: is one of these named? ``--trials N``.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks import bar

TARGET = (
    "links within 5 %; stall over a link between two measured ones within 10 %; sum of stalls and compute within 5 % "
    "of the run with all; planted causes named in 20 of 20 trials each, none in 20 clean ones"
)
RATES = (25e6, 12.5e6, 6.25e6)
JOBS = ("resnet20", "resnet14_wide", "vgg4", "perceptron8")
PLANTED_RATE, FAST_RATE, PLANTED_DISK, DELAY_NS = 6.25e6, 250e6, 20e6, 2_000_000
_SCRIPT = Path(__file__).with_name("stash_jobs.py")


def stalls_of(job: str, turns: int, batches: int, **around):
    from windtunnel.systems.stalls.run import Surroundings, measure_stalls

    return measure_stalls(f"{_SCRIPT}:{job}", Surroundings(**around), num_batches=batches, num_turns=turns)


def network_ns(found) -> float:
    return next(one.per_iteration_ns.value for one in found.stalls if one.cause == "network")


def foretold(job: str) -> dict:
    """Error of the stall over the link between, by a line through the other two over what the replay says."""
    from windtunnel.systems.stalls.layers import network_forecast

    replayed = [network_forecast(f"{_SCRIPT}:{job}", 2, rate, remedies=()).stall_ns for rate in RATES]
    found = [stalls_of(job, 7, 6, bandwidth_bytes_per_s=rate, reads=False) for rate in RATES]
    measured = [network_ns(one) for one in found]
    slope = (measured[2] - measured[0]) / (replayed[2] - replayed[0])
    expected = measured[0] + slope * (replayed[1] - replayed[0])
    off = [one.environment["link"]["measured_bytes_per_s"] / rate - 1 for one, rate in zip(found, RATES, strict=True)]
    return {
        "job": job, "error": expected / measured[1] - 1, "measured_ms": [one / 1e6 for one in measured],
        "replayed_ms": [one / 1e6 for one in replayed], "links_off": off,
    }  # fmt: skip


def trials(count: int) -> dict[str, list[str]]:
    """What takes longest, by what was planted."""
    causes = ("network", "fetch", "prep")

    def named(found) -> str:
        detected = {one.cause: one.per_iteration_ns.value for one in found.stalls if one.is_detected}
        shown = {cause: detected[cause] for cause in causes if cause in detected}
        return max(shown, key=shown.get) if shown else "none"

    said: dict[str, list[str]] = {name: [] for name in ("disk", "link", "delay", "clean")}
    for _ in range(count):
        said["disk"].append(named(stalls_of("pictures", 5, 3, disk_bytes_per_s=PLANTED_DISK)))
        slow = {"bandwidth_bytes_per_s": PLANTED_RATE, "reads": False}
        said["link"].append(named(stalls_of("resnet20", 5, 3, **slow)))
        late = {"bandwidth_bytes_per_s": FAST_RATE, "latency_ns": DELAY_NS, "reads": False}
        said["delay"].append(named(stalls_of("perceptron8", 5, 6, **late)))
        said["clean"].append(named(stalls_of("resnet20", 5, 6)))
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    given = parser.parse_args()
    rows = [foretold(job) for job in JOBS]
    sums = [
        stalls_of("resnet20", 7, 6, bandwidth_bytes_per_s=PLANTED_RATE, disk_bytes_per_s=PLANTED_DISK),
        stalls_of("pictures", 7, 3, bandwidth_bytes_per_s=PLANTED_RATE, disk_bytes_per_s=PLANTED_DISK),
    ]
    over = [one.sum_over_everything() for one in sums]
    said = trials(given.trials)
    right = {name: sum(one == wanted for one in said[name]) for name, wanted in
             {"disk": "fetch", "link": "network", "delay": "network", "clean": "none"}.items()}  # fmt: skip
    error = statistics.median(abs(row["error"]) for row in rows)
    checks = {
        "links": all(abs(off) <= 0.05 for row in rows for off in row["links_off"]),
        "foretold": error <= 0.10,
        "sum": all(abs(one - 1) <= 0.05 for one in over),
        "named": all(count == given.trials for count in right.values()),
    }
    bar.report(
        "stash_flown", error, TARGET, all(checks.values()), checks=checks, rows=rows, sum_over_everything=over,
        named=right, trials=given.trials, said=said,
    )  # fmt: skip


if __name__ == "__main__":
    main()
