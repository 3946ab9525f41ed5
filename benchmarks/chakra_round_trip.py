"""Graphs go to Chakra traces and back unchanged, and algorithms of collectives are what they say.

The published trace's counts and times; `.et` and JSON written and read again, the same graph and the same bytes; MSCCL
XML against the traces that others lowered from it; every algorithm of ours and MSCCL's, symbolically: each rank ends
with every chunk's full sum, whatever the wires do; captured GPU traces replayed from their exports, one rank and eight.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.comm import test_expansion as ours
from tests.comm.symbolic import contents, replayed_moves
from tests.shared_data import find_shared
from tests.sources import test_msccl as msccl

from benchmarks import bar, chakra_exact
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph, Kind
from windtunnel.hardware import Topology
from windtunnel.simulate import replay
from windtunnel.sources.chakra import load_chakra, save_chakra
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.msccl import load_msccl
from windtunnel.sources.ranks import load_ranks

MOST = 0.02
PUBLISHED = ("replay/chakra/chakra.0.et.gz", "replay/chakra/chakra.0.json.gz")
GPU = (
    "kineto/amd_mi250_toy_train", "kineto/nccl_collectives_rank0_of_2", "kineto/resnet_v100_train_ns",
    "kineto/sampled_rank0_of_128", "kineto/train_rank3_of_8", "kineto/triton_cuda_driver_launch",
    "kineto/cpu_only_gloo_rank34_of_300", "critical_path/alexnet_fwd_two_streams", "critical_path/cuda_event_sync",
    *(f"kineto_dlrm_8ranks/rank{rank}" for rank in range(8)),
    "execution_trace/linear_kineto", "execution_trace/simple_add_kineto",
)  # fmt: skip


def is_stable(graph: Graph, folder: Path) -> dict[str, bool]:
    """Of each form: whether reading, writing and reading again gives the same graph and the same bytes."""
    found = {}
    for suffix in (".et", ".et.gz", ".json"):
        (first,) = save_chakra(graph, folder / f"a{suffix}")
        once = load_chakra(first)
        (second,) = save_chakra(once, folder / f"b{suffix}")
        (third,) = save_chakra(load_chakra(second), folder / f"c{suffix}")
        same = once.equals(load_chakra(second)) and second.read_bytes() == third.read_bytes()
        found[suffix] = same and graph.duration_ns.tolist() == once.duration_ns.tolist()
    return found


def exported(folder: Path) -> Iterator[dict[str, object]]:
    """Every captured trace: how far the replay of its export is from its own."""
    for name in GPU:
        path = find_shared(f"replay/{name}.json.gz")
        graph = load_kineto(path)
        (written,) = save_chakra(graph, folder / "export.et.gz")
        yield {"what": name, "off": replay(load_chakra(written)).makespan_ns / replay(graph).makespan_ns - 1}


def exported_ranks(folder: Path) -> Iterator[dict[str, object]]:
    """The eight ranks of one step, exported together and joined again: each rank's end."""
    graph = load_kineto(find_shared("replay/kineto_dlrm_8ranks"))
    save_chakra(graph, folder / "ranks" / "dlrm.et")
    again = load_ranks(folder / "ranks")
    ends = [_ends(one) for one in (graph, again)]
    for rank, (before, after) in enumerate(zip(*ends, strict=True)):
        yield {"what": f"rank {rank} of 8, joined again", "off": float(after / before - 1)}


def _ends(graph: Graph) -> np.ndarray:
    timeline, rank = replay(graph), graph.tasks["rank"]
    return np.array([timeline.finish_ns[rank == one].max() for one in range(8)])


def algorithms() -> Iterator[dict[str, object]]:
    """Every algorithm of ours, symbolically, under random delays."""
    for algorithm, op, sizes in ours.CASES:
        dims = ours.members(sizes)
        graph, schedule = ours.expanded(op, algorithm, 9973, Topology(dims, (ours.WIRE,) * len(dims)), num_parts=2)
        messages = graph.select(kind=Kind.COMM)
        slowed = graph.set_duration(messages, np.random.default_rng(1).integers(1, 5000, int(messages.sum())))
        moves, begin = replayed_moves(slowed), ours.held_before(op, schedule, 2)
        held = contents(moves, ours.cells_by_tag(schedule, 2), begin)
        wrong = ours.wrong_cells(op, schedule, 2, held)
        yield {"what": f"{algorithm} {op} of {sizes}", "wrong": len(wrong)}


def msccl_differences() -> dict[str, int]:
    """Ranks whose nodes differ from those that others lowered, and cells that do not hold everyone's sum."""
    path = find_shared(msccl.RING)
    lowered = load_msccl(path)
    theirs = [load_chakra(find_shared(f"replay/astra_sim/msccl/custom_allreduce.{rank}.et.gz")) for rank in range(8)]
    differ = [
        msccl.node_list(one, np.arange(one.num_tasks)) != msccl.node_list(lowered, msccl.rows_of(rank))
        for rank, one in enumerate(theirs)
    ]
    return {"ranks": sum(differ), "cells": len(msccl.wrong_sums(lowered, path))}


def main() -> int:
    """Compare and print the bar; 1 if it does not hold."""
    paths = [find_shared(name) for name in (*PUBLISHED, msccl.RING)]
    if None in paths:
        bar.report("chakra_round_trip", 0, "0 differences", False, reason="the public traces are not here")
        return 1
    binary, text = load_chakra(paths[0]), load_chakra(paths[1])
    found = chakra_exact.measured(binary)
    wrong = {name: found[name] for name, value in chakra_exact.PUBLISHED.items() if found[name] != value}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stable = {f"{what}{form}": good for what, graph in (("et", binary), ("json", text))
                  for form, good in is_stable(graph, folder).items()}  # fmt: skip
        rows = list(exported(folder))
        try:
            (folder / "ranks").mkdir()
            rows += exported_ranks(folder)
        except WindtunnelError as error:
            rows.append({"what": f"eight ranks: {error.message}", "off": 1.0})
    lowered, checked = msccl_differences(), list(algorithms())
    off = max(abs(float(row["off"])) for row in rows)
    incorrect = [row["what"] for row in checked if row["wrong"]]
    count = len(wrong) + sum(not good for good in stable.values()) + sum(lowered.values()) + len(incorrect)
    holds = count == 0 and off <= MOST
    if bar.is_verbose():
        print(bar.table(rows))
        print(bar.table(checked))
    bar.report(
        "chakra_round_trip", count, "0 differences, exports within 2 %", holds, worst_export=off, exports=len(rows),
        algorithms=len(checked), incorrect=incorrect, msccl=lowered, unstable=[k for k, v in stable.items() if not v],
        wrong=wrong, **found,
    )  # fmt: skip
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
