"""Bar clock_alignment: clocks that were set wrong on purpose are found again.

Three jobs: the recorded 8-rank step (offsets up to 1 s on each rank's trace), a made job of 4 ranks and 20 s whose
collectives end with noise as gloo's on busy hosts (offsets and drifts up to 50 ppm), and a real job of 2 processes over
gloo on this machine, recorded for 12 s (the same). Recovered means within 10 us and 1 ppm for the first two; the real
one, whose ends wait for cores, within 50 us and 2 ppm. The error of the replay is printed with and without alignment.
Two exchanged traces have to be named.
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.errors import TraceError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind
from windtunnel.measure.workers import Workers
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.ranks import load_ranks, merge

MOST_US, MOST_PPM = 10.0, 1.0
MOST_REAL_US, MOST_REAL_PPM = 50.0, 2.0
MOST_S, MOST_DRIFT_PPM = 1.0, 50.0
SEEDS = 3
MADE_RANKS, MADE_STEPS = 4, 2_000
REAL_S = 12


def stretched(time_ns: np.ndarray, drift_ppm: float) -> np.ndarray:
    """Spans on a clock that is too fast."""
    return np.rint(time_ns * (1 + drift_ppm * 1e-6)).astype(np.int64)


def wrong(graph: Graph, offset_ns: float, drift_ppm: float = 0.0) -> Graph:
    """The graph of a rank whose clock is wrong: off at its first task, too fast from there on."""
    start = stretched(graph.tasks["start_ns"], drift_ppm)
    end = stretched(graph.tasks["start_ns"] + graph.duration_ns, drift_ppm)
    columns = {"start_ns": start, "duration_ns": end - start}
    if "earliest_ns" in graph.tasks:
        columns["earliest_ns"] = stretched(graph.tasks["earliest_ns"], drift_ppm)
    edges = graph.edges
    if "lag_ns" in edges:
        edges = edges.replace(lag_ns=stretched(edges["lag_ns"], drift_ppm))
    meta = graph.meta.with_entries({"origin_ns": graph.meta.origin_ns + round(offset_ns)})
    return Graph(graph.tasks.replace(**columns), edges, graph.resources, meta)


def clocks(num_ranks: int, seed: int, drift_ppm: float) -> list[tuple[float, float]]:
    """Offsets in ns and drifts in ppm, none on the first rank."""
    draw = np.random.default_rng(seed)
    offsets = draw.uniform(-MOST_S, MOST_S, num_ranks) * 1e9
    drifts = draw.uniform(-drift_ppm, drift_ppm, num_ranks)
    return [(0.0, 0.0), *zip(np.rint(offsets[1:]).tolist(), drifts[1:].tolist(), strict=True)]


def error_of(joined: Graph, graphs: list[Graph], told: list[tuple[float, float]]) -> tuple[float, float]:
    """Worst error of a corrected time in us, at the begin and the end, and of a drift in ppm."""
    origins = np.array([graph.meta.origin_ns for graph in graphs])
    raw = min(origin + offset for origin, (offset, _) in zip(origins.tolist(), told, strict=True))
    ends = [int((graph.tasks["start_ns"] + graph.duration_ns).max()) for graph in graphs]
    times = np.array([0, max(ends)], np.float64)  # since the first origin
    hosts = {host["host"]: host for host in joined.meta.clocks["hosts"]}
    worst_us, worst_ppm = 0.0, 0.0
    for rank, (offset, drift) in enumerate(told):
        host, late = hosts[joined.meta.clocks["ranks"][str(rank)]], float(origins[rank] - origins.min())
        shown = (times - late) * (1 + drift * 1e-6) + float(origins[rank] + offset - raw)
        back = shown + host["offset_ns"] + (shown - host["base_ns"]) * host["drift_ppm"] * 1e-6
        true = times + float(origins.min() - raw)  # on the first rank's clock, which is right
        worst_us = max(worst_us, float(np.abs(back - true).max()) / 1e3)
        worst_ppm = max(worst_ppm, abs(((1 + drift * 1e-6) * (1 + host["drift_ppm"] * 1e-6) - 1) * 1e6))
    return worst_us, worst_ppm


def replay_error(graphs: list[Graph], truth: Graph, align: str) -> float:
    """How far the replay of the wrong traces is from that of the right ones: makespan over makespan."""
    names = [f"rank{rank}" for rank in range(len(graphs))]
    own = [f"host {rank}" for rank in range(len(graphs))]
    joined = merge(graphs, names, align=align, hosts=own)
    return replay(joined).makespan_ns / replay(truth).makespan_ns - 1


def checked(graphs: list[Graph], drift_ppm: float, seeds: range) -> dict[str, float]:
    """Worst errors over some seeds, and those of the replay with and without alignment."""
    names, own = ([f"{what} {rank}" for rank in range(len(graphs))] for what in ("trace", "host"))
    truth = merge(graphs, names, align="none")
    found: list[tuple[float, ...]] = []
    for seed in seeds:
        told = clocks(len(graphs), seed, drift_ppm)
        moved = [wrong(graph, *clock) for graph, clock in zip(graphs, told, strict=True)]
        aligned = merge(moved, names, hosts=own)
        errors = error_of(aligned, graphs, told)
        found.append((*errors, *(abs(replay_error(moved, truth, align)) for align in ("auto", "none"))))
    worst = np.max(found, axis=0).tolist()
    return dict(zip(("offset_us", "drift_ppm", "replay_error", "replay_error_without"), worst, strict=True))


def made(rank: int, begin_KR: np.ndarray, end_KR: np.ndarray) -> Graph:
    """One rank of a made job: it computes, joins a collective, computes on."""
    builder = GraphBuilder()
    thread, last, now = builder.resource("thread"), -1, 0
    starts = []
    for begin, end in zip(begin_KR[:, rank].tolist(), end_KR[:, rank].tolist(), strict=True):
        for name, since, until, about in (("compute", now, begin, {}), ("all_reduce", begin, end, {"kind": Kind.COMM})):
            row = builder.task(name, op=name, duration_ns=until - since, resource=thread, **about)
            if last >= 0:
                builder.edge(last, row, kind=EdgeKind.ORDER)
            starts.append(since)
            last, now = row, until
    graph = builder.build({"source": "made", "distributed": {"rank": rank, "world_size": MADE_RANKS}})
    return Graph(graph.tasks.replace(start_ns=np.array(starts)), graph.edges, graph.resources, graph.meta)


def made_job(seed: int) -> list[Graph]:
    """Steps of 10 ms; ends that wait 30 us for a core, one in thirty for some milliseconds."""
    draw = np.random.default_rng(seed)
    begin = np.zeros((MADE_STEPS, MADE_RANKS), np.int64)
    end = np.zeros_like(begin)
    now = np.zeros(MADE_RANKS)
    for step in range(MADE_STEPS):
        begin[step] = now + draw.uniform(7e6, 11e6, MADE_RANKS)
        late = draw.exponential(30e3, MADE_RANKS) + (draw.random(MADE_RANKS) < 1 / 30) * draw.exponential(
            4e6, MADE_RANKS
        )
        end[step] = begin[step].max() + 150e3 + late
        now = end[step].astype(float)
    return [made(rank, begin, end) for rank in range(MADE_RANKS)]


def swapped(paths: list[Path]) -> str:
    """The error for two traces of different hosts that were exchanged; hosts of four ranks, 0.4 s apart."""
    hosts = [f"host {rank // 4}" for rank in range(8)]
    graphs = [load_kineto(path) for path in paths]
    moved = [wrong(graph, 400_000_000.0 * (rank // 4)) for rank, graph in enumerate(graphs)]
    moved[2], moved[5] = (renumbered(moved[one], rank) for one, rank in ((5, 2), (2, 5)))
    try:
        merge(moved, [path.name for path in paths], hosts=hosts)
    except TraceError as error:
        return error.message
    return ""


def renumbered(graph: Graph, rank: int) -> Graph:
    """The graph as if the trace said that it is of that rank."""
    return graph.with_columns(rank=np.full(graph.num_tasks, rank, np.int32)).with_meta(
        distributed={**graph.meta.distributed, "rank": rank}
    )


def real_job(folder: Path) -> list[Graph]:
    """Two processes train over gloo and record themselves."""
    config = {"folder": str(folder), "seconds": REAL_S}
    with Workers("benchmarks.peers.gloo_ranks", config, num_ranks=2, title="job", patience_s=400) as job:
        job.gather()
    return [load_kineto(folder / f"rank{rank}.json") for rank in range(2)]


def shifted_files(paths: list[Path], told: list[tuple[float, float]], folder: Path) -> list[str | Path]:
    """The traces with another clock each, as files; whole microseconds, as in the traces."""
    written: list[str | Path] = []
    for path, (offset_ns, _) in zip(paths, told, strict=True):
        document = json.loads(gzip.decompress(path.read_bytes()))
        for event in document["traceEvents"]:
            if "ts" in event:
                event["ts"] += round(offset_ns / 1000)
        (folder / path.name).write_bytes(gzip.compress(json.dumps(document).encode(), 1))
        written.append(folder / path.name)
    return written


def recorded(paths: list[Path]) -> dict[str, float]:
    """The recorded step, with its files shifted."""
    truth = load_ranks(list(paths))
    found = []
    for seed in range(SEEDS):
        told = [(1000.0 * round(offset / 1000), drift) for offset, drift in clocks(len(paths), seed, 0.0)]
        with tempfile.TemporaryDirectory() as folder:
            files = shifted_files(paths, told, Path(folder))
            joined = {align: load_ranks(files, align=align) for align in ("auto", "none")}
        # times of a trace count from its first event, whose place on the first clock is the offset's zero
        errors = [abs(replay(joined[align]).makespan_ns / replay(truth).makespan_ns - 1) for align in ("auto", "none")]
        hosts = joined["auto"].meta.clocks["hosts"]
        off_us = [abs(host["offset_ns"] + offset) / 1e3 for host, (offset, _) in zip(hosts, told, strict=True)]
        found.append((max(off_us), *errors))
    worst = np.max(found, axis=0).tolist()
    return dict(zip(("offset_us", "replay_error", "replay_error_without"), worst, strict=True))


def main() -> int:
    """Print the bar; 1 if it does not hold."""
    target = f"within {MOST_US:.0f} µs and {MOST_PPM:.0f} ppm (real: {MOST_REAL_US:.0f} µs, {MOST_REAL_PPM:.0f} ppm)"
    places = [find_shared(f"replay/kineto_dlrm_8ranks/rank{rank}.json.gz") for rank in range(8)]
    paths = [path for path in places if path is not None]
    if len(paths) < 8:
        bar.report("clock_alignment", float("nan"), target, False, reason="the public traces are not here")
        return 1
    step, name = recorded(paths), swapped(paths)
    job = checked(made_job(0), MOST_DRIFT_PPM, range(SEEDS))
    with tempfile.TemporaryDirectory() as folder:
        real = checked(real_job(Path(folder)), MOST_DRIFT_PPM, range(SEEDS))
    checks = {
        "recorded step": step["offset_us"] <= MOST_US,
        "made job": job["offset_us"] <= MOST_US and job["drift_ppm"] <= MOST_PPM,
        "real job": real["offset_us"] <= MOST_REAL_US and real["drift_ppm"] <= MOST_REAL_PPM,
        "exchanged traces are named": "ranks 2 and 5" in name,
        "worse without": all(one["replay_error"] < one["replay_error_without"] for one in (step, job, real)),
    }
    flat = {
        f"{what}_{key}": value
        for what, one in (("step", step), ("made", job), ("real", real))
        for key, value in one.items()
    }
    worst = max(step["offset_us"], job["offset_us"])
    bar.report("clock_alignment", worst, target, all(checks.values()), **flat, exchanged=name, checks=checks)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
