"""What a code generator makes of statements: loops that are copied out, sums in registers, lanes that lie apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.systems.tensor_programs.model.code_features import CODE_NAMES, VECTOR_BITS, code_features
from windtunnel.systems.tensor_programs.model.nest import Attribute, Buffer, For, Nest, Store
from windtunnel.systems.tensor_programs.model.statements import Pattern, statements

WIDEST = VECTOR_BITS.index(512)


def load(name, *indices):
    return ("load", name, *indices)


def product(rows=4, depth=64, length=16, max_step=0, is_transposed=False):
    """``C[i, j] += A[i, k] B[k, j]`` with k outside of i, j as lanes."""
    weight = load("B", "j", "k") if is_transposed else load("B", "k", "j")
    value = ("add", load("C", "i", "j"), ("mul", load("A", "i", "k"), weight))
    vector = For("j", length, (Store("C", ("i", "j"), value),), "vectorized")
    loops = For("k", depth, (For("i", rows, (vector,)),), "serial", "reduce")
    shape = (length, depth) if is_transposed else (depth, length)
    buffers = [Buffer("A", (rows, depth)), Buffer("B", shape), Buffer("C", (rows, length))]
    body = Attribute("pragma_auto_unroll_max_step", max_step, (loops,))
    return Nest((body,), {buffer.name: buffer for buffer in buffers}, "product")


def entry(nest, name, width=WIDEST, statement=0):
    return float(code_features(nest)[statement, width, CODE_NAMES.index(f"code.{name}")])


def cycles(nest, name, width=WIDEST, statement=0):
    return 2 ** entry(nest, name, width, statement) - 1


def test_short_loops_are_copied_out_and_their_sums_stay_in_registers():
    assert entry(product(rows=4), "log_copies") == 2  # the rows, but not the depth
    assert entry(product(rows=4), "stays_in_registers") == 1
    assert entry(product(rows=4), "log_live") == pytest.approx(np.log2(1 + 4))
    assert entry(product(rows=4, depth=2), "stays_in_registers") == 0  # nothing is left to stay over


def test_a_pragma_copies_out_what_the_compiler_would_not():
    long = product(rows=128)
    assert entry(long, "log_copies") == 0
    assert entry(product(rows=128, max_step=128), "log_copies") == 7


def test_too_many_sums_spill():
    assert cycles(product(rows=8), "spill") == 0
    assert cycles(product(rows=64, max_step=64), "spill") > 0
    assert cycles(product(rows=16, max_step=16), "spill", VECTOR_BITS.index(256)) > 0  # half as many registers


def test_an_odd_vector_falls_apart_where_it_outlives_a_block_and_does_not_fit():
    assert cycles(product(length=16), "odd_sum") == 0
    assert cycles(product(length=24), "odd_sum") == pytest.approx(2 * 24 * 4 * 64, rel=1e-3)
    assert cycles(product(length=12), "odd_sum") == 0  # is widened to 16, which is one register
    assert cycles(product(length=12), "odd_sum", VECTOR_BITS.index(256)) > 0
    assert cycles(product(length=24, depth=2), "odd_sum") == 0


def test_lanes_that_lie_apart_are_gathered_one_by_one():
    assert cycles(product(), "shuffle") == 0
    assert cycles(product(is_transposed=True), "shuffle") == pytest.approx(16 * 64, rel=1e-3)
    assert entry(product(is_transposed=True), "loads_apart") == 1


def test_wider_vectors_need_fewer_cycles():
    by_width = [cycles(product(length=16), "arithmetic", width) for width in range(len(VECTOR_BITS))]
    assert by_width[0] / by_width[1] == pytest.approx(4, rel=0.01)  # half the lanes, and no fused operation
    assert by_width[1] / by_width[2] == pytest.approx(2, rel=0.01)


def test_lanes_that_decide_for_themselves_are_taken_one_by_one():
    inside = ("select", ("lt", "j", 3), load("A", "j"), 0.0)
    buffers = {"A": Buffer("A", (16,)), "B": Buffer("B", (16,))}
    nest = Nest((For("j", 16, (Store("B", ("j",), inside),), "vectorized"),), buffers)
    assert entry(nest, "is_scalarized") == 1
    assert entry(nest, "log_length") == 0


def test_a_plain_loop_is_made_a_vector_by_the_compiler():
    buffers = {"A": Buffer("A", (4096,)), "B": Buffer("B", (4096,))}
    copy = Nest((For("j", 4096, (Store("B", ("j",), load("A", "j")),)),), buffers)
    assert entry(copy, "is_auto_vectorized") == 1
    assert cycles(copy, "store") == pytest.approx(4096 / 16, rel=1e-3)
    called = Nest((For("j", 4096, (Store("B", ("j",), ("call", "tirx.exp", load("A", "j"))),)),), buffers)
    assert entry(called, "is_auto_vectorized") == 0
    assert cycles(called, "call") > 4096


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=3),
    st.lists(st.integers(-3, 3), min_size=2, max_size=3),
    st.integers(2, 16),
    st.sampled_from(["linear", "floordiv", "floormod"]),
    st.integers(1, 7),
)
def test_patterns_are_those_of_the_addresses(extents, factors, count, kind, divisor):
    """Against every address of the nest, one by one."""
    names = [f"x{at}" for at in range(len(extents))]
    index = 64
    for name, factor in zip(names, factors, strict=False):
        index = ("add", index, ("mul", name, factor))
    index = ("add", index, "lane")
    index = index if kind == "linear" else (kind, index, divisor)
    body = For("lane", count, (Store("out", ("lane",), load("data", index)),), "vectorized")
    for name, extent in zip(names, extents, strict=True):
        body = For(name, extent, (body,))
    buffers = {"out": Buffer("out", (count,)), "data": Buffer("data", (512,))}
    (statement,) = statements(Nest((body,), buffers))

    steps = set()
    for place in np.ndindex(*extents):
        start = 64 + sum(f * x for f, x in zip(factors, place, strict=False))
        row = [start + lane for lane in range(count)]
        row = row if kind == "linear" else [v // divisor if kind == "floordiv" else v % divisor for v in row]
        steps.add(tuple(np.diff(row).tolist()))
    single = {step for row in steps for step in row}
    found = statement.pattern(statement.accesses[1], "lane", count)
    if single == {0}:
        assert found is Pattern.SAME
    elif single == {1}:
        assert found is Pattern.NEXT
    elif len(steps) == 1:
        assert found is Pattern.APART
    else:  # it looks at some places only, and may miss those that differ; but what it says is so somewhere
        assert found is not Pattern.SAME or any(not any(row) for row in steps)
        assert found is not Pattern.NEXT or any(set(row) == {1} for row in steps)


def test_unrolling_by_the_program_counts_all_statements_of_a_loop():
    store = Store("out", ("i",), 1.0)
    two = For("i", 8, (store, store))
    for max_step, is_unrolled in ((15, False), (16, True)):
        nest = Nest((Attribute("pragma_auto_unroll_max_step", max_step, (two,)),), {"out": Buffer("out", (8,))})
        assert [statement.loops[0].is_unrolled for statement in statements(nest)] == [is_unrolled] * 2


def written(value, *, extent=64, outer=8, kind="vectorized"):
    """``B[i, j] = value`` with j as lanes, beside a sum ``S[i] += A[i, j]``."""
    inner = For("j", extent, (Store("B", ("i", "j"), value),), kind)
    body = For("i", outer, (inner,))
    names = {"A": (outer, extent), "B": (outer, extent), "S": (outer,)}
    return Nest((body,), {name: Buffer(name, shape) for name, shape in names.items()}, "written")


def test_what_does_not_change_is_divided_once_a_row():
    each = written(("div", load("A", "i", "j"), 3.0), outer=1000)
    once = written(("mul", load("A", "i", "j"), ("div", 1.0, load("S", "i"))), outer=1000)
    assert cycles(each, "divide") == pytest.approx(1000 * 4 * 10, rel=1e-3)  # four registers a row
    assert cycles(once, "divide") == pytest.approx(1000 * 10, rel=1e-3)


def test_functions_take_as_long_as_they_do_where_their_operands_lie():
    small = written(("call", "tirx.erf", load("A", "i", "j")))
    assert cycles(small, "call") == pytest.approx(13 * 8 * 64, rel=1e-3)
    value = ("add", load("S", "i"), load("A", "i", "j"))
    total = For("i", 8, (For("j", 64, (Store("S", ("i",), value),), "serial", "reduce"),))
    behind = written(("call", "tirx.erf", load("S", "i")))
    nest = Nest((total, *behind.body), behind.buffers, "behind")
    assert entry(nest, "reads_sum", statement=1) == 1
    assert entry(nest, "reads_sum", statement=0) == 0
    assert cycles(nest, "call", statement=1) == pytest.approx(62 * 8, rel=1e-3)  # the same for a whole row


def test_places_that_are_divided_out_cost_unless_they_are_constant():
    def moved(divisor, outer):
        place = ("add", ("mul", "i", 16), "j")
        inside = ("and", ("lt", ("floormod", place, divisor), divisor - 1), ("le", 0, "j"))
        return written(("select", inside, load("A", "i", "j"), 0.0), extent=16, outer=outer)

    assert cycles(moved(7, 1000), "index") == pytest.approx(3 * 16 * 1000, rel=1e-3)
    assert cycles(moved(8, 1000), "index") == 0  # a mask
    assert cycles(moved(7, 2), "index") == 0  # both rows are copied out


def test_sums_side_by_side_know_of_each_other():
    def add(name):
        return Store(name, ("i",), ("add", load(name, "i"), load("A", "i", "j")))

    buffers = {name: Buffer(name, (8,)) for name in ("S", "T")} | {"A": Buffer("A", (8, 64))}
    nest = Nest((For("i", 8, (For("j", 64, (add("S"), add("T")), "serial", "reduce"),)),), buffers)
    assert [entry(nest, "num_beside", statement=at) for at in (0, 1)] == [1, 1]
    assert entry(product(), "num_beside") == 0


def test_features_are_finite_and_one_row_per_store():
    nest = product(max_step=16)
    rows = code_features(nest)
    assert rows.shape == (1, len(VECTOR_BITS), len(CODE_NAMES))
    assert np.isfinite(rows).all()
    assert (rows >= 0).all()
