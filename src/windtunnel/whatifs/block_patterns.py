"""Which calls a pattern over layers means.

In: a program and a regular expression. Out: ranges of calls, one per uninterrupted run through a matching block.
Without a pattern, the parts that a model stacks: members of a numbered list.
"""

from __future__ import annotations

import re

from windtunnel.cost.rerun import Program
from windtunnel.errors import InputError, NotApplicableError

__all__ = ["block_ranges", "compile_pattern"]


def compile_pattern(layer: str) -> re.Pattern[str]:
    """The regular expression.

    Raises
    ------
    InputError
        It is none.
    """
    try:
        return re.compile(layer)
    except re.error as error:
        raise InputError(f"{layer!r} is no regular expression: {error}", where="layer=") from error


def block_ranges(program: Program, layer: str) -> tuple[tuple[int, int], ...]:
    """Ranges [first, last) of the calls in matching blocks.

    Raises
    ------
    NotApplicableError
        No call lies in such a block.
    """
    blocks = _matching(program, compile_pattern(layer)) if layer else _list_stacked_paths(program)
    owners = [_owner(call.layer, blocks) if not call.mark else "" for call in program.calls]
    ranges = []
    first = 0
    # runs of calls with one owner; the index behind the last call closes the last run
    for index in range(1, len(owners) + 1):
        if index == len(owners) or owners[index] != owners[first]:
            if owners[first] and any(call.grad for call in program.calls[first:index]):
                ranges.append((first, index))
            first = index
    if not ranges:
        raise NotApplicableError(
            f"no block matches {layer!r}" if layer else "the model stacks no blocks",
            where=f"{len({call.layer for call in program.calls})} layers",
            fix="pass layer= with a pattern over module paths",
        )
    return tuple(ranges)


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _paths(program: Program) -> set[str]:
    names = [name.rpartition(".")[0] for name in program.parameters.values()]
    return {prefix for path in (*names, *(call.layer for call in program.calls)) if path for prefix in _prefixes(path)}


def _matching(program: Program, pattern: re.Pattern[str]) -> set[str]:
    return {path for path in _paths(program) if pattern.fullmatch(path)}


def _list_stacked_paths(program: Program) -> set[str]:
    """Numbered members with parameters of lists that have several; else the first level of names."""
    with_parameters = {
        prefix for name in program.parameters.values() for prefix in _prefixes(name.rpartition(".")[0]) if prefix
    }
    numbered = {path for path in with_parameters if path.rpartition(".")[2].isdigit()}
    parents = [path.rpartition(".")[0] for path in _paths(program) if path.rpartition(".")[2].isdigit()]
    members = {path for path in numbered if parents.count(path.rpartition(".")[0]) > 1}
    return members or {path for path in with_parameters if "." not in path}


def _owner(layer: str, blocks: set[str]) -> str:
    """The outermost block around a layer, or nothing."""
    return next((prefix for prefix in _prefixes(layer) if prefix in blocks), "") if layer else ""
