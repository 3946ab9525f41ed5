"""The small good files that the bar ``fuzz`` makes wrong, one set per reader, and how each is read.

Everything is made here: no file of anybody else is needed. Not here: how files are made wrong (``mutants``).
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bar, mutant_tables, mutants

__all__ = ["SUBJECTS", "Subject"]

assert bar.ROOT  # tests/ can be imported from here on


@dataclass(frozen=True)
class Subject:
    """One reader with its files.

    Parameters
    ----------
    share : int
        Of all mutants, in hundredths.
    name : str
        Of the file that is written.
    seeds : callable
        Good files.
    mutators : tuple
        Drawn with equal chance.
    read : callable
        Path -> a graph or anything else.
    folder : dict of callables, optional
        Good files beside it, by name.
    """

    share: int
    name: str
    seeds: Callable[[], list[bytes]]
    mutators: tuple[mutants.Mutator, ...]
    read: Callable[[Path], Any]
    folder: Callable[[], dict[str, bytes]] = dict


# --- traces -------------------------------------------------------------------------------------------


def kineto() -> list[bytes]:
    from tests.sources.kineto_traces import annotation, call, kernel, op

    told = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float"}
    events = [
        annotation("ProfilerStep#1", 0, 100),
        op("aten::mm", 1, 8, **{"External id": 4, "Sequence number": 2, "Input Dims": [[2, 3], []]}),
        call("cudaLaunchKernel", 2, 5, 1),
        kernel("gemm", 10, 20, 1),
        call("cudaLaunchKernel", 12, 5, 2),
        kernel("ncclKernel_AllReduce_RING", 31, 20, 2, **told),
        call("cudaStreamSynchronize", 20, 40, 3),
        op("aten::add", 70, 5, tid=2, **{"Sequence number": 2, "Fwd thread id": 1}),
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 1, "ts": 3.5, "s": "t",
         "args": {"Addr": 7, "Bytes": 64, "Total Allocated": 64, "Device Type": 0, "Device Id": -1}},
        {"ph": "s", "id": 3, "pid": 100, "tid": 1, "ts": 2, "cat": "fwdbwd", "name": "fwdbwd"},
        {"ph": "f", "id": 3, "pid": 100, "tid": 2, "ts": 71, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": 0, "args": {"name": "python"}},
        annotation("ProfilerStep#2", 101, 50),
        op("aten::mm", 102, 8),
    ]  # fmt: skip
    top = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "baseTimeNanoseconds": 5}
    plain = {"deviceProperties": [{"id": 0, "name": "chip"}]}
    return [json.dumps({**top, **plain, "traceEvents": events}).encode(), json.dumps(events[:4]).encode()]


def ranks() -> list[bytes]:
    from tests.sources.test_kineto_ranks import rank_events

    info = {"rank": 0, "world_size": 2, "backend": "nccl"}
    return [json.dumps({"distributedInfo": info, "traceEvents": rank_events(100, 112, 560)}).encode()]


def _other_rank() -> dict[str, bytes]:
    return {"other.json": ranks()[0].replace(b'"rank": 0', b'"rank": 1')}


def chakra_json() -> list[bytes]:
    rows = [
        {"Id": 3, "Name": "aten::mm(0)", "NodeType": 4, "runtime": 31, "data_deps": [], "is_cpu_op": True},
        {"Id": 4, "Name": "gemm", "NodeType": 4, "runtime": 2.5, "data_deps": [3], "ctrlDeps": [3], "is_cpu_op": False},
        {"Id": 9, "Name": "all_reduce", "NodeType": 7, "runtime": 8, "data_deps": [3, 4]},
    ]
    return [json.dumps({"workload_graph": rows}).encode()]


def chakra_et() -> list[bytes]:
    from tests.sources.test_chakra import node

    from windtunnel.graph import GraphBuilder
    from windtunnel.sources.chakra.wire import field_bytes, varint
    from windtunnel.sources.chakra.writer import save_chakra

    builder = GraphBuilder()
    first, second = builder.task("a", duration_ns=1500), builder.task("b", duration_ns=20)
    builder.edge(first, second, lag_ns=7, from_start=True)
    with tempfile.TemporaryDirectory() as folder:
        ours = save_chakra(builder.build(), Path(folder) / "a.et")[0].read_bytes()
    attrs = (("comm_type", 9, 0), ("comm_size", 13, 64), ("pg_name", 29, b"dp"), ("is_cpu_op", 27, 0))
    nodes = [node(1, "mm", attrs=(("is_cpu_op", 27, 1),)), node(2, "all_reduce", 7, data=[1], ctrl=[1], attrs=attrs)]
    messages = (("comm_tag", 9, 3), ("comm_dst", 9, 1))
    theirs = varint(7) + field_bytes(1, b"0.0.4") + b"".join(nodes) + node(5, "send", 5, data=[2], attrs=messages)
    return [ours, theirs]


def execution_trace() -> list[bytes]:
    from tests.sources.test_execution_trace import ROOTS, STEP, flat, node

    annotated = [*STEP, node(30, "ProfilerStep#1"), node(31, "aten::mm", STEP[0]["attrs"][-1]["value"], parent=30)]
    nested = {"schema": "1.1.0-chakra.0.0.4", "pid": "1", "nodes": [*ROOTS, *annotated]}
    plain = {"schema": "1.0.1", "pid": "1", "nodes": [flat(one) for one in [*ROOTS, *STEP]]}
    return [json.dumps(nested).encode(), json.dumps(plain).encode()]


def placement() -> list[bytes]:
    nodes = [
        {"id": one, "supportedOnFpga": 1, "cpuLatency": 3.0, "fpgaLatency": 1.0, "size": 2.0, "isBackwardNode": one > 2,
         "colorClass": one % 3}
        for one in range(5)
    ]  # fmt: skip
    edges = [{"sourceId": one, "destId": one + 1, "cost": 0.5} for one in range(4)]
    limits = {"maxSizePerFPGA": 9.0, "maxFPGAs": 2, "maxCPUs": 1}
    return [json.dumps({**limits, "nodes": nodes, "edges": edges}).encode()]


# --- readers ------------------------------------------------------------------------------------------


def _read_kineto(path: Path) -> Any:
    from windtunnel.sources.kineto.reader import load_kineto

    return load_kineto(path)


def _read_ranks(path: Path) -> Any:
    from windtunnel.sources.kineto.reader import load_kineto

    return load_kineto(path.parent)


def _read_chakra(path: Path) -> Any:
    from windtunnel.sources.chakra.reader import load_chakra

    return load_chakra(path)


def _read_execution_trace(path: Path) -> Any:
    from windtunnel.sources.execution_trace.reader import load_execution_trace

    return load_execution_trace(path)


def _read_stored(path: Path) -> Any:
    from windtunnel.graph import load

    return load(path.parent)


def _read_placement(path: Path) -> Any:
    from windtunnel.systems.placement.formats import read_problem

    return read_problem(path)


def _read_memory(path: Path) -> Any:
    from windtunnel.sources.memory.profile import MemoryProfile

    profile = MemoryProfile.load(path)
    return str(profile), profile.summary(), profile.to_dict()


def _read_programs(path: Path) -> Any:
    from windtunnel.systems.tensor_programs.program_set import ProgramSet

    return ProgramSet.load(path)


def _read_ledger(path: Path) -> Any:
    from windtunnel.flights.ledger import Ledger

    book = Ledger(path)
    return [str(one) + one.json() for one in book.receipts()], book.residuals(), len(book)


def _of(maker: Callable[[], list[bytes]]) -> Callable[[], list[bytes]]:
    return lambda: [gzip.compress(data, 6) for data in maker()]


_TEXT = (mutants.changed_bytes, mutants.changed_text, mutants.changed_json)
_WIRE = (mutants.changed_bytes, mutants.changed_wire, mutants.changed_wire)
_TABLE = (mutants.changed_bytes, mutant_tables.changed_parquet, mutant_tables.changed_parquet)


def _table(name: str) -> Callable[[], list[bytes]]:
    return lambda: [mutant_tables.stored_files()[name]]


SUBJECTS = {
    "kineto": Subject(20, "t.json", kineto, _TEXT, _read_kineto),
    "kineto.gz": Subject(5, "t.json.gz", _of(kineto), tuple(map(mutants.packed, _TEXT)), _read_kineto),
    "kineto ranks": Subject(5, "t.json", ranks, _TEXT, _read_ranks, _other_rank),
    "chakra.json": Subject(10, "c.json", chakra_json, _TEXT, _read_chakra),
    "chakra.json.gz": Subject(3, "c.json.gz", _of(chakra_json), tuple(map(mutants.packed, _TEXT)), _read_chakra),
    "chakra.et": Subject(10, "c.et", chakra_et, _WIRE, _read_chakra),
    "chakra.et.gz": Subject(3, "c.et.gz", _of(chakra_et), tuple(map(mutants.packed, _WIRE)), _read_chakra),
    "execution_trace": Subject(12, "e.json", execution_trace, _TEXT, _read_execution_trace),
    "placement": Subject(5, "p.json", placement, _TEXT, _read_placement),
    "meta.json": Subject(8, "meta.json", _table("meta.json"), _TEXT, _read_stored, mutant_tables.stored_files),
    "tasks": Subject(5, "tasks.parquet", _table("tasks.parquet"), _TABLE, _read_stored, mutant_tables.stored_files),
    "edges": Subject(3, "edges.parquet", _table("edges.parquet"), _TABLE, _read_stored, mutant_tables.stored_files),
    "resources": Subject(
        3, "resources.parquet", _table("resources.parquet"), _TABLE, _read_stored, mutant_tables.stored_files
    ),
    "memory": Subject(2, "m.parquet", mutant_tables.memory, _TABLE, _read_memory),
    "programs": Subject(
        2, "p.npz", mutant_tables.program_set, (mutants.changed_bytes, mutant_tables.changed_npz), _read_programs
    ),
    "ledger": Subject(
        4,
        "receipts.db",
        mutant_tables.ledger,
        (mutants.changed_bytes, mutant_tables.changed_rows, mutant_tables.changed_rows),
        _read_ledger,
    ),
}
