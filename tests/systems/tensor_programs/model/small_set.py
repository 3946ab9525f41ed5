"""A small program set for tests: nests drawn at random, times computed from work, vectors, threads and traffic.

The times are a formula, not a measurement; nothing that is claimed rests on them.
"""

import json

import numpy as np

from tests.systems.tensor_programs.model.golden_nests import add, around, load, times
from windtunnel.systems.tensor_programs.model.encoding import encode
from windtunnel.systems.tensor_programs.model.nest import Buffer, Nest, Store
from windtunnel.systems.tensor_programs.model.splits import Split, keep, samples_of
from windtunnel.systems.tensor_programs.program_set import ProgramSet

DEVICES = (
    {"name": "slow", "peak_flops_per_s": 2e10, "bandwidth_bytes_per_s": 1e10, "simd_bits": 256},
    {"name": "fast", "peak_flops_per_s": 8e10, "bandwidth_bytes_per_s": 2e10, "simd_bits": 512},
)


def matmul(m, n, k, tile, vector, is_parallel):
    i, j = add(times("i_o", tile), "i_i"), add(times("j_o", vector), "j_i")
    update = Store("C", (i, j), add(load("C", i, j), ("mul", load("A", i, "k"), load("B", "k", j))))
    loops = (
        ("i_o", m // tile, "parallel" if is_parallel else "serial"),
        ("j_o", n // vector),
        ("k", k, "serial", "reduce"),
        ("i_i", tile),
        ("j_i", vector, "vectorized" if vector > 1 else "serial"),
    )
    clear = around((Store("C", ("i", "j"), 0.0),), ("i", m), ("j", n))
    buffers = {"A": Buffer("A", (m, k)), "B": Buffer("B", (k, n)), "C": Buffer("C", (m, n))}
    return Nest((*clear, *around((update,), *loops)), buffers, f"matmul {m} {n} {k}")


def chain(m, n, length, vector, is_parallel):
    value = load("X", "i", add(times("j_o", vector), "j_i"))
    for _ in range(length):
        value = ("max", ("mul", value, 1.5), 0.0)
    store = Store("Y", ("i", add(times("j_o", vector), "j_i")), value)
    kind = "vectorized" if vector > 1 else "serial"
    loops = (("i", m, "parallel" if is_parallel else "serial"), ("j_o", n // vector), ("j_i", vector, kind))
    return Nest(
        around((store,), *loops), {"X": Buffer("X", (m, n)), "Y": Buffer("Y", (m, n))}, f"chain {m} {n} {length}"
    )


def seconds(flops, num_bytes, vector, is_parallel, device):
    rate = device["peak_flops_per_s"] / 16 * min(vector, 8) * (1.8 if is_parallel else 1.0)
    return 2e-6 * (1 + is_parallel) + flops / rate + num_bytes / device["bandwidth_bytes_per_s"]


def draw(generator, task):
    vector, is_parallel = int(generator.choice([1, 4, 8, 16])), bool(generator.integers(2))
    if task["kind"] == "matmul":
        m, n, k = task["shape"]
        nest = matmul(m, n, k, int(generator.choice([1, 4, 8])), vector, is_parallel)
        flops, num_bytes = 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n)
    else:
        m, n, length = task["shape"]
        nest = chain(m, n, length, vector, is_parallel)
        flops, num_bytes = 2.0 * m * n * length, 8.0 * m * n
    return encode(nest), flops, num_bytes, vector, is_parallel


def small_set(num_tasks=12, per_task=10, seed=0):
    """A program set of matmuls (two leaves) and elementwise chains (one leaf) on two imagined devices."""
    generator = np.random.default_rng(seed)
    tasks, columns = [], {name: [] for name in ("tree", "task", "mean_s", "flops", "sched", "encoded")}
    for number in range(num_tasks):
        kind = "matmul" if number % 2 == 0 else "chain"
        sizes = [int(size) for size in generator.choice([16, 32, 64, 128], 3)]
        shape = sizes if kind == "matmul" else [*sizes[:2], number % 6 + 1]
        networks = {f"net-{number % 3}": 1 + number % 2}
        tasks.append({"kind": kind, "shape": shape, "ops": [number], "networks": networks})
        for _ in range(per_task):
            encoded, flops, num_bytes, vector, is_parallel = draw(generator, tasks[-1])
            noise = 1 + 0.01 * generator.standard_normal(len(DEVICES))
            mean_s = np.array([seconds(flops, num_bytes, vector, is_parallel, device) for device in DEVICES]) * noise
            sched = np.zeros((25, 22), dtype=np.int16)
            sched[0, :3], sched[1, :3] = (1, vector, 1), (2, int(is_parallel), 2)
            tasks[-1] |= {"flops": flops, "bytes": num_bytes}
            for name, value in zip(columns, (encoded.serialized, number, mean_s, flops, sched, encoded), strict=True):
                columns[name].append(value)
    offsets = lambda parts: np.concatenate([[0], np.cumsum([len(part) for part in parts])])  # noqa: E731
    encoded = columns["encoded"]
    mean_s = np.array(columns["mean_s"], dtype=np.float32)
    return ProgramSet(
        features=np.concatenate([one.features for one in encoded]).astype(np.float16),
        code=np.concatenate([one.code for one in encoded]).astype(np.float16),
        leaf_offset=offsets([one.leaf_ids for one in encoded]).astype(np.int32),
        leaf_pos=np.concatenate([one.positions for one in encoded]),
        tree=np.concatenate(columns["tree"]),
        tree_offset=offsets(columns["tree"]).astype(np.int32),
        task=np.array(columns["task"], dtype=np.int32),
        sched=np.array(columns["sched"]),
        mean_s=mean_s,
        std_s=mean_s * np.float32(0.01),
        flops=np.array(columns["flops"]),
        devices=tuple(json.loads(json.dumps(DEVICES))),
        tasks=tuple(tasks),
        meta={"processor": "a formula", "seed": seed},
    )


def split_sorted(programs, device):
    """The released split: sort by time, every fifth sample is the verdict. Tasks lie on both sides."""
    passes = keep(programs)
    column = programs.column(device)
    rows = np.flatnonzero(passes[:, column])
    rows = rows[np.argsort(programs.mean_s[rows, column], kind="stable")]
    is_test = np.arange(rows.size) % 5 == 4
    is_validation = np.arange(rows.size) % 5 == 2

    def chosen(mask):
        return samples_of(rows[mask], [column], passes)

    train = chosen(~is_test & ~is_validation)
    return Split("sorted", train, chosen(is_validation), chosen(is_test), train[:0])
