"""A dry run calls what the real job calls, sends what it sends and holds what it holds.

Four scripts (averaged, sharded, tensor parallel, pipeline) really run on two processes over gloo, where a plain
dispatch mode notes every operator with its shapes in one steady iteration, messages among them; another run of each
follows its memory, storage by storage. The same scripts are traced with ``device="cpu"``, no other process being
there. Operators that only allocate or change the form of a tensor are left out on both sides.

    python -m benchmarks.dry_run_true --verbose
"""

import re
import socket
import sys
from collections import Counter
from pathlib import Path

from benchmarks import bar
from windtunnel.measure.workers import Workers
from windtunnel.sources.dry._trace import Trace
from windtunnel.sources.dry.run import _Options, _traced

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
Row = tuple[str, str]


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
    return _traced(options, (0, 1), None)


def calls_of(trace: Trace) -> list[Row]:
    """As the real process notes them."""
    return [(dotted(call.node["name"]), str(flat(call.node["inputs"]))) for call in trace.calls]


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


def of_the_job(rows: list[Row]) -> list[Row]:
    """Without what gloo does by itself: it scatters by an all-reduce, and copies a part of the result."""
    parts = [text.split("], [")[0].strip("[") for name, text in rows if name == SCATTER]
    own = Counter((COPY, f"[[{part}], [{part}]]") for part in parts)
    kept = []
    for row in rows:
        own[row] -= 1
        if own[row] < 0:
            kept.append(row)
    return kept


def compared(name: str) -> dict[str, object]:
    """One script."""
    real, held = really(name, "calls"), really(name, "memory")
    rows: dict[str, object] = {"script": name}
    differ, errors = 0, []
    for rank, trace in enumerate(traced(name)):
        mine, (theirs, failure) = works(calls_of(trace)), real[rank]  # type: ignore[misc]
        theirs = of_the_job(works([tuple(row) for row in theirs]))
        missing, extra = Counter(theirs) - Counter(mine), Counter(mine) - Counter(theirs)
        differ += sum(missing.values()) + sum(extra.values())
        is_sent = [row for row in theirs if row[0].startswith(("c10d.", "_c10d_functional."))]
        rows |= {
            f"operators {rank}": len(theirs),
            f"messages {rank}": len(is_sent),
            f"same order {rank}": mine == theirs,
        }
        if missing or extra:
            rows |= {f"missing {rank}": missing.most_common(4), f"extra {rank}": extra.most_common(4)}
        if failure:
            rows[f"failure {rank}"] = failure
        errors.append(trace.memory.peak_bytes / held[rank][0] - 1)  # type: ignore[index]
    return {**rows, "differ": differ, "memory_errors": errors}


def main() -> None:
    """Print the bar."""
    rows = [compared(name) for name in SCRIPTS]
    if bar.is_verbose():
        for row in rows:
            print(row)
    worst = max(abs(error) for row in rows for error in row["memory_errors"])  # type: ignore[attr-defined]
    num_differ = sum(int(row["differ"]) for row in rows)  # type: ignore[call-overload]
    bar.report(
        "dry_run_true",
        num_differ,
        f"0 operators or messages that differ, peak memory within {MEMORY_TARGET:.0%}",
        not num_differ and worst <= MEMORY_TARGET,
        worst_memory_error=worst,
        scripts=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
