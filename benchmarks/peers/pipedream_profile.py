"""Profiles of layers in PipeDream's form.

In: a text file. Out: ``Profile``: layers with times, bytes and edges, inputs and unused parts left out. Not here:
planning (``pipedream_planner``).

Source: PipeDream (Narayanan et al., SOSP 2019), its released profiles.
"""

# N layers, E edges

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.reading import ReadLimit, format_value, read_decompressed
from windtunnel.errors import InputError

__all__ = ["Profile", "read_profile"]

Floats = NDArray[np.float64]
_NODE = re.compile(r"(\S+) -- (.*?) -- (.*)")
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(frozen=True, eq=False)
class Profile:
    """Layers that were measured on one machine.

    Parameters
    ----------
    names : tuple of str
    forward_s, backward_s : float64 [N]
    activation_bytes, parameter_bytes : float64 [N]
    src, dst : int64 [E]
    stage : int64 [N]
        As the file says; -1 where it does not.
    """

    names: tuple[str, ...]
    forward_s: Floats
    backward_s: Floats
    activation_bytes: Floats
    parameter_bytes: Floats
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    stage: NDArray[np.int64]

    @property
    def num_layers(self) -> int:
        """N."""
        return len(self.names)


def read_profile(path: str | os.PathLike[str], *, keep_inputs: bool = False) -> Profile:
    """Read a profile in PipeDream's form; lines in any order.

    Parameters
    ----------
    path : path
    keep_inputs : bool
        Inputs have no work of their own, and what only unpacks a result is no layer: both are left out unless asked.

    Raises
    ------
    InputError
        It is no profile, or a line of it cannot be read: names the line.
    """
    where = os.fspath(path)
    try:
        lines = read_decompressed(ReadLimit(Path(path)), cost=8, error=InputError).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"the profile cannot be read: {error}", where=where, fix="it is text in UTF-8") from error
    nodes: dict[str, tuple[str, list[float], int]] = {}
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if line.startswith("\t"):
            first, sign, second = line.strip().partition(" -- ")
            if not sign:
                raise InputError("an edge names two nodes", where=f"{where}, line {number}", fix="node1 -- node2")
            edges.append((first, second))
        elif line.strip():
            name, *rest = _node(line, f"{where}, line {number}")
            nodes[name] = tuple(rest)  # type: ignore[assignment]
    if not nodes:
        raise InputError("the profile has no layers", where=where)
    lost = next((end for edge in edges for end in edge if end not in nodes), None)
    if lost is not None:
        raise InputError(f"an edge names {lost!r}, which is no node", where=where)
    kept = edges if keep_inputs else _trimmed(nodes, edges)
    if not nodes:
        raise InputError("the profile has no layers beside its inputs", where=where)
    return _profile(nodes, kept)


def _node(line: str, where: str) -> tuple[str, str, list[float], int]:
    match = _NODE.match(line)
    if match is None:
        raise InputError("a node has a name, a description and its numbers", where=where, fix="parted by ' -- '")
    fields = dict(part.strip().partition("=")[::2] for part in re.split(r",\s*(?=\w+=)", match[3]))
    try:
        values = [sum(map(float, fields[name].strip("[]").split(";"))) for name in _FIELDS]
        stage = int(fields.get("stage_id", -1))
    except (KeyError, ValueError, OverflowError) as error:
        raise InputError(f"the numbers of {match[1]} cannot be read: {error}", where=where) from error
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise InputError(f"{match[1]} has a negative number, or none", where=where)
    if not -1 <= stage < 1 << 31:
        raise InputError(f"the stage of {match[1]} is {format_value(stage)}", where=where)
    return match[1], match[2], values, stage


def _trimmed(nodes: dict[str, tuple[str, list[float], int]], edges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without inputs and without unused parts of results; edges that are left."""
    has_before, has_after = {b for _, b in edges}, {a for a, _ in edges}
    for name, (text, _, _) in list(nodes.items()):
        is_input = text.startswith("Input") and name not in has_before
        if is_input or (text.startswith("__getitem__") and name not in has_after):
            del nodes[name]
    return [(a, b) for a, b in edges if a in nodes and b in nodes]


def _profile(nodes: dict[str, tuple[str, list[float], int]], edges: list[tuple[str, str]]) -> Profile:
    row = {name: place for place, name in enumerate(nodes)}
    values = np.array([values for _, values, _ in nodes.values()])
    ends = np.array([(row[a], row[b]) for a, b in dict.fromkeys(edges)], np.int64).reshape(-1, 2)
    return Profile(
        tuple(nodes),
        values[:, 0] / 1000.0,
        values[:, 1] / 1000.0,
        values[:, 2],
        values[:, 3],
        ends[:, 0],
        ends[:, 1],
        np.array([stage for _, _, stage in nodes.values()], np.int64),
    )
