"""A captured job of several processes takes, replayed, what it takes when really run.

Four models under DistributedDataParallel, two to four processes of this host, over the loopback and over links that
the kernel shapes. Each job runs bare in processes of its own before and after its capture: the median of both is what
the replay is compared with. The coarse model (``paper``) gives each all-reduce the ring's formula at the link's nominal
rate, as Daydream does.

    python -m benchmarks.dpro_replay_error --verbose
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks import bar
from windtunnel.cost.collective import ring_all_reduce_ns
from windtunnel.errors import WindtunnelError
from windtunnel.flights.paused_processes import LaneConfig, ProcessLane
from windtunnel.graph import Graph, Kind
from windtunnel.hardware import Link, link
from windtunnel.measure.spaces import can_shape
from windtunnel.simulate import replay
from windtunnel.sources.torch.launch import Ranks
from windtunnel.sources.torch.ranks import capture_ranks

MEDIAN_TARGET, WORST_TARGET = 0.05, 0.12
MODELS = ("mlp", "vit", "decoder-lm", "convnext")
RATES = (None, 120e6, 30e6)  # bytes per second; None: the loopback
MORE_RANKS = (("mlp", 3, None), ("decoder-lm", 3, 30e6), ("vit", 4, 120e6), ("decoder-lm", 4, None))
CAPTURED, BARE = 16, 12
JOB = str(bar.ROOT / "benchmarks" / "ddp_job.py")


@dataclass(frozen=True)
class Case:
    """One job over one link."""

    model: str
    num_ranks: int
    bandwidth_bytes_per_s: float | None

    @property
    def ranks(self) -> Ranks:
        return Ranks(self.num_ranks, self.bandwidth_bytes_per_s)

    def __str__(self) -> str:
        rate = f"{self.bandwidth_bytes_per_s / 1e6:.0f} MB/s" if self.bandwidth_bytes_per_s else "loopback"
        return f"{self.model} x {self.num_ranks}, {rate}"


def cases() -> list[Case]:
    """All, or what this host can shape."""
    every = [Case(model, 2, rate) for model in MODELS for rate in RATES] + [Case(*one) for one in MORE_RANKS]
    return every if can_shape() else [case for case in every if case.bandwidth_bytes_per_s is None]


def really(case: Case, argv: tuple[str, ...] = ()) -> list[int]:
    """Iterations of the job as it is, in ns."""
    config = LaneConfig(script=JOB, argv=(case.model, *argv), ranks=case.ranks, sees_operators=False)
    with ProcessLane(config, title=str(case)) as lane:
        lane.wait_until_ready()
        lane.turn(3)
        turn = lane.turn(BARE)
        assert turn is not None
        return list(turn.durations_ns)


def coarse(graph: Graph, case: Case) -> Graph:
    """Every message as long as the ring's formula says at the nominal rate."""
    known = link("loopback")
    wire = Link("nominal", case.bandwidth_bytes_per_s or known.bandwidth_bytes_per_s, known.latency_ns)
    duration = graph.duration_ns.copy()
    for row in np.flatnonzero(graph.select(kind=Kind.COMM)).tolist():
        duration[row] = ring_all_reduce_ns(int(graph.tasks["message_bytes"][row]), case.num_ranks, wire)
    return graph.set_duration(graph.all_tasks, duration)


def row(case: Case) -> dict[str, object]:
    """Capture one job between two bare runs, and compare."""
    before = really(case)
    graph = capture_ranks(JOB, (case.model,), ranks=case.ranks, iterations=CAPTURED, warmup=3)
    after = really(case)
    measured = statistics.median(before + after)
    replayed, by_paper = replay(graph).makespan_ns, replay(coarse(graph, case)).makespan_ns
    sent = graph.select(kind=Kind.COMM)
    return {
        "job": str(case),
        "measured_ms": measured / 1e6,
        "drift": statistics.median(after) / statistics.median(before) - 1,
        "replayed_ms": replayed / 1e6,
        "error": replayed / measured - 1,
        "paper": by_paper / measured - 1,
        "held_out": graph.meta.overhead.get("held_out_error_ratio"),
        "residual": graph.meta.overhead.get("residual_ratio"),
        "messages": int(sent.sum()) // case.num_ranks,
    }


def main() -> None:
    """Print the bar, and with --verbose each row as it comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--only", default="", help="a part of the jobs' names")
    options = parser.parse_args()
    rows, failed = [], {}
    for case in [one for one in cases() if options.only in str(one)]:
        begun = time.monotonic()
        try:
            rows.append(row(case))
        except WindtunnelError as error:
            failed[str(case)] = str(error)
            continue
        if options.verbose:
            print(bar.table([{**rows[-1], "took_s": time.monotonic() - begun}]), file=sys.stderr, flush=True)
    errors = [abs(float(str(one["error"]))) for one in rows]
    by_paper = [abs(float(str(one["paper"]))) for one in rows]
    median, worst = statistics.median(errors), max(errors)
    paper_median = statistics.median(by_paper)
    bar.report(
        "dpro_replay_error",
        median,
        f"median <= {MEDIAN_TARGET:.0%}, worst <= {WORST_TARGET:.0%}, the coarse model worse, none failed",
        median <= MEDIAN_TARGET and worst <= WORST_TARGET and paper_median > median and not failed,
        worst=worst,
        paper_median=paper_median,
        paper_worst=max(by_paper),
        num_jobs=len(rows),
        errors={str(one["job"]): one["error"] for one in rows},
        paper_errors={str(one["job"]): one["paper"] for one in rows},
        drifts={str(one["job"]): one["drift"] for one in rows},
        failed=failed,
        shaped=can_shape(),
    )


if __name__ == "__main__":
    main()
