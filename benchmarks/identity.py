"""Unchanged replay of recorded traces against their measurement, per thread; and two what-ifs with known answers.

Windows of whole training steps on a GPU, of a forward pass with two streams, and whole traces. The replay never
reads the measured starts. Eight ranks of one job are joined at their collectives. Negative test: on the forward
pass the device is idle most of the time, so faster kernels must change about nothing, while an allocator that is
warm must take away nearly everything.
"""

import sys
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.graph import Graph, Kind, ResourceKind
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.timeline.explain import explain_device_tasks

FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
TOLERANCE_NS = 1_000


def main() -> int:
    """Replay and print the bar; 1 if it does not hold."""
    alexnet = find_shared("replay/critical_path/alexnet_fwd_two_streams.json.gz")
    resnet = find_shared("replay/kineto/resnet_v100_train_ns.json.gz")
    if alexnet is None or resnet is None:
        bar.report("identity", float("nan"), "<= 1 µs", False, reason="the public traces are not here")
        return 1
    forward = load_kineto(alexnet, window=FORWARD, occurrence=1)
    steps = [f"ProfilerStep#{step}" for step in range(101, 106)]
    windows = {
        "AlexNet forward": forward,
        **{f"ResNet {step}": load_kineto(resnet, window=step) for step in steps},
        **{f"whole {path.name}": load_kineto(path) for path in _all_traces(alexnet.parent.parent)},
    }
    rows = [{"what": name, **_compare(graph)} for name, graph in windows.items()]
    worst = max(row["worst_thread_ns"] for row in rows)
    halved, warm = _what_ifs(forward)
    step_error, collective_us = _ranks(
        [find_shared(f"replay/kineto_dlrm_8ranks/rank{rank}.json.gz") for rank in range(8)]
    )
    holds = worst <= TOLERANCE_NS and abs(halved) < 0.005 and warm < -0.9
    holds = holds and step_error < 0.005 and collective_us <= 60
    target = "<= 1 µs per thread; kernels halved < 0.5 %; warm allocator < -90 %; 8 ranks < 0.5 %, <= 60 µs"
    details = {"kernels_halved_change": halved, "warm_allocator_change": warm, "windows": len(rows)}
    details |= {"ranks_worst_step_ratio": step_error, "ranks_worst_collective_end_us": collective_us}
    details["unexplained"] = {row["what"]: row["unexplained_ratio"] for row in rows}
    bar.report(
        "identity", worst / 1000, target, holds, worst_task_us=max(r["worst_task_ns"] for r in rows) / 1000, **details
    )
    if bar.is_verbose():
        print(bar.table(rows))
    return 0 if holds else 1


def _all_traces(folder: Path) -> list[Path]:
    found = [*folder.glob("kineto*/*.json.gz"), *folder.glob("execution_trace/*kineto*.json.gz")]
    return sorted(path for path in found if not path.name.startswith("et_"))


def _compare(graph: Graph) -> dict[str, object]:
    timeline = replay(graph)
    measured = graph.tasks["start_ns"]
    error = np.abs(timeline.start_ns - measured)
    last_end = np.zeros((2, graph.num_resources), np.int64)  # of each thread: replayed, as measured
    for row, begin in enumerate((timeline.start_ns, measured)):
        np.maximum.at(last_end[row], graph.tasks["resource"], begin + graph.duration_ns)
    return {
        "tasks": graph.num_tasks,
        "span_ms": timeline.makespan_ns / 1e6,
        "worst_task_ns": int(error.max()),
        "worst_thread_ns": int(np.abs(last_end[0] - last_end[1]).max()),
        "unexplained_ratio": explain_device_tasks(graph).unexplained_ratio,
    }


def _ranks(paths: list[Path | None]) -> tuple[float, float]:
    """Worst relative error of a rank's step, and worst error in µs of a collective's end, with all ranks joined."""
    graph = load_kineto([path for path in paths if path is not None])
    timeline = replay(graph)
    start, end, rank = graph.tasks["start_ns"], graph.tasks["start_ns"] + graph.duration_ns, graph.tasks["rank"]
    errors = []
    for one in range(graph.num_ranks):
        mine = rank == one
        first = start[mine].min()
        errors.append(abs((timeline.finish_ns[mine].max() - first) / (end[mine].max() - first) - 1))
    collectives = graph.select(kind=Kind.COMM)
    return float(max(errors)), float(np.abs(timeline.finish_ns - end)[collectives].max() / 1000)


def _what_ifs(forward: Graph) -> tuple[float, float]:
    """Relative change of the forward pass with kernels twice as fast, and without the allocator's calls."""
    before = replay(forward).makespan_ns
    kinds = forward.resources["kind"][forward.tasks["resource"]]
    halved = forward.scale(kinds == ResourceKind.STREAM, 0.5)
    warm = forward.remove(forward.select(name="cudaMalloc"))
    return replay(halved).makespan_ns / before - 1, replay(warm).makespan_ns / before - 1


if __name__ == "__main__":
    sys.exit(main())
