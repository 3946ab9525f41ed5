"""Which calls of the forward pass run again in the backward pass.

In: nodes of the execution trace that lie in a backward pass, in their order. Out: the call that each of them repeats,
and the ranges of calls that checkpoints run again. A checkpoint calls its operators under autograd, which the engine
does not do with its own; one engine node runs one range again, beginning with what the checkpoint kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Repeats"]

NO_CALL = -1
_MAX_SKIPPED = 8  # calls of a range that a second run may leave out, or runs outside of autograd


class Repeats:
    """Finds the calls that nodes repeat.

    Parameters
    ----------
    calls : list
        The program as written so far; the caller goes on appending to it.
    parameters : mapping
        Name by tensor id.
    """

    def __init__(self, calls: list[dict[str, Any]], parameters: Mapping[int, str]) -> None:
        self._calls = calls
        self._parameters = parameters
        self._done: set[int] = set()
        self._engine_node = NO_CALL
        self._last = NO_CALL
        self._ranges: list[list[int]] = []

    @property
    def ranges(self) -> list[list[int]]:
        """Calls [first, last) that run again together, in the order of the forward pass."""
        return sorted(self._ranges)

    def find(self, node: Mapping[str, Any], engine_node: int) -> int:
        """The call that a node of the backward pass repeats, -1 if it repeats none."""
        is_new = engine_node != self._engine_node
        call = self._anywhere(node) if is_new else self._next(node)
        if call == NO_CALL:
            return NO_CALL
        if is_new:
            self._engine_node = engine_node
            self._ranges.append([call, call + 1])
        self._ranges[-1] = [min(self._ranges[-1][0], call), max(self._ranges[-1][1], call + 1)]
        self._last = call
        self._done.add(call)
        return call

    def _next(self, node: Mapping[str, Any]) -> int:
        """One of the calls behind the one that was repeated last."""
        requested = self._form(node["schema"], node["inputs"]["shapes"], node["inputs"]["values"])
        for index in range(self._last + 1, min(self._last + 1 + _MAX_SKIPPED, len(self._calls))):
            call = self._calls[index]
            if "mark" in call:
                break
            if index not in self._done and requested == self._form(call["schema"], call["shapes"], call["inputs"]):
                return index
        return NO_CALL

    def _anywhere(self, node: Mapping[str, Any]) -> int:
        """The latest call of this form that read the same parameters, or the same storages where it read none."""
        values = node["inputs"]["values"]
        requested = self._form(node["schema"], node["inputs"]["shapes"], values)
        for index in range(len(self._calls) - 1, -1, -1):
            call = self._calls[index]
            if "mark" in call or index in self._done:
                continue
            if requested != self._form(call["schema"], call["shapes"], call["inputs"]):
                continue
            if requested[-1] or _storages(values) == _storages(call["inputs"]):
                return index
        return NO_CALL

    def _form(self, schema: str, shapes: Any, values: Any) -> tuple[str, str, tuple[int, ...]]:
        read = tuple(value[0] for value in _tensors(values) if value[0] in self._parameters)
        return schema, str(shapes), read


def _tensors(values: Any) -> list[list[Any]]:
    """Tensors among recorded values: lists of their ids, storage, offset, size and device."""
    result = []
    for value in values:
        if isinstance(value, list):
            is_tensor = len(value) == 6 and isinstance(value[-1], str)
            result += [value] if is_tensor else _tensors(value)
    return result


def _storages(values: Any) -> list[int]:
    return [value[1] for value in _tensors(values)]
