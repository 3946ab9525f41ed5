"""Write programs as expressions.

In: inputs with layouts, arithmetic on them. Out: a ``Program``. Slices that the rules ask for are inserted as stages of
their own; nothing that sends is. Not here: programs of published workloads (``workloads``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.errors import InputError
from windtunnel.systems.collectives.layouts import LOCAL, REPLICATED, Layout, TensorType, slice_layout
from windtunnel.systems.collectives.program import Program, Stage
from windtunnel.systems.collectives.rules import LayoutError, infer

__all__ = ["Builder", "Value"]


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A value of a program that is being built; arithmetic on it adds stages."""

    builder: Builder
    name: str

    @property
    def type(self) -> TensorType:
        """Its type."""
        return self.builder.types[self.name]

    def __add__(self, other: Value | float) -> Value:
        return self.builder.apply("add", self, other)

    def __radd__(self, other: float) -> Value:
        return self.builder.apply("add", other, self)

    def __sub__(self, other: Value | float) -> Value:
        return self.builder.apply("sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return self.builder.apply("sub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self.builder.apply("mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return self.builder.apply("mul", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        return self.builder.apply("div", self, other)

    def __neg__(self) -> Value:
        return self.builder.apply("neg", self)

    def __matmul__(self, other: Value) -> Value:
        return self.builder.apply("matmul", self, other)


class Builder:
    """Collects inputs and stages.

    Parameters
    ----------
    name : str
    *group_sizes : int
        Ranks of each group; one group by default.

    Examples
    --------
    >>> builder = Builder("mean", 4)
    >>> gradient = builder.declare_local("g", (8,))
    >>> weights = builder.declare_replicated("w", (8,))
    >>> _ = builder.update(weights, weights - 0.25 * builder.all_reduce(gradient))
    >>> print(builder.program())
    program mean on a group of 4 ranks
      input g: float32[8] Local
      input w: float32[8] Replicated
      t1 = all_reduce(g, reduction=sum)  : float32[8] Replicated
      t2 = mul(0.25, t1)                 : float32[8] Replicated
      t3 = sub(w, t2)                    : float32[8] Replicated
      t4 = update(w, t3)                 : float32[8] Replicated
      output t4
    """

    def __init__(self, name: str, *group_sizes: int) -> None:
        if not group_sizes or min(group_sizes) < 1:
            raise InputError(f"program {name} has no ranks", fix="give each group at least one rank")
        self.name, self.group_sizes = name, group_sizes
        self.inputs: dict[str, TensorType] = {}
        self.stages: list[Stage] = []
        self.types: dict[str, TensorType] = {}

    # --- inputs ---------------------------------------------------------------------------------------------

    def tensor(
        self, name: str, shape: Sequence[int], layout: Layout = REPLICATED, dtype: str = "float32", group: int = 0
    ) -> Value:
        """Declare an input."""
        if name in self.types:
            raise InputError(f"{name} is declared twice", where=self.name, fix="give it another name")
        self.inputs[name] = self.types[name] = TensorType(tuple(shape), layout, dtype, group)
        return Value(self, name)

    def declare_replicated(self, name: str, shape: Sequence[int], dtype: str = "float32", group: int = 0) -> Value:
        """Declare an input that every rank has."""
        return self.tensor(name, shape, REPLICATED, dtype, group)

    def declare_local(self, name: str, shape: Sequence[int], dtype: str = "float32", group: int = 0) -> Value:
        """Declare an input of unrelated values, such as partial sums."""
        return self.tensor(name, shape, LOCAL, dtype, group)

    def declare_sliced(
        self, name: str, shape: Sequence[int], dim: int, dtype: str = "float32", group: int = 0
    ) -> Value:
        """Declare an input of which each rank has a block."""
        return self.tensor(name, shape, slice_layout(dim), dtype, group)

    # --- stages ---------------------------------------------------------------------------------------------

    def apply(self, op: str, *operands: Value | float, name: str = "", **settings: Any) -> Value:
        """Add a stage, and the slices of replicated operands that it needs.

        Raises
        ------
        LayoutError
            The operands do not fit, and a slice would not help.
        """
        given = tuple(item.name if isinstance(item, Value) else float(item) for item in operands)
        stage = Stage(name or f"t{len(self.stages) + 1}", op, given, tuple(settings.items()))
        types = [self.types[item] if isinstance(item, str) else item for item in given]
        try:
            self.types[stage.name] = infer(stage, types, self.group_sizes)
        except LayoutError as error:
            repair, target, found = error.repair
            if repair != "slice":
                raise
            replaced = [
                self.slice(item, **found) if isinstance(item, Value) and item.name == target else item
                for item in operands
            ]
            return self.apply(op, *replaced, name=name, **settings)
        self.stages.append(stage)
        return Value(self, stage.name)

    def all_reduce(self, value: Value, reduction: str = "sum", name: str = "") -> Value:
        """Sum, or the maximum, of a local tensor over the ranks, on all of them."""
        return self.apply("all_reduce", value, name=name, reduction=reduction)

    def reduce_scatter(self, value: Value, dim: int = 0, reduction: str = "sum", name: str = "") -> Value:
        """Sum over the ranks, of which each keeps its block."""
        return self.apply("reduce_scatter", value, name=name, reduction=reduction, dim=dim)

    def all_gather(self, value: Value, name: str = "") -> Value:
        """All blocks on all ranks."""
        return self.apply("all_gather", value, name=name)

    def reduce(self, value: Value, root: int = 0, reduction: str = "sum", name: str = "") -> Value:
        """Sum over the ranks, on one of them."""
        return self.apply("reduce", value, name=name, reduction=reduction, root=root)

    def broadcast(self, value: Value, root: int = 0, name: str = "") -> Value:
        """The root's value on all ranks."""
        return self.apply("broadcast", value, name=name, root=root)

    def slice(self, value: Value, dim: int = 0, name: str = "") -> Value:
        """Each rank's block of a replicated tensor; sends nothing."""
        return self.apply("slice", value, name=name, dim=dim)

    def send(self, value: Value, name: str = "") -> Value:
        """Send from each rank to the same rank of the next group."""
        return self.apply("send", value, name=name)

    def sqrt(self, value: Value) -> Value:
        """Square root."""
        return self.apply("sqrt", value)

    def relu(self, value: Value) -> Value:
        """Positive part."""
        return self.apply("relu", value)

    def select(self, condition: Value, positive: Value | float, otherwise: Value | float) -> Value:
        """``positive`` where the condition is not 0, else ``otherwise``."""
        return self.apply("select", condition, positive, otherwise)

    def dropout(self, value: Value, probability: float, seed: int = 0, step: Value | float = 0.0) -> Value:
        """Zero elements with a probability, by a hash of (seed, step, index in the full tensor); scale the others up.

        A program that runs several times takes the step as a scalar input, so that each run has a mask of its own.
        """
        return self.apply("dropout", value, step, probability=probability, seed=seed)

    def norm(self, value: Value) -> Value:
        """Euclidean norm; of slices by a visible all-reduce of the partial sums of squares."""
        total = self.apply("sum_squares", value)
        return self.sqrt(self.all_reduce(total) if total.type.layout.is_local else total)

    def update(self, target: Value, value: Value, name: str = "") -> Value:
        """Overwrite an input; the result is its new value."""
        return self.apply("update", target, value, name=name)

    def program(self, *outputs: Value) -> Program:
        """The program that has been built; its outputs are all updates by default."""
        names = [item.name for item in outputs] or [stage.name for stage in self.stages if stage.op == "update"]
        if not names:
            raise InputError(f"program {self.name} computes nothing", fix="name an output, or update an input")
        return Program(self.name, self.group_sizes, dict(self.inputs), tuple(self.stages), tuple(names))
