"""The numeric half of the 164 entries, compiled: packed statements in, rows out.

In: the arrays that ``features.pack`` lays out. Out: one float64 row per store. Not here: trees, expressions, names.
Index expressions arrive as postfix code: pairs (operation, argument).
"""

# S stores, L loops of the nest, n loops around one store, A accesses, R index expressions, B buffers

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["ADD", "CONSTANT", "FLOORDIV", "FLOORMOD", "MAXIMUM", "MINIMUM", "MULTIPLY", "SUBTRACT", "UNION", "UNKNOWN"]
__all__ += ["LINE_BYTES", "STACK", "VARIABLE", "is_absent", "statement_rows", "touch"]

CONSTANT, VARIABLE, ADD, SUBTRACT, MULTIPLY, FLOORDIV, FLOORMOD, MINIMUM, MAXIMUM, UNION, UNKNOWN = range(11)
STACK = 64
LINE_BYTES = 64
NUM_BUFFERS = 5
BUFFER_WIDTH = 18
WIDTH = 164
GPU, BUFFERS, INTENSITY, ALLOCATION = 49, 57, 147, 157


@numba.njit(cache=True)
def _slog(value: Any) -> Any:
    # A signed logarithm: features span many orders of magnitude, and differences may be negative.
    return np.log2(value + 1) if value >= 0 else -np.log2(1 - value)


@numba.njit(cache=True)
def _remainder(low: int, high: int, base: int, modulus: int, is_compat: bool) -> Any:
    """Interval of a remainder; the released extractor takes it as the point at the loops' minima."""
    # Without a wrap between both ends the remainder is monotone; else it may be anything below the modulus.
    if low // modulus == high // modulus:
        return low % modulus, high % modulus
    if is_compat and low >= 0:
        return base % modulus, base % modulus
    return 0, modulus - 1


@numba.njit(cache=True)
def _interval(code: Any, low: Any, high: Any, minimum: Any, dimension: int, is_compat: bool, stack: Any) -> Any:
    """Return the interval of an index when each loop variable lies in ``low .. high``."""
    # ``code`` is the index in postfix form; the stack holds (low, high, value at the loops' minima) of each operand
    top = -1
    for step in range(code.shape[0]):
        operation, argument = code[step, 0], code[step, 1]
        if operation == CONSTANT:
            top += 1
            stack[top, 0], stack[top, 1], stack[top, 2] = argument, argument, argument
        elif operation == VARIABLE:
            top += 1
            stack[top, 0], stack[top, 1], stack[top, 2] = low[argument], high[argument], minimum[argument]
        elif operation == UNKNOWN:
            top += 1
            stack[top, 0], stack[top, 1], stack[top, 2] = 0, dimension - 1, 0
        else:
            top -= 1
            _combine(operation, stack, top, is_compat)
    return stack[0, 0], stack[0, 1]


@numba.njit(cache=True)
def _combine(operation: int, stack: Any, top: int, is_compat: bool) -> None:
    # Interval arithmetic: exact for one occurrence of each variable, else an outer bound. The result takes
    # the position of the first operand on the stack.
    a_low, a_high, a_base = stack[top, 0], stack[top, 1], stack[top, 2]
    b_low, b_high, b_base = stack[top + 1, 0], stack[top + 1, 1], stack[top + 1, 2]
    if operation == ADD:
        a_low, a_high, a_base = a_low + b_low, a_high + b_high, a_base + b_base
    elif operation == SUBTRACT:
        a_low, a_high, a_base = a_low - b_high, a_high - b_low, a_base - b_base
    elif operation == MULTIPLY:
        corners = (a_low * b_low, a_low * b_high, a_high * b_low, a_high * b_high)
        a_low, a_high, a_base = min(corners), max(corners), a_base * b_base
    elif operation == FLOORDIV:
        divisor = max(b_low, 1)
        a_low, a_high, a_base = a_low // divisor, a_high // divisor, a_base // divisor
    elif operation == FLOORMOD:
        modulus = max(b_low, 1)
        a_low, a_high = _remainder(a_low, a_high, a_base, modulus, is_compat)
        a_base = a_base % modulus
    elif operation == MINIMUM:
        a_low, a_high, a_base = min(a_low, b_low), min(a_high, b_high), min(a_base, b_base)
    elif operation == MAXIMUM:
        a_low, a_high, a_base = max(a_low, b_low), max(a_high, b_high), max(a_base, b_base)
    else:
        a_low, a_high = min(a_low, b_low), max(a_high, b_high)
    stack[top, 0], stack[top, 1], stack[top, 2] = a_low, a_high, a_base


@numba.njit(cache=True)
def _coefficient(code: Any, loop: int, stack: Any) -> Any:
    """Return the factor of a loop variable in an index; divisions and remainders let the factor through."""
    # stack rows: (constant part, factor of the loop); only constants keep their value, which products need
    top = -1
    for step in range(code.shape[0]):
        operation, argument = code[step, 0], code[step, 1]
        if operation in (CONSTANT, VARIABLE, UNKNOWN):
            top += 1
            stack[top, 0] = argument if operation == CONSTANT else 0
            stack[top, 1] = 1 if operation == VARIABLE and argument == loop else 0
            continue
        top -= 1
        a, b = stack[top, 1], stack[top + 1, 1]
        if operation == ADD:
            stack[top, 1] = a + b
        elif operation == SUBTRACT:
            stack[top, 1] = a - b
        elif operation == MULTIPLY:
            stack[top, 1] = a * stack[top + 1, 0] + b * stack[top, 0]
        elif a == 0:
            stack[top, 1] = b
    return abs(stack[0, 1])


@numba.njit(cache=True)
def _mentions(code: Any, loop: int) -> bool:
    for step in range(code.shape[0]):  # noqa: SIM110  numba has no any()
        if code[step, 0] == VARIABLE and code[step, 1] == loop:
            return True
    return False


@numba.njit(cache=True)
def touch(access: Any, dims: int, rows: Any, code: Any, low: Any, high: Any, minimum: Any, shape: Any,
           is_compat: bool, stack: Any, extents: Any) -> float:  # fmt: skip
    """Return the elements in the bounding box of all index sets of an access; fill ``extents`` [dims]."""
    num_elements = 1.0
    for dim in range(dims):
        first, last = 1 << 62, -(1 << 62)
        for row in range(access[2] + dim, access[3], dims):
            a, b = _interval(code[rows[row, 0] : rows[row, 1]], low, high, minimum, shape[dim], is_compat, stack)
            first, last = min(first, a), max(last, b)
        extents[dim] = last - first + 1
        num_elements *= extents[dim]
    return num_elements


@numba.njit(cache=True)
def _stride(access: Any, dims: int, rows: Any, code: Any, shape: Any, loop: int, stack: Any) -> int:
    """Return the stride of a loop in elements: minimum over the index sets that mention it, 0 where none does."""
    # row-major: from the last dimension on, the first one that moves decides, since later ones stand still
    least = 0
    for begin in range(access[2], access[3], dims):
        step = 1
        for dim in range(dims - 1, -1, -1):
            row = begin + dim
            factor = _coefficient(code[rows[row, 0] : rows[row, 1]], loop, stack)
            if factor != 0:
                least = factor * step if least == 0 else min(least, factor * step)
                break
            step *= shape[dim]
    return least


@numba.njit(cache=True)
def is_absent(access: Any, rows: Any, code: Any, loop: int) -> bool:
    """Whether no index of an access depends on a loop."""
    for row in range(access[2], access[3]):  # noqa: SIM110
        if _mentions(code[rows[row, 0] : rows[row, 1]], loop):
            return False
    return True


@numba.njit(cache=True)
def _bytes_under(total: Any, loop: int, element_bytes: Any) -> float:
    # Bytes of all buffers that are touched while a loop runs.
    result = 0.0
    for buffer in range(total.shape[1]):
        result += total[loop, buffer] * element_bytes[buffer]
    return result


@numba.njit(cache=True)
def _reuse(access: Any, rows: Any, code: Any, around: Any, extent: Any, count: Any, total: Any, least: Any,
           element_bytes: Any, out: Any) -> None:  # fmt: skip
    """Fill ``out`` with kind, distance in iterations, distance in bytes and count of the innermost reuse."""
    # kind 1: a loop that the access does not depend on repeats it; kind 2: another access reads the same buffer
    for entry in range(out.size):  # numba compiles loops many times faster than slices
        out[entry] = 0.0
    inside = 1.0
    n = around.shape[0]
    buffer = access[0]
    for i in range(n - 1, -1, -1):
        loop = around[i]
        if is_absent(access, rows, code, loop):
            out[0], out[1], out[3] = 1.0, inside, extent[loop]
            if i == n - 1:  # the released extractor counts entries here, not elements
                for other in range(count.shape[1]):
                    out[2] += count[loop, other] * element_bytes[other]
            else:
                out[2] = _bytes_under(total, around[i + 1], element_bytes)
            return
        if count[loop, buffer] >= 2:
            out[0], out[1], out[3] = 2.0, least[loop, buffer] / extent[loop], count[loop, buffer] - 1
            out[2] = _bytes_under(total, loop, element_bytes) / extent[loop]
            return
        inside *= extent[loop]


@numba.njit(cache=True)
def _buffer_entries(kind: int, size: int, numel: float, continuous: float, min_stride: int, inside: float,
                    is_innermost: bool, product: float, n: int, reuse: Any, out: Any) -> None:  # fmt: skip
    """The 18 entries of one buffer, before ``slog``: 0-2 and 7-9 are one-hot."""
    for entry in range(out.size):  # numba compiles loops many times faster than slices
        out[entry] = 0.0
    out[kind] = 1.0
    unique_bytes, lines, unique_lines = 1.0, 1.0, 1.0
    if n > 0:
        unique_bytes = size * numel
        lines = max(1.0, product / inside * min(1.0, min_stride * size / LINE_BYTES))
        unique_lines = max(1.0, unique_bytes / min(float(LINE_BYTES), continuous))
    out[3], out[4], out[5], out[6] = size * product, unique_bytes, lines, unique_lines
    out[7 + (0 if reuse[0] == 1.0 else 1 if reuse[0] == 2.0 else 2)] = 1.0
    out[10], out[11], out[12] = reuse[1], reuse[2], reuse[3]
    divisor = reuse[3] if reuse[3] > 0 else 0.5
    for entry in range(4):
        out[13 + entry] = out[3 + entry] / divisor
    out[17] = min_stride if is_innermost else 0.0


@numba.njit(cache=True)
def _position(around: Any, kinds: Any, axis: Any, kind: int) -> int:
    """Return the position of the annotated loops among those of their axis: 1-6, or 7 where they differ."""
    # (inner, middle, outer) x (spatial, reduction) axis = 1 .. 6
    result = 0
    n = around.shape[0]
    for i in range(n):
        if kinds[around[i]] != kind:
            continue
        is_first, is_last = True, True
        for j in range(n):
            if axis[around[j]] == axis[around[i]]:
                is_first = is_first and j >= i
                is_last = is_last and j <= i
        index = 1 if is_last else 3 if is_first else 2
        index += 3 * axis[around[i]]
        if result not in (0, index):
            return 7
        result = index
    return result


@numba.njit(cache=True)
def _annotations(around: Any, extent: Any, kinds: Any, axis: Any, is_compat: bool, row: Any) -> None:
    for slot in range(3):  # vectorized, unrolled, parallel
        number, product, length = 0, 1.0, 0.0
        for i in range(around.shape[0]):
            if kinds[around[i]] == slot + 1:
                number += 1
                product *= extent[around[i]]
                length = extent[around[i]]
        begin = 16 + 11 * slot
        if number == 0:
            row[begin + 3] = 1.0
            continue
        row[begin], row[begin + 1], row[begin + 2] = _slog(number), _slog(product), _slog(length)
        row[begin + 3 + (7 if is_compat else _position(around, kinds, axis, slot + 1))] = 1.0


@numba.njit(cache=True)
def _threads(around: Any, extent: Any, thread: Any, is_gpu: bool, row: Any) -> None:
    # The seven are blockIdx x, y, z, threadIdx x, y, z and the virtual thread; 1 where a loop is bound to none.
    row[GPU] = 1.0 if is_gpu else 0.0
    lengths = np.ones(7)
    for i in range(around.shape[0]):
        if thread[around[i]] >= 0:
            lengths[thread[around[i]]] *= extent[around[i]]
    for slot in range(7):
        row[GPU + 1 + slot] = _slog(lengths[slot])


@numba.njit(cache=True)
def _intensity(float_ops: float, around: Any, extent: Any, memory: Any, row: Any) -> None:
    """Fill ten samples of float operations per byte over growing loop suffixes."""
    # ops[j]: operations of the j + 1 innermost loops; ratios are interpolated at 10 %, 20 % ... of all operations
    n = around.shape[0]
    if n == 0 or float_ops <= 0:
        return
    ops = np.empty(n)
    work = float_ops
    for j in range(n):
        work *= extent[around[n - 1 - j]]
        ops[j] = work
    for k in range(10):
        target = (k + 1) / 10 * ops[n - 1]
        j = 0
        while ops[j] < target - 1e-4 and j < n - 1:
            j += 1
        value = ops[j] / memory[n - 1 - j]
        if j > 0:
            before = ops[j - 1] / memory[n - j]
            value = before + (target - ops[j - 1]) / (ops[j] - ops[j - 1]) * (value - before)
        row[INTENSITY + k] = _slog(value)


@numba.njit(cache=True)
def _write_buffers(table: Any, accesses: Any, rank: Any, row: Any) -> None:
    """Write the entries of the five most accessed buffers, by lines, then bytes, then name."""
    # A selection sort that stops after five: a row has a fixed width, however many buffers a statement has.
    num = table.shape[0]
    used = np.zeros(num, dtype=np.bool_)
    for slot in range(min(NUM_BUFFERS, num)):
        best = -1
        for a in range(num):
            if used[a]:
                continue
            if best < 0 or (-table[a, 5], -table[a, 3], rank[accesses[a, 0]]) < (
                -table[best, 5],
                -table[best, 3],
                rank[accesses[best, 0]],
            ):
                best = a
        used[best] = True
        begin = BUFFERS + BUFFER_WIDTH * slot
        for entry in range(BUFFER_WIDTH):
            is_flag = entry < 3 or 7 <= entry < 10
            row[begin + entry] = table[best, entry] if is_flag else _slog(table[best, entry])


@numba.njit(cache=True)
def statement_rows(loops: Any, store_table: Any, ops: Any, outer: Any, loop_ids: Any, accesses: Any, rows: Any,
                   code: Any, buffers: Any, is_gpu: bool, is_compat: bool) -> Any:  # fmt: skip
    """Rows float64 [S, 164] of the packed stores of one nest.

    ``loops`` [L, 5] minimum, extent, annotation, axis, thread; ``store_table`` [S, 6] loops begin and end, accesses
    begin and end, unroll step, stored buffer; ``ops`` [S, 16] per iteration; ``outer`` [S] iterations around the
    allocation; ``accesses`` [A, 4] buffer, kind, rows begin and end; ``rows`` [R, 2] into ``code`` [K, 2]; ``buffers``
    [B, 3 + 8] element bytes, dimensions, rank of the name, extents.
    """
    # Ansor's 164 entries of a row:
    #   0-15 operations | 16-48 annotated loops | 49-56 GPU threads | 57-146 five buffers x 18 | 147-156 intensity
    #   | 157-163 allocation and loops around it
    # Loops are opened from the innermost outwards: with loop i open, ``touch`` covers loop i and inner ones.
    # ``count``, ``total`` and ``least`` go on over statements, because a loop may hold several of them.
    num_stores, num_loops, num_buffers = store_table.shape[0], loops.shape[0], buffers.shape[0]
    minimum, extent = loops[:, 0], loops[:, 1]
    low, high = minimum.copy(), minimum.copy()
    count, total = np.zeros((num_loops, num_buffers)), np.zeros((num_loops, num_buffers))
    least = np.full((num_loops, num_buffers), np.inf)
    stack, extents, reuse = np.zeros((STACK, 3), dtype=np.int64), np.zeros(8, dtype=np.int64), np.zeros(4)
    out = np.zeros((num_stores, WIDTH))
    for s in range(num_stores):
        around = loop_ids[store_table[s, 0] : store_table[s, 1]]
        local = accesses[store_table[s, 2] : store_table[s, 3]]
        n, num = around.shape[0], local.shape[0]
        numel, continuous, memory = np.ones(num), np.ones(num), np.zeros(n)
        for i in range(n - 1, -1, -1):
            loop = around[i]
            high[loop] = minimum[loop] + extent[loop] - 1
            for a in range(num):
                b = local[a, 0]
                dims, shape = buffers[b, 1], buffers[b, 3:]
                numel[a] = touch(local[a], dims, rows, code, low, high, minimum, shape, is_compat, stack, extents)
                memory[i] += numel[a] * buffers[b, 0]
                count[loop, b] += 1
                total[loop, b] += numel[a]
                least[loop, b] = min(least[loop, b], numel[a])
                if i == 0:
                    for dim in range(dims - 1, -1, -1):
                        if extents[dim] == shape[dim]:
                            continuous[a] = extents[dim] * buffers[b, 0]
                            break
        product = 1.0
        for i in range(n):
            high[around[i]] = low[around[i]]
            product *= extent[around[i]]
        table = np.zeros((num, BUFFER_WIDTH))
        for a in range(num):
            b = local[a, 0]
            min_stride, inside, index = 0, 1.0, -1
            for i in range(n - 1, -1, -1):
                min_stride = _stride(local[a], buffers[b, 1], rows, code, buffers[b, 3:], around[i], stack)
                if min_stride != 0:
                    index = i
                    break
                inside *= extent[around[i]]
            _reuse(local[a], rows, code, around, extent, count, total, least, buffers[:, 0], reuse)
            _buffer_entries(local[a, 1], buffers[b, 0], numel[a], continuous[a], min_stride, inside, index == n - 1,
                            product, n, reuse, table[a])  # fmt: skip
        row = out[s]
        for entry in range(16):
            row[entry] = _slog(ops[s, entry] * product)
        _annotations(around, extent, loops[:, 2], loops[:, 3], is_compat, row)
        _threads(around, extent, loops[:, 4], is_gpu, row)
        _write_buffers(table, local, buffers[:, 2], row)
        _intensity(ops[s, :7].sum(), around, extent, memory, row)
        stored = store_table[s, 5]
        elements = 1.0
        for dim in range(buffers[stored, 1]):
            elements *= buffers[stored, 3 + dim]
        row[ALLOCATION] = _slog(elements * buffers[stored, 0])
        row[ALLOCATION + 1] = _slog(elements * outer[s])
        row[ALLOCATION + 2] = _slog(outer[s])
        row[ALLOCATION + 3] = _slog(product / outer[s])
        row[ALLOCATION + 4] = _slog(product)
        row[ALLOCATION + 5] = _slog(n)
        row[ALLOCATION + 6] = _slog(store_table[s, 4])
    return out
