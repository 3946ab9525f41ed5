"""Write the source of kernels: stages that work on tensors of one local shape become one loop.

In: stages of a program, which of their values are stored, names of their memory. Out: a ``Kernel``. Not here: running
it (``kernels``), where values lie (``lower``).

    def fused_w_new(first, base, lr, g, w):      memory, as arguments
        lr_0 = lr[0]                             scalars are computed once
        for i in range(g.size):                  first + i: the element in what the rank stores
            g_i = g[i]                           loads come before stores
            t1 = lr_0 * g_i                      a variable for each value
            w[i] = t1
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from windtunnel.systems.collectives.kernels import Argument, Kernel
from windtunnel.systems.collectives.layouts import FLAT, TensorType, block
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.rules import REDUCTIONS

__all__ = ["clear_kernel", "index_expression", "kernel_space", "make_kernel", "place_of_rank", "total_kernel"]

_RESERVED = frozenset({"np", "i", "first", "base", "stays", "float32", "float64", *keyword.kwlist})
_FORMS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "np.maximum({0}, {1})",
    "greater": "1.0 if {0} > {1} else 0.0",
    "neg": "-{0}",
    "sqrt": "np.sqrt({0})",
    "square": "{0} * {0}",
    "relu": "np.maximum({0}, {dtype}(0))",
    "select": "{1} if {0} != 0 else {2}",
    "cast": "{0}",
}


def place_of_rank(item: TensorType, rank: int, num_ranks: int) -> int:
    """Where the first element that a rank stores is in the full tensor."""
    if not item.layout.is_sliced:
        return 0
    dim = item.layout.dim
    if dim == FLAT:
        return block(item.num_elements, rank, num_ranks)[0]
    return block(item.shape[dim], rank, num_ranks)[0] * math.prod(item.shape[dim + 1 :])


def _global_expression(item: TensorType, rank: int, num_ranks: int) -> str:
    """The place of a local element in the full tensor."""
    if not item.layout.is_sliced or item.layout.dim in (FLAT, 0):
        return "base + first + i"
    inner = max(math.prod(item.local_shape(rank, num_ranks)[item.layout.dim :]), 1)
    outer = math.prod(item.shape[item.layout.dim :])
    return f"base + (first + i) // {inner} * {outer} + (first + i) % {inner}"


def index_expression(shape: Sequence[int], operand: Sequence[int]) -> str:
    """The element of an operand that broadcasts to ``shape``, for element ``first + i`` of the result.

    Examples
    --------
    >>> index_expression((6, 4), (4,))
    '(first + i) % 4'
    >>> index_expression((6, 4), (6, 1))
    '(first + i) // 4'
    >>> index_expression((2, 3, 4), (2, 1, 4))
    '(first + i) // 12 * 4 + (first + i) % 4'
    """
    operand = (1,) * (len(shape) - len(operand)) + tuple(operand)
    terms = []
    after, stride, dim = 1, 1, len(shape) - 1
    while dim >= 0:
        size = 1  # of neighboring dimensions that the operand has, or of those that it has not
        has_dim = operand[dim] != 1
        while dim >= 0 and (operand[dim] != 1) == has_dim:
            size *= max(shape[dim], 1)
            dim -= 1
        if has_dim:
            term = "(first + i)" + (f" // {after}" if after > 1 else "") + (f" % {size}" if dim >= 0 else "")
            terms.append(term + (f" * {stride}" if stride > 1 else ""))
            stride *= size
        after *= size
    return " + ".join(reversed(terms)) or "0"


def kernel_space(program: Program, stages: Sequence[Stage]) -> TensorType:
    """The type that the loop of these stages runs over; one element where all are scalars."""
    types = [program.types[stage.reads[0] if stage.op in REDUCTIONS else stage.name] for stage in stages]
    return next((item for item in types if not item.is_scalar), types[0])


def make_kernel(
    program: Program,
    members: Sequence[str],
    stored: Sequence[str],
    memory: Mapping[str, str] | None = None,
    rank: int = 0,
) -> Kernel:
    """The kernel of stages.

    Parameters
    ----------
    program : Program
    members : sequence of str
        Pointwise operators and reductions, in order; those with more than one element are of one local shape.
    stored : sequence of str
        Values to write; sums are always.
    memory : mapping of str to str
        Names of the memory of values, where that is not the value's own: an updated value is that of its input.
    rank : int
        Whose local shape it is for; ranks with equal shapes have equal kernels.
    """
    writer = _Writer(program, [program.by_name[name] for name in members], memory or {}, rank)
    return writer.kernel(stored, members[0] if len(members) == 1 else f"fused_{members[-1]}")


def clear_kernel() -> Kernel:
    """Set sums to zero."""
    source = "def clear(first, base, sums):\n    for i in range(sums.size):\n        sums[i] = 0.0\n"
    return Kernel("clear", source, (Argument("sums", "sums", "sum", "float64"),))


def total_kernel(dtype: str) -> Kernel:
    """Round sums of blocks, and add them in their order."""
    lines = [
        "def total(first, base, sums, result):",
        f"    value = {dtype}(sums[0])",
        "    for i in range(1, sums.size):",
        f"        value = {dtype}(value + {dtype}(sums[i]))",
        "    result[0] = value",
    ]
    arguments = (Argument("sums", "sums", "sum", "float64"), Argument("result", "result", "scalar", dtype))
    return Kernel("total", "\n".join(lines) + "\n", arguments)


class _Writer:
    """The lines of a kernel: what is computed once, and what is computed per element."""

    def __init__(self, program: Program, stages: list[Stage], memory: Mapping[str, str], rank: int) -> None:
        self.program, self.stages, self.memory, self.rank = program, stages, memory, rank
        self.space = kernel_space(program, stages)
        self.num_ranks = program.group_sizes[self.space.group]
        self.inner = {stage.name for stage in stages}
        self.arguments: dict[str, Argument] = {}
        self.reads: dict[str, str] = {}
        self.writes: dict[str, str] = {}
        self.indices = {"": _global_expression(self.space, rank, self.num_ranks)}
        self.symbols: dict[tuple[str, str], str] = {}
        self.once: list[str] = []
        self.loads: list[str] = []
        self.body: list[str] = []
        self.last: list[str] = []

    def kernel(self, stored: Sequence[str], name: str) -> Kernel:
        """The lines put together."""
        for stage in self.stages:
            self._add(stage)
        for value in stored:
            argument = self._argument(value)
            self.writes[argument.name] = value
            if argument.role == "scalar":
                self.last.append(f"{argument.symbol}[0] = {self._symbol('value', value)}")
            else:
                self.body.append(f"{argument.symbol}[i] = {self._symbol('value', value)}")
        title = "kernel_" + re.sub(r"\W", "_", name)
        arguments = tuple(self.arguments.values())
        ranges = [item.symbol for item in arguments if item.role == "range"]
        lines = [f"def {title}(first, base, {', '.join(item.symbol for item in arguments)}):"]
        lines += [f"    {line}" for line in self.once]
        if self.loads or self.body:
            lines += [f"    for i in range({ranges[0]}.size):"]
            lines += [f"        {line}" for line in (*self.loads, *self.body)]
        lines += [f"    {line}" for line in self.last]
        dtypes = {stage.name: self._dtype(stage.name) for stage in self.stages}
        return Kernel(
            title, "\n".join(lines) + "\n", arguments, tuple(self.stages), dtypes, self.reads, self.writes, self.indices
        )

    def _dtype(self, value: str) -> str:
        return self.program.types[value].dtype

    def _symbol(self, kind: str, name: str, suffix: str = "") -> str:
        """A name for the source that nothing else has."""
        if (kind, name) not in self.symbols:
            symbol = re.sub(r"\W", "_", name) + suffix
            symbol = f"_{symbol}" if symbol[0].isdigit() else symbol
            while symbol in _RESERVED or symbol in self.symbols.values():
                symbol += "_"
            self.symbols[kind, name] = symbol
        return self.symbols[kind, name]

    def _argument(self, value: str) -> Argument:
        """The argument for the memory of a value."""
        name = self.memory.get(value, value)
        if name not in self.arguments:
            item = self.program.types[value]
            local, space = (tensor.local_shape(self.rank, self.num_ranks) for tensor in (item, self.space))
            role: Literal["range", "whole", "scalar"] = "scalar" if item.is_scalar else "range"
            if role == "range" and local != space:
                role = "whole"
                self.indices[name] = index_expression(space, local)
            self.arguments[name] = Argument(name, self._symbol("memory", name), role, self._dtype(value))
        return self.arguments[name]

    def _variable(self, operand: str | float, dtype: str) -> str:
        """The variable of an operand, loaded before anything is stored; constants are of the result's type."""
        if not isinstance(operand, str):
            return f"{dtype}({operand!r})"
        if operand not in self.inner and operand not in self.reads:
            argument = self._argument(operand)
            self.reads[operand] = argument.name
            if argument.role == "scalar":
                self.once.append(f"{self._symbol('value', operand, '_0')} = {argument.symbol}[0]")
            else:
                index = "i" if argument.role == "range" else self.indices[argument.name]
                self.loads.append(f"{self._symbol('value', operand, '_i')} = {argument.symbol}[{index}]")
        return self._symbol("value", operand)

    def _add(self, stage: Stage) -> None:
        """The line of a stage."""
        dtype = self._dtype(stage.name)
        if stage.op in REDUCTIONS:
            self._add_sum(stage)
            return
        lines = self.once if self.program.types[stage.name].is_scalar else self.body
        needed = stage.operands[1:] if stage.op == "update" else stage.operands
        operands = [self._variable(item, dtype) for item in needed]
        if stage.op == "update":
            expression = operands[0]
        elif stage.op == "dropout":
            probability = stage.setting("probability")
            threshold = round((1 - probability) * 2**32)
            step = f"np.int64({operands[1]})" if len(operands) > 1 else "0"
            kept = f"stays({stage.setting('seed')}, {step}, {self.indices['']}, {threshold})"
            kept = kept.replace("first + i", "first") if lines is self.once else kept
            expression = f"{operands[0]} * {dtype}({1 / (1 - probability)!r}) if {kept} else {dtype}(0)"
        else:
            expression = f"{dtype}({_FORMS[stage.op].format(*operands, dtype=dtype)})"
        lines.append(f"{self._symbol('value', stage.name)} = {expression}")

    def _add_sum(self, stage: Stage) -> None:
        """A sum over the elements of the range, added to what earlier ranges had."""
        variable = f"float64({self._variable(stage.operands[0], self._dtype(stage.name))})"
        array, total = self._symbol("memory", stage.name), self._symbol("total", stage.name, "_sum")
        self.arguments[stage.name] = Argument(stage.name, array, "sum", "float64")
        term = f"{variable} * {variable}" if stage.op == "sum_squares" else variable
        is_wide = not self.program.types[stage.reads[0]].is_scalar
        self.once.append(f"{total} = {array}[0]")
        (self.body if is_wide else self.once).append(f"{total} += {term}")
        self.last.append(f"{array}[0] = {total}")
