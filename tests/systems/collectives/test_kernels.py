"""Kernels: source that reads like the program, and the same bits as NumPy."""

import numpy as np
import pytest

from windtunnel.systems.collectives.build import Builder
from windtunnel.systems.collectives.dropout import keep_mask
from windtunnel.systems.collectives.kernel_source import index_expression, make_kernel
from windtunnel.systems.collectives.layouts import numpy_dtype
from windtunnel.systems.collectives.workloads import sgd, workload

SIZES = {"range": 60, "whole": 12, "scalar": 1, "sum": 1}


def arrays_for(kernel, seed=0):
    generator = np.random.default_rng(seed)
    return [(generator.random(SIZES[item.role]) + 0.5).astype(item.dtype) for item in kernel.arguments]


def pointwise_names(program):
    return [stage.name for stage in program.stages if not stage.communicates and stage.op != "matmul"]


def kernel_of(program, names):
    updates = {name: program.by_name[name].operands[0] for name in names if program.by_name[name].op == "update"}
    return make_kernel(program, names, list(updates) or [names[-1]], updates)


def test_the_source_of_a_kernel_reads_like_the_program():
    program = sgd(num_parameters=8)

    assert (
        """\
def kernel_fused_w_new(first, base, g_sum, u, lr, w):
    lr_0 = lr[0]
    for i in range(g_sum.size):
        g_sum_i = g_sum[i]
        u_i = u[i]
        w_i = w[i]
        t2 = float32(g_sum_i * float32(0.5))
        t3 = float32(float32(0.9) * u_i)
        t4 = float32(t3 + t2)
        u_new = t4
        t6 = float32(lr_0 * u_new)
        t7 = float32(w_i - t6)
        w_new = t7
        u[i] = u_new
        w[i] = w_new
"""
        == kernel_of(program, pointwise_names(program)).source
    )


@pytest.mark.parametrize(("name", "num_stages"), [("adam", 30), ("lamb", 17), ("tensor-parallel", 30), ("pipeline", 3)])
def test_a_compiled_kernel_has_the_bits_of_numpy(name, num_stages):
    sizes = {} if name in ("adam", "lamb") else {"batch": 1, "sequence": 5, "hidden": 12}
    program = workload(name, **sizes)
    kernel = kernel_of(program, pointwise_names(program)[:num_stages])
    compiled, interpreted = arrays_for(kernel), arrays_for(kernel)

    kernel(compiled, first=24)
    kernel(interpreted, first=24, compiled=False)

    assert [array.tobytes() for array in compiled] == [array.tobytes() for array in interpreted]


def test_a_sum_of_pieces_has_the_bits_of_the_sum_of_all():
    builder = Builder("sum", 1)
    item = builder.declare_replicated("x", (60,))
    program = builder.program(builder.apply("sum_squares", item, name="total"))
    kernel = make_kernel(program, ["total"], [])
    values, expected = np.random.default_rng(1).standard_normal(60).astype(np.float32), np.zeros(1)
    kernel([values, expected])
    for is_compiled in (True, False):
        total = np.zeros(1)
        for start in range(0, 60, 7):
            kernel([values[start : start + 7], total], first=start, compiled=is_compiled)

        assert total.tobytes() == expected.tobytes()


def test_every_operator_has_the_bits_of_numpy():
    builder = Builder("operators", 1)
    a, b, c = (builder.declare_replicated(name, (5, 12)) for name in "abc")
    column, bias = builder.declare_replicated("column", (5, 1)), builder.declare_replicated("bias", (12,))
    values = [a + b, a - bias, a * column, a / b, -a, builder.sqrt(builder.relu(a)), builder.apply("square", b)]
    values += [builder.apply("maximum", a, b), builder.apply("greater", a, 0.1), builder.select(c, a, 2.0)]
    values += [
        builder.dropout(a, 0.4, seed=3, step=builder.declare_replicated("step", ())),
        builder.apply("cast", a, dtype="float64"),
    ]
    program = builder.program(*values)
    names = [stage.name for stage in program.stages]
    kernel = make_kernel(program, names, [value.name for value in values])
    compiled, interpreted = arrays_for(kernel), arrays_for(kernel)
    for arrays in (compiled, interpreted):
        for item, array in zip(kernel.arguments, arrays, strict=True):
            array -= 1.0 if item.name in "abc" else 0.0
            array[: 3 if item.name == "c" else 0] = 0.0

    kernel(compiled)
    kernel(interpreted, compiled=False)

    assert [array.tobytes() for array in compiled] == [array.tobytes() for array in interpreted]


@pytest.mark.parametrize("operand", [(2, 3, 4), (4,), (3, 1), (2, 1, 4), (2, 1, 1), (1, 3, 4), ()])
def test_indices_of_operands_that_broadcast_are_those_of_numpy(operand):
    size = int(np.prod(operand))
    expected = np.broadcast_to(np.arange(size).reshape(operand), (2, 3, 4)).reshape(-1)
    indices = eval(index_expression((2, 3, 4), operand), {"first": np.arange(24), "i": 0})

    assert expected.tolist() == np.broadcast_to(indices, 24).tolist()


def test_dropout_of_columns_is_a_slice_of_the_whole_mask():
    builder = Builder("columns", 2)
    item = builder.declare_sliced("x", (5, 6), 1)
    program = builder.program(builder.dropout(item, 0.5, seed=9))
    full = keep_mask(9, np.arange(30).reshape(5, 6), 0.5)
    for rank in (0, 1):
        kernel = make_kernel(program, ["t1"], ["t1"], rank=rank)
        values, result = np.ones(15, np.float32), np.zeros(15, np.float32)
        kernel([values, result], base=3 * rank)

        assert full[:, 3 * rank : 3 * rank + 3].tolist() == (result.reshape(5, 3) != 0).tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_runs_without_a_compiler(dtype):
    builder = Builder("half", 1)
    item = builder.declare_replicated("x", (4,), dtype)
    program = builder.program(item * 3.0)
    kernel = make_kernel(program, ["t1"], ["t1"])
    result = np.zeros(4, numpy_dtype(dtype))
    kernel([np.arange(4, dtype=numpy_dtype(dtype)), result])

    assert not kernel.is_compilable
    assert [0.0, 3.0, 6.0, 9.0] == result.tolist()
