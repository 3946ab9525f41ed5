"""Errors of operators whose operands do not fit together, with the smallest repair.

In: a stage and the types of its operands. Out: errors that name both. Not here: which operands fit (``rules``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputError
from windtunnel.systems.collectives.layouts import TensorType

if TYPE_CHECKING:
    from windtunnel.systems.collectives.program import Stage

__all__ = ["Call", "LayoutError"]

_NAMES = {
    "all_gather": "AllGather",
    "all_reduce": "AllReduce",
    "broadcast": "Broadcast",
    "cast": "Cast",
    "reduce": "Reduce",
    "reduce_scatter": "ReduceScatter",
    "send": "Send",
    "slice": "Slice",
}


class LayoutError(InputError):
    """Operands of an operator do not fit together.

    Attributes
    ----------
    repair : tuple of (str, str, dict)
        The smallest change that makes the stage legal: an operator to insert, the operand to insert it on, settings.
        ``("remove", name, {})`` removes the stage itself, ``("replace", name, {"by": ...})`` makes it another operator,
        ``("lay_out", name, {"layout": ...})`` declares an input otherwise.
    """

    repair: tuple[str, str, dict[str, Any]] = ("", "", {})


class Call:
    """A stage with the types of its operands, which raises errors that name both."""

    def __init__(self, stage: Stage, operands: Sequence[TensorType | float], group_sizes: Sequence[int]) -> None:
        self.stage, self.operands, self.group_sizes = stage, operands, group_sizes
        self.tensors = [item for item in operands if isinstance(item, TensorType)]

    @property
    def first(self) -> TensorType:
        """The only operand, which has to be a tensor."""
        if len(self.operands) != 1 or not self.tensors:
            raise self.error(f"{self.stage.op} takes one tensor", "pass one")
        return self.tensors[0]

    @property
    def num_ranks(self) -> int:
        """Ranks of the group that holds the operands."""
        return self.group_sizes[self.tensors[0].group]

    def error(self, what: str, fix: str) -> LayoutError:
        """An error that needs more than one inserted operator."""
        shown = ", ".join(
            f"{name} {item}" if isinstance(item, TensorType) else f"{item:g}"
            for name, item in zip(self.stage.operands, self.operands, strict=True)
        )
        return LayoutError(what, where=f"{self.stage} with {shown}", fix=fix)

    def repairable(self, what: str, op: str, index: int = 0, **settings: Any) -> LayoutError:
        """An error that one operator on one operand repairs."""
        name = str(self.stage.operands[index])
        if op == "remove":
            fix = f"remove {self.stage.name}, read `{name}` instead"
        elif op == "replace":
            other = _NAMES[settings["by"]]
            fix = f"replace {self.stage.op} on `{name}` by {other}"
        elif op == "lay_out":
            fix = f"declare `{name}` as {settings['layout']}"
        else:
            given = f"({', '.join(f'{key}={value}' for key, value in settings.items())})" if settings else ""
            fix = f"insert {_NAMES[op]}{given} on `{name}`"
        result = self.error(what, fix)
        result.repair = (op, name, settings)
        return result
