"""The three programs whose statement features are published, built by hand from their description."""

from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.features import PackedNest
from windtunnel.systems.tensor_programs.model.nest import Allocate, Attribute, Buffer, For, Nest, Store

SIZE = 512


def add(*terms):
    total = terms[0]
    for term in terms[1:]:
        total = ("add", total, term)
    return total


def times(variable, factor):
    return ("mul", variable, factor)


def load(name, *indices):
    return ("load", name, *indices)


def around(body, *loops):
    """Loops from the outermost inwards, as (variable, extent) or (variable, extent, kind, axis)."""
    for variable, extent, *rest in reversed(loops):
        body = (For(variable, extent, body, *rest),)
    return body


def square(*names, size=SIZE):
    return {name: Buffer(name, (size, size)) for name in names}


def cpu_matmul():
    i, j = add(times("i_o", 16), "i_i"), add(times("j_o", 8), "j_i")
    update = Store("C", (i, j), add(load("C", i, j), ("mul", load("A", i, "k"), load("B", "k", j))))
    tiled = around(
        (update,),
        ("i_o", 32, "parallel"),
        ("j_o", 64, "parallel"),
        ("k", SIZE, "unrolled", "reduce"),
        ("j_i", 8, "vectorized"),
        ("i_i", 16),
    )
    initial = around((Store("C", ("i", "j"), 0.0),), ("i", SIZE), ("j", SIZE))
    return Nest((*initial, *tiled), square("A", "B", "C"), "cpu_matmul")


def cpu_fusion():
    copies = (Store("B", ("i", "j"), load("A", "i", "j")), Store("C", ("i", "j"), load("B", "i", "j")))
    return Nest(around(copies, ("i", 64), ("j", 32)), {name: Buffer(name, (64, 32)) for name in "ABC"}, "cpu_fusion")


def gpu_matmul():
    block, virtual, thread = "blockIdx_x", "vthread_x", "threadIdx_x"
    row = add(times("a", 8), ("floordiv", thread, 2))
    value = load("A", row, add(times("k_0", 2), ("floormod", thread, 2)))
    stage_a = around((Store("A_shared", (row, ("floormod", thread, 2)), value),), ("a", 64))
    column = times(("floormod", "b", 4), 16)
    value = load("B", add(times("k_0", 2), ("floordiv", "b", 4)), add(times(block, 64), column, thread))
    stage_b = around((Store("B_shared", (("floordiv", "b", 4), add(column, thread)), value),), ("b", 8))
    product = (
        "mul",
        load("A_shared", add(times(thread, 32), "i_3"), "k_2"),
        load("B_shared", "k_2", add(times(virtual, 16), "j_4")),
    )
    update = Store("C_local", ("i_3", "j_4"), add(load("C_local", "i_3", "j_4"), product))
    updates = around((update,), ("i_3", 32), ("k_2", 2, "serial", "reduce"), ("j_4", 16))
    clear = around((Store("C_local", ("i_c", "j_c"), 0.0),), ("i_c", 32), ("j_c", 16))
    place = (add(times(thread, 32), "i_w"), add(times(block, 64), times(virtual, 16), "j_w"))
    write = around((Store("C", place, load("C_local", "i_w", "j_w")),), ("i_w", 32), ("j_w", 16))
    staged = (Allocate("A_shared"), Allocate("B_shared"), *stage_a, *stage_b, *updates)
    body = (Allocate("C_local", (*clear, *around(staged, ("k_0", 256, "serial", "reduce")), *write)),)
    for variable, extent, name in ((thread, 16, "threadIdx.x"), (virtual, 4, "vthread"), (block, 8, "blockIdx.x")):
        body = (For(variable, extent, body, kind="thread", thread=name),)
    buffers = square("A", "B", "C")
    buffers |= {"A_shared": Buffer("A_shared", (SIZE, 2)), "B_shared": Buffer("B_shared", (2, 64))}
    buffers["C_local"] = Buffer("C_local", (32, 16))
    unrolled = Attribute("pragma_auto_unroll_max_step", 1024, body)
    return Nest((unrolled,), buffers, "gpu_matmul", is_gpu=True)


GOLDEN = {"cpu_matmul": cpu_matmul, "cpu_fusion": cpu_fusion, "gpu_matmul": gpu_matmul}


def statement_features(nest, mode="full", collect="store"):
    """Rows of a nest, [S, 164]: one per store ("store"), or one per stored buffer as the released extractors do."""
    packed = PackedNest(nest, skip_constants=collect == "buffer")
    if not packed.store_table:
        raise InputError("this program stores nothing, so it has no features", where=nest.name or "nest")
    rows = packed.rows(mode)
    if collect == "buffer":
        last = {store[5]: index for index, store in enumerate(packed.store_table)}  # keeps the order of first stores
        rows = rows[list(last.values())]
    return rows
