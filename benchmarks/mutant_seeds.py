"""The small good files that the bar ``fuzz`` makes wrong, one set per reader, and how each is read.

Everything is made here: no file of anybody else is needed. Not here: how files are made wrong (``mutants``).
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import bar, mutants

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
    from windtunnel.sources.chakra._wire import field_bytes, varint
    from windtunnel.sources.chakra.reader import save_chakra

    builder = GraphBuilder()
    first, second = builder.task("a", duration_ns=1500), builder.task("b", duration_ns=20)
    builder.edge(first, second, lag_ns=7, from_start=True)
    with tempfile.TemporaryDirectory() as folder:
        ours = save_chakra(builder.build(), Path(folder) / "a.et").read_bytes()
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


def profile() -> list[bytes]:
    from tests.planning.pipelines.test_search import LINES

    return [LINES.encode()]


def placement() -> list[bytes]:
    nodes = [
        {"id": one, "supportedOnFpga": 1, "cpuLatency": 3.0, "fpgaLatency": 1.0, "size": 2.0, "isBackwardNode": one > 2,
         "colorClass": one % 3}
        for one in range(5)
    ]  # fmt: skip
    edges = [{"sourceId": one, "destId": one + 1, "cost": 0.5} for one in range(4)]
    limits = {"maxSizePerFPGA": 9.0, "maxFPGAs": 2, "maxCPUs": 1}
    return [json.dumps({**limits, "nodes": nodes, "edges": edges}).encode()]


# --- what windtunnel stored ---------------------------------------------------------------------------


def _graph() -> Any:
    from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ProcessGroup, ResourceKind

    builder = GraphBuilder()
    cpu = builder.resource("main thread", ResourceKind.HOST_THREAD)
    gpu = builder.resource("stream 7", ResourceKind.STREAM)
    tasks = [builder.task("launch", kind=Kind.HOST, resource=cpu, duration_ns=8_000)]
    tasks += [builder.task(f"gemm {one}", resource=gpu, duration_ns=90_000 + one) for one in range(3)]
    for task in tasks[1:]:
        builder.edge(tasks[0], task, kind=EdgeKind.LAUNCH, lag_ns=4_000, from_start=True)
    graph = builder.build()
    count = graph.num_tasks
    graph = graph.with_columns(
        phase=np.full(count, Phase.FORWARD, np.int8),
        iteration=np.arange(count, dtype=np.int32) // 2,
        rank=np.zeros(count, np.int32),
        samples_ns=np.ones((count, 3), np.int64),
        earliest_ns=np.arange(count, dtype=np.int64),
    )
    graph = graph.scale(graph.select(name="gemm*"), factor=0.5)
    return graph.with_meta(
        source="kineto",
        groups=[ProcessGroup("dp", (0, 1))],
        iteration_ns={"median": 100_000, "samples": [1, 2]},
        profiled_iteration_ns={"median": 100_000, "low": 9, "high": 10, "samples": [1, 2]},
        iterations=("1", "2"),
        hardware={"machine": "x", "num_cores": 2, "devices": []},
        window={"name": "w", "duration_ns": 5},
        distributed={"rank": 0, "world_size": 2},
        parameters={"w": 4},
        loader={"num_workers": 2, "fetch_ns": 5.0},
        world_size=2,
    )


def _stored(folder: Path) -> dict[str, bytes]:
    from windtunnel.graph import save

    return {file.name: file.read_bytes() for file in save(_graph(), folder / "g.wt").iterdir()}


def stored_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return _stored(Path(folder))


def _odd(values: Any, rng: random.Random) -> Any:
    """A column of the same length that holds something else."""
    count = len(values)
    kind = rng.randrange(9)
    if kind == 0:
        return pa.array([None if rng.random() < 0.4 else value for value in values.to_pylist()], values.type)
    if kind == 1:
        return pa.array([rng.choice((-1, 0, 2**31 - 1, 2**62, -(2**63), 2**63 - 1)) for _ in range(count)])
    if kind == 2:
        return pa.array([rng.choice((0.5, float("nan"), float("inf"), -1.0, 1e300)) for _ in range(count)])
    if kind == 3:
        return pa.array([rng.choice(("", "x", "1")) for _ in range(count)])
    if kind == 4:
        texts = pa.array(rng.choice((["a", None], [b"\xff", b"a"], [1, 2], [True, False], [[1], []])))
        return pa.DictionaryArray.from_arrays(pa.array([rng.randrange(2) for _ in range(count)]), texts)
    if kind == 5:
        return pa.array([rng.choice((b"\xff", b"a")) for _ in range(count)]).view(pa.string())
    if kind == 6:
        return rng.choice((pa.nulls(count), pa.array([[1]] * count), pa.array([{"a": 1}] * count)))
    if kind == 7:
        width = rng.choice((0, 1, 3))
        return pa.FixedSizeListArray.from_arrays(pa.array([rng.choice((1, None)) for _ in range(width * count)]), width)
    return pa.array([rng.choice((0, 1, 2, 3, 100)) for _ in range(count)], rng.choice((pa.int64(), pa.uint8())))


def changed_parquet(data: bytes, rng: random.Random) -> bytes:
    """Columns of a table replaced, dropped, renamed, repeated; rows repeated or dropped."""
    try:
        return _changed_table(data, rng)
    except (pa.ArrowException, ValueError):  # no such table can be written
        return mutants.changed_bytes(data, rng)


def _changed_table(data: bytes, rng: random.Random) -> bytes:
    table = pq.read_table(io.BytesIO(data))
    for _ in range(rng.choice((1, 1, 2))):
        if not table.num_columns:
            break
        place = rng.randrange(table.num_columns)
        name = table.column_names[place]
        kind = rng.randrange(8)
        if kind == 0:
            table = table.remove_column(place)
        elif kind == 1:
            table = table.append_column(
                rng.choice((name, f"{name}x", "mine.x", "", "order", "rate")), table.column(place)
            )
        elif kind == 2:
            table = pa.concat_tables([table] * rng.choice((2, 3)))
        elif kind == 3:
            table = table.slice(rng.randrange(table.num_rows + 1), rng.randrange(table.num_rows + 1))
        else:
            column = table.column(place).combine_chunks()
            table = table.set_column(place, name, _odd(column, rng))
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def memory() -> list[bytes]:
    from windtunnel.sources.memory.profile import MemoryProfile

    births = [(0, "birth", 0, "weight", 4096), (5, "birth", 1, "feature map", 1000), (9, "death", 1, "feature map", 0)]
    with tempfile.TemporaryDirectory() as folder:
        return [MemoryProfile.of(births, {"is_fake": False}).save(Path(folder) / "m.parquet").read_bytes()]


def program_set() -> list[bytes]:
    from tests.programs.model.small_set import small_set

    with tempfile.TemporaryDirectory() as folder:
        return [small_set(num_tasks=2, per_task=2).save(Path(folder) / "p.npz").read_bytes()]


def changed_npz(data: bytes, rng: random.Random) -> bytes:
    """Arrays of an npz replaced, dropped or given other types and sizes; its header changed as JSON."""
    arrays = dict(np.load(io.BytesIO(data)))
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    kind = rng.randrange(5)
    if name == "header":
        arrays[name] = np.frombuffer(mutants.changed_json(array.tobytes(), rng), np.uint8)
    elif kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[name] = array[: rng.randrange(len(array) + 1)]
    elif kind == 2:
        arrays[name] = array.astype(rng.choice(("float64", "int8", "U8", "complex64")))
    elif kind == 3:
        arrays[name] = np.full_like(array, rng.choice((-1, 0, 1, 100)))
    else:
        arrays[name] = array.reshape(-1)[: rng.randrange(array.size + 1)]
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def ledger() -> list[bytes]:
    from tests.flights.test_ledger import receipt

    from windtunnel.flights.ledger import Ledger

    with tempfile.TemporaryDirectory() as folder:
        book = Ledger(Path(folder) / "receipts.db")
        for one in (receipt("amp", notes=("a",)), receipt("batch-size", parameters={"factor": 2}, num_rounds=25)):
            book.add(one)
        return [book.path.read_bytes()]


def changed_rows(data: bytes, rng: random.Random) -> bytes:
    """Values of the ledger's rows replaced, or their documents changed as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "l.db"
        path.write_bytes(data)
        connection = sqlite3.connect(path, isolation_level=None)
        column = rng.choice(("document", "document", "log_residual", "whatif", "family", "subject", "date"))
        value: Any = rng.choice(("", "x", 7, 1e308, -0.5, b"\xff", "9" * 500, float("inf")))
        if column == "document" and rng.random() < 0.8:
            document = connection.execute("SELECT document FROM receipts WHERE id = 1").fetchone()[0].encode()
            change = rng.choice((mutants.changed_json, mutants.changed_text, mutants.changed_bytes))
            value = change(document, rng)
            value = value.decode("utf-8", "replace") if rng.random() < 0.9 else value
        connection.execute(f"UPDATE receipts SET {column} = ? WHERE id = 1", (value,))
        if rng.random() < 0.1:
            number = rng.choice((0, 1, 2, 99))
            pragma = rng.choice((f"user_version = {number}", f"application_id = {number}"))
            connection.execute(rng.choice((f"PRAGMA {pragma}", "DROP TABLE receipts", "DELETE FROM receipts")))
        connection.close()
        return path.read_bytes()


# --- readers ------------------------------------------------------------------------------------------


def _read_kineto(path: Path) -> Any:
    from windtunnel.sources.kineto.reader import load_kineto

    return load_kineto(path)


def _read_chakra(path: Path) -> Any:
    from windtunnel.sources.chakra.reader import load_chakra

    return load_chakra(path)


def _read_execution_trace(path: Path) -> Any:
    from windtunnel.sources.execution_trace.reader import load_execution_trace

    return load_execution_trace(path)


def _read_stored(path: Path) -> Any:
    from windtunnel.graph import load

    return load(path.parent)


def _read_profile(path: Path) -> Any:
    from windtunnel.planning.pipelines.profile import read_profile

    return read_profile(path)


def _read_placement(path: Path) -> Any:
    from windtunnel.planning.placement.formats import read_problem

    return read_problem(path)


def _read_memory(path: Path) -> Any:
    from windtunnel.sources.memory.profile import MemoryProfile

    profile = MemoryProfile.load(path)
    return str(profile), profile.summary(), profile.to_dict()


def _read_programs(path: Path) -> Any:
    from windtunnel.programs.program_set import ProgramSet

    return ProgramSet.load(path)


def _read_ledger(path: Path) -> Any:
    from windtunnel.flights.ledger import Ledger

    book = Ledger(path)
    return [str(one) + one.json() for one in book.receipts()], book.residuals(), len(book)


def _of(maker: Callable[[], list[bytes]]) -> Callable[[], list[bytes]]:
    return lambda: [gzip.compress(data, 6) for data in maker()]


_TEXT = (mutants.changed_bytes, mutants.changed_text, mutants.changed_json)
_WIRE = (mutants.changed_bytes, mutants.changed_wire, mutants.changed_wire)
_TABLE = (mutants.changed_bytes, changed_parquet, changed_parquet)
_LINES = (mutants.changed_bytes, mutants.changed_text)


def _table(name: str) -> Callable[[], list[bytes]]:
    return lambda: [stored_files()[name]]


SUBJECTS = {
    "kineto": Subject(20, "t.json", kineto, _TEXT, _read_kineto),
    "kineto.gz": Subject(5, "t.json.gz", _of(kineto), tuple(map(mutants.packed, _TEXT)), _read_kineto),
    "chakra.json": Subject(10, "c.json", chakra_json, _TEXT, _read_chakra),
    "chakra.json.gz": Subject(3, "c.json.gz", _of(chakra_json), tuple(map(mutants.packed, _TEXT)), _read_chakra),
    "chakra.et": Subject(10, "c.et", chakra_et, _WIRE, _read_chakra),
    "chakra.et.gz": Subject(3, "c.et.gz", _of(chakra_et), tuple(map(mutants.packed, _WIRE)), _read_chakra),
    "execution_trace": Subject(12, "e.json", execution_trace, _TEXT, _read_execution_trace),
    "profile": Subject(5, "p.txt", profile, _LINES, _read_profile),
    "placement": Subject(5, "p.json", placement, _TEXT, _read_placement),
    "meta.json": Subject(8, "meta.json", _table("meta.json"), _TEXT, _read_stored, stored_files),
    "tasks": Subject(5, "tasks.parquet", _table("tasks.parquet"), _TABLE, _read_stored, stored_files),
    "edges": Subject(3, "edges.parquet", _table("edges.parquet"), _TABLE, _read_stored, stored_files),
    "resources": Subject(3, "resources.parquet", _table("resources.parquet"), _TABLE, _read_stored, stored_files),
    "memory": Subject(2, "m.parquet", memory, _TABLE, _read_memory),
    "programs": Subject(2, "p.npz", program_set, (mutants.changed_bytes, changed_npz), _read_programs),
    "ledger": Subject(4, "receipts.db", ledger, (mutants.changed_bytes, changed_rows, changed_rows), _read_ledger),
}
