"""Which calls of a captured program another layer could run, and by how much each layer gains.

In: a program, operators, a pattern over layers. Out: calls, checked for weights that others read too; a form in which
they are replaced. Not here: the layers themselves, which are registered by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windtunnel.cost.rerun import Call, Form, Program, tensors_of
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.registry import did_you_mean
from windtunnel.whatifs.block_patterns import compile_pattern

__all__ = ["calls_in", "replacing", "weights_of"]


def calls_in(program: Program, operators: tuple[str, ...], layer: str, what: str) -> list[int]:
    """Places of the calls of these operators that train, in layers that match.

    Raises
    ------
    NotApplicableError
        There is none.
    InputError
        Layers are named, and none has such a name; the nearest are offered.
    """
    result = [index for index, call in enumerate(program.calls) if call.grad and call.operator in operators]
    if not result:
        raise NotApplicableError(f"there is no {what}", where=f"{len(program.calls)} calls")
    if not layer:
        return result
    pattern = compile_pattern(layer)
    matching = [index for index in result if pattern.fullmatch(program.calls[index].layer)]
    if not matching:
        known = sorted({program.calls[index].layer for index in result})
        raise InputError(f"no {what} is called {layer!r}", where="layer=", fix=did_you_mean(layer, known))
    return matching


def weights_of(program: Program, index: int) -> dict[int, str]:
    """Names of the trained parameters that a call reads, by identity."""
    return {item: program.parameters[item] for item in _read_by(program.calls[index]) if item in program.parameters}


def readers(program: Program, identity: int) -> list[int]:
    """Calls that read a tensor."""
    return [index for index, call in enumerate(program.calls) if not call.mark and identity in set(_read_by(call))]


def _read_by(call: Call) -> Iterator[int]:
    return (spec.identity for spec in tensors_of(call.inputs, call.shapes, call.types, call.strides))


def replacing(indices: list[int], layer: str, **settings: Any) -> Form:
    """The form in which a registered layer runs these calls."""
    return Form(replaced=tuple((index, layer, tuple(sorted(settings.items()))) for index in indices))
