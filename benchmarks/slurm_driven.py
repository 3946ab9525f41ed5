"""A real Slurm on this host, four machines under two switches: how long does a job wait before it crosses them?

One machine of each rack is busy; a job for two machines has a network timer of 4, 8 and 12 s. Its wait, over the timer,
against one period of the scheduler (1 s) and the second to which Slurm keeps times. Then the same with a rack timer: a
job for two GPUs, one of which is free in each of two machines. ``--repeats N``. Needs slurm-wlm and munge, as root.
"""

import argparse
import tempfile
import threading
from pathlib import Path

from benchmarks import bar

TARGET = "waits before a start across switches within one scheduler period of the timer, never shorter"
PERIOD_S, RESOLUTION_S = 1.0, 1.0
TIMERS_S = (4.0, 8.0, 12.0)


def across_switches(timer_s: float) -> float:
    """Seconds beyond the timer."""
    from tests.systems.cluster.slurm.test_slurm import CLUSTER, timers

    from windtunnel.systems.cluster.jobs import Jobs
    from windtunnel.systems.cluster.slurm.drive import drive
    from windtunnel.systems.cluster.slurm.local import local_slurm, run_slurm

    jobs = Jobs.of(job_id=["a", "b", "pair"], arrival_s=[0, 0.1, 3], gpus=[2, 2, 4], work_s=[timer_s + 20] * 2 + [1])
    with tempfile.TemporaryDirectory() as folder, local_slurm(CLUSTER, Path(folder) / "slurm") as environment:

        def switch(state: str) -> None:
            for machine in (1, 3):
                more = ["Reason=bar"] if state == "DRAIN" else []
                run_slurm(["scontrol", "update", f"NodeName=m{machine}", f"State={state}", *more], environment)

        switch("DRAIN")  # so that the first two take machines of their own racks
        free = threading.Timer(2.5, switch, ["RESUME"])
        free.start()
        found = {one.job_id: one for one in drive(jobs, CLUSTER, timers(0, timer_s), environment)}
        free.join()
    return found["pair"].waited_s - timer_s


def across_machines(timer_s: float) -> float:
    """The same of a rack timer."""
    from tests.systems.cluster.slurm.test_slurm import LINK, timers

    from windtunnel.systems.cluster.jobs import Jobs
    from windtunnel.systems.cluster.layout import Cluster
    from windtunnel.systems.cluster.slurm.drive import drive
    from windtunnel.systems.cluster.slurm.local import local_slurm

    rack = Cluster(3, 2, 1, (LINK, LINK, LINK))
    jobs = Jobs.of(job_id=["a", "b", "two"], arrival_s=[0, 0.1, 2], gpus=[2] * 3, work_s=[timer_s + 20] * 2 + [1])
    with tempfile.TemporaryDirectory() as folder, local_slurm(rack, Path(folder) / "slurm") as environment:
        found = {one.job_id: one for one in drive(jobs, rack, timers(timer_s, timer_s), environment)}
    return found["two"].waited_s - timer_s


def main() -> None:
    from windtunnel.systems.cluster.slurm.local import can_run_slurm

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if not can_run_slurm():
        raise SystemExit("skipped: needs slurm-wlm and munge, as root")
    late = {
        f"{what.__name__} {timer_s:g} s": [what(timer_s) for _ in range(given.repeats)]
        for what in (across_switches, across_machines)
        for timer_s in TIMERS_S
    }
    worst = max(max(one) for one in late.values())
    holds = worst <= PERIOD_S + RESOLUTION_S and min(min(one) for one in late.values()) >= -RESOLUTION_S
    bar.report("slurm_driven", worst, TARGET, holds, late_s=late)


if __name__ == "__main__":
    main()
