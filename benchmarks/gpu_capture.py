"""Recorded pairs of an H200 give graphs like those of captures on a CPU: operators, layers, lines, memory and times.

Each script of ``gpu/scripts`` was recorded lightly (three iterations), richly (one, with an execution trace), and bare.
The light iterations become a graph as a capture makes it: what the rich one knows of its operators is said of theirs,
and the host is scaled to the bare step. A CUDA graph is one call to the profiler: its kernels have a line, but neither
operators nor layers, and its pool of memory is recorded nowhere.

    python -m benchmarks.gpu_capture --verbose
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks import bar
from windtunnel.errors import InputError
from windtunnel.graph import Graph, Kind, ResourceKind
from windtunnel.simulate import replay
from windtunnel.sources.execution_trace.kineto import read_events as read_pair
from windtunnel.sources.execution_trace.nodes import read_document
from windtunnel.sources.kineto.events import read_events
from windtunnel.sources.kineto.unprofiled import without_profiler
from windtunnel.sources.timeline.build import build_graph
from windtunnel.sources.torch.same_operators import share_operators
from windtunnel.whatifs.peak_memory import peak_of_replay

PAIRS = Path(__file__).parent / "gpu" / "h200" / "pairs"
REPLAYED_GRAPHS = ("graphed_net",)
NAMES = (
    "perceptron",
    "residual_net",
    "streams_net",
    "decoder_lm",
    "attention_by_hand",
    "compiled_lm",
    *REPLAYED_GRAPHS,
)
SHARE, ERROR, MEMORY = 0.99, 0.03, 0.02
STEP = "step"  # the function of a script that runs one iteration


def kernels_of(graph: Graph) -> np.ndarray:
    """Kernels, bool [T]."""
    on_device = graph.resources["kind"][graph.tasks["resource"]] == ResourceKind.STREAM
    return graph.select(kind=Kind.COMPUTE) & on_device


def column(graph: Graph, name: str) -> np.ndarray:
    """Whether each task has an entry in a text column."""
    return graph.tasks.strings(name).to_numpy() != "" if name in graph.tasks else np.zeros(graph.num_tasks, bool)


def step_line(name: str) -> str:
    """First line of the function that runs one iteration: what it calls itself lies in no module."""
    lines = (PAIRS.parents[1] / "scripts" / f"{name}.py").read_text().splitlines()
    number = next(row for row, text in enumerate(lines, 1) if text.strip().startswith(f"def {STEP}("))
    return f"benchmarks/gpu/scripts/{name}.py:{number}"


def coverage(name: str, graph: Graph) -> dict[str, float]:
    """Share of operators with shapes, and of the kernels' time with a line, with a layer, and with either reason."""
    kernels = kernels_of(graph)
    time_ns = graph.duration_ns[kernels].astype(float)
    part = graph.tasks.get("is_part", np.zeros(graph.num_tasks, bool))
    has_line, has_layer = column(graph, "line")[kernels], column(graph, "layer")[kernels]
    by_step = graph.tasks.strings("line").to_numpy()[kernels] == step_line(name)
    shares = {"shapes": (column(graph, "input_shapes") | part)[kernels].mean()}
    return shares | {
        key: float(time_ns[mask].sum() / time_ns.sum())
        for key, mask in (("line", has_line), ("in_layer", has_layer), ("layer_or_step", has_layer | by_step))
    }


def judge(name: str) -> dict[str, object]:
    """Everything about one script."""
    facts = json.loads((PAIRS / f"{name}.json").read_text())
    files = [PAIRS / f"{name}-{part}.json.gz" for part in ("execution", "rich", "plain")]
    rich, _, joined = read_pair(read_document(files[0]), files[1])
    shared, matched = share_operators(read_events(files[2]), rich)
    graph = build_graph(shared, window="ProfilerStep")
    bare = facts["bare"]
    step_ns = float(np.median([*bare["blocks_ns"], *bare["blocks_after_ns"]]))
    row: dict[str, object] = {"joined_nodes": joined["nodes"], "matched": matched, **coverage(name, graph)}
    try:
        replayed = replay(without_profiler(graph, step_ns))
        row["replay_error"] = replayed.makespan_ns / graph.num_iterations / step_ns - 1
    except InputError as error:
        row["replay_error"], row["reason"] = float("inf"), error.message
    peak_bytes = peak_of_replay(replay(graph)) or 0
    row["memory_error"] = peak_bytes / facts["memory"]["peak"]["allocated_bytes"] - 1
    return row


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    rows = {name: judge(name) for name in NAMES}
    if options.verbose:
        for name, row in rows.items():
            print(name, json.dumps(row), file=sys.stderr)
    operators = {name: row for name, row in rows.items() if name not in REPLAYED_GRAPHS}
    checks = {
        "every operator has shapes": all(row["shapes"] == 1 for row in operators.values()),
        "kernels have a line": all(row["line"] >= SHARE for row in rows.values()),
        "kernels have a layer, or the step itself runs them": all(
            row["layer_or_step"] >= SHARE for row in operators.values()
        ),
        "replay": all(abs(row["replay_error"]) <= ERROR for row in operators.values()),
        "memory": all(abs(row["memory_error"]) <= MEMORY for row in operators.values()),
    }
    return bar.report(
        "gpu_capture",
        100 * min(min(row["line"], row["layer_or_step"]) for row in operators.values()),
        ">= 99 % of kernel time with line and layer (or run by the step itself), all operators with shapes, replay "
        "within 3 % of the bare step, memory within 2 % of the allocator, of six scripts on an H200",
        all(checks.values()),
        checks=checks,
        worst_replay_percent=100 * max(abs(row["replay_error"]) for row in operators.values()),
        worst_memory_percent=100 * max(abs(row["memory_error"]) for row in operators.values()),
        least_in_layer_percent=100 * min(row["in_layer"] for row in operators.values()),
        least_matched_percent=100 * min(row["matched"] for row in operators.values()),
        in_layer_percent={name: 100 * row["in_layer"] for name, row in rows.items()},
        note="the host's share is fitted to the bare step, as a capture does it: the replay error of a script that "
        "waits for its host is that of the fit. Kernels of a replayed CUDA graph have a line only (graphed_net), and "
        "take 6.44 ms under the profiler, bare 5.59 ms",
    )


if __name__ == "__main__":
    sys.exit(not main())
