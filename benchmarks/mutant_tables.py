"""What windtunnel itself stores, made wrong on purpose, for the bar ``fuzz``: graphs, profiles, sets, the ledger.

In: nothing, or a good file and a random generator. Out: good files, and wrong ones. Not here: text (``mutants``).
"""

from __future__ import annotations

import io
import random
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import mutants

__all__ = [
    "changed_npz",
    "changed_parquet",
    "changed_rows",
    "ledger",
    "memory",
    "program_set",
    "stored_files",
]


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
    from tests.systems.tensor_programs.model.small_set import small_set

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
