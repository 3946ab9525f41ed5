"""A dry run calls what the real job calls, sends what it sends and holds what it holds.

Four scripts (averaged, sharded, tensor parallel, pipeline) really run on two processes over gloo, where a plain
dispatch mode notes every operator in one steady iteration, messages among them, with its shapes and the bytes that it
reads and writes: each byte's last writer is what its reader depends on. Another run of each follows its memory, storage
by storage. The same scripts are traced with ``device="cpu"``, no other process being there. Operators that only
allocate or change the form of a tensor are left out on both sides. Then a Llama 3 of 8 billion parameters, in 128
shards of 8 tensor-parallel ranks each, is traced by the shell's command, with its time and memory.

    python -m benchmarks.dry_run_true --verbose
"""

import re
import resource
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks import bar
from benchmarks.dry_run.worker import Row
from windtunnel.graph import EdgeKind, Kind, load
from windtunnel.measure.workers import Workers, run_to_end
from windtunnel.sources.dry.build import _describe_call, graph_of
from windtunnel.sources.dry.run import _Options, _trace_ranks
from windtunnel.sources.dry.trace import Trace
from windtunnel.sources.torch.ops import Role

SCRIPTS = ("ddp", "fsdp", "tensor", "pipeline")
FOLDER = Path(__file__).parent / "dry_run"
MEMORY_TARGET = 0.02
# no work of its own: allocation, another form, notes of the profiler
FORM = re.compile(
    r"^(prim|profiler)\.|^aten\.(empty|new_empty|empty_like|empty_strided|detach|view|_unsafe_view|t|transpose|expand|"
    r"unsqueeze|squeeze|select|slice|split|split_with_sizes|as_strided|alias|lift_fresh|permute|unbind|resize_|set_|"
    r"_local_scalar_dense|is_same_size|detach_|unflatten|_reshape_alias|chunk|record_stream|item)\.|"
    r"^_c10d_functional\.(wait_tensor|_wrap_tensor_autograd)\."
)
SCATTER, COPY = "c10d._reduce_scatter_base_.default", "aten.copy_.default"
LLAMA_RANKS, TIME_TARGET_S, SIZE_TARGET_GIB = 1024, 60.0, 4.0
Edges = set[tuple[int, int]]


def really(name: str, what: str) -> list[object]:
    """What both processes answer."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    config = {"script": str(FOLDER / f"{name}.py"), "what": what, "port": port}
    with Workers("benchmarks.dry_run.worker", config, num_ranks=2, title=name, patience_s=900) as workers:
        return workers.gather()


def traced(name: str) -> list[Trace]:
    """Both ranks, without the other."""
    options = _Options(FOLDER / f"{name}.py", (), 2, 2, has_device=False, guesses=False)
    return _trace_ranks(options, (0, 1), None)


def calls_of(trace: Trace) -> list[Row]:
    """As the real process notes them, but for the bytes."""
    return [(dotted(call.node["name"]), str(flat(call.node["inputs"])), [], []) for call in trace.calls]


def depends(rows: list[Row]) -> Edges:
    """Which row reads what which row wrote last, byte by byte."""
    owners: dict[int, np.ndarray] = {}
    found: Edges = set()
    for number, (_, _, reads, writes) in enumerate(rows):
        for storage, _, high in [*reads, *writes]:
            known = owners.get(storage, np.zeros(0, np.int64))
            owners[storage] = np.pad(known, (0, max(0, high - len(known))), constant_values=-1)
        for storage, low, high in reads:
            found |= {(int(one), number) for one in np.unique(owners[storage][low:high]) if one >= 0}
        for storage, low, high in writes:
            owners[storage][low:high] = number
    return found


def traced_depends(trace: Trace, kept: list[int]) -> Edges:
    """The graph's data edges between the calls that are kept, by their places among these."""
    graph = graph_of(trace)
    runs = [row for row, call in enumerate(trace.calls) if _describe_call(call).role in (Role.COMPUTE, Role.RECIPE)]
    place = {row: number for number, row in enumerate(kept)}
    data = graph.edges["kind"] == EdgeKind.DATA
    ends = zip(graph.edges["src"][data].tolist(), graph.edges["dst"][data].tolist(), strict=True)
    called = [(runs[src - len(runs)], runs[dst - len(runs)]) for src, dst in ends]
    return {(place[src], place[dst]) for src, dst in called if src in place and dst in place}


def dotted(name: str) -> str:
    """``aten::add.Tensor`` as torch prints it."""
    plain = name.replace("::", ".")
    return plain if plain.count(".") == 2 else f"{plain}.default"


def flat(inputs: dict[str, list[object]]) -> list[list[int]]:
    """Shapes of all tensors."""
    found: list[list[int]] = []
    for value, shape, kind in zip(inputs["values"], inputs["shapes"], inputs["types"], strict=True):
        if str(kind).startswith("Tensor("):
            found.append(shape)  # type: ignore[arg-type]
        elif isinstance(value, list) and "Tensor(" in str(kind):
            found += flatten(shape)
    return found


def flatten(shape: object) -> list[list[int]]:
    """Lists of whole numbers within lists."""
    assert isinstance(shape, list)
    if all(isinstance(one, int) for one in shape):
        return [shape]
    return [one for inner in shape for one in flatten(inner)]


def works(rows: list[Row]) -> list[Row]:
    """Those that do something."""
    return [row for row in rows if not FORM.match(row[0])]


def texts(rows: list[Row]) -> list[tuple[str, str]]:
    """What is called on which shapes."""
    return [row[:2] for row in rows]


def of_the_job(rows: list[Row]) -> list[Row]:
    """Without what gloo does by itself: it scatters by an all-reduce, and copies a part of the result."""
    parts = [text.split("], [")[0].strip("[") for name, text in texts(rows) if name == SCATTER]
    own = Counter((COPY, f"[[{part}], [{part}]]") for part in parts)
    kept = []
    for row in rows:
        own[row[:2]] -= 1
        if own[row[:2]] < 0:
            kept.append(row)
    return kept


def named(edges: Edges, rows: list[Row]) -> list[str]:
    """A few of them, to read."""
    return [f"{src} {rows[src][0]} -> {dst} {rows[dst][0]}" for src, dst in sorted(edges)[:6]]


def compared(name: str) -> dict[str, object]:
    """One script."""
    real, held = really(name, "calls"), really(name, "memory")
    rows: dict[str, object] = {"script": name}
    differ, errors = 0, []
    for rank, trace in enumerate(traced(name)):
        calls, (theirs, failure) = calls_of(trace), real[rank]  # type: ignore[misc]
        theirs = of_the_job(works(theirs))
        kept = [row for row, call in enumerate(calls) if not FORM.match(call[0])]
        mine = works(calls)
        same_order = texts(mine) == texts(theirs)
        missing, extra = Counter(texts(theirs)) - Counter(texts(mine)), Counter(texts(mine)) - Counter(texts(theirs))
        differ += sum(missing.values()) + sum(extra.values()) + (not same_order)
        real_edges, own_edges = depends(theirs), traced_depends(trace, kept)
        differ += len(real_edges ^ own_edges)
        if real_edges ^ own_edges:
            rows |= {
                f"dependencies missing {rank}": named(real_edges - own_edges, theirs),
                f"dependencies extra {rank}": named(own_edges - real_edges, theirs),
            }
        is_sent = [row for row in theirs if row[0].startswith(("c10d.", "_c10d_functional."))]
        rows |= {
            f"operators {rank}": len(theirs),
            f"messages {rank}": len(is_sent),
            f"same order {rank}": same_order,
            f"dependencies {rank}": len(real_edges),
        }
        if missing or extra:
            rows |= {f"missing {rank}": missing.most_common(4), f"extra {rank}": extra.most_common(4)}
        if failure:
            rows[f"failure {rank}"] = failure
        errors.append(trace.memory.peak_bytes / held[rank][0] - 1)  # type: ignore[index]
    return {**rows, "differ": differ, "memory_errors": errors}


def large() -> dict[str, float]:
    """Seconds and GiB of a dry run of 1,024 ranks in a process of its own, and its tasks."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "llama.wt"
        command = [
            sys.executable,
            "-m",
            "windtunnel",
            "capture",
            "--dry-run",
            "--ranks",
            str(LLAMA_RANKS),
            "-o",
            str(target),
        ]
        done = run_to_end([*command, str(FOLDER / "llama.py")])
        assert done is not None, "the command did not start"
        assert target.exists(), done.stderr[-2000:]
        graph = load(target)
    # of the largest process so far, which is this one unless it is smaller than those of two ranks
    size_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    sent = int(graph.select(kind=Kind.COMM).sum())
    return {"large_s": done.elapsed_ns * 1e-9, "large_gib": size_gib, "large_tasks": graph.num_tasks, "messages": sent}


def main() -> None:
    """Print the bar."""
    rows = [compared(name) for name in SCRIPTS]
    if bar.is_verbose():
        for row in rows:
            print(row)
    worst = max(abs(error) for row in rows for error in row["memory_errors"])  # type: ignore[attr-defined]
    num_differ = sum(int(row["differ"]) for row in rows)  # type: ignore[call-overload]
    llama = large()
    bar.report(
        "dry_run_true",
        num_differ,
        f"0 operators, messages or dependencies that differ, peak memory within {MEMORY_TARGET:.0%}; "
        f"{LLAMA_RANKS:,} ranks in <= {TIME_TARGET_S:.0f} s and {SIZE_TARGET_GIB:.0f} GiB",
        not num_differ
        and worst <= MEMORY_TARGET
        and llama["large_s"] <= TIME_TARGET_S
        and llama["large_gib"] <= SIZE_TARGET_GIB,
        worst_memory_error=worst,
        **llama,
        scripts=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
