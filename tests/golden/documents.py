"""Documents of golden commands and how two of them differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cli.command import windtunnel, windtunnel_process

EXPECTED = Path(__file__).resolve().parent / "expected"
_ROOT = str(Path(__file__).resolve().parents[2])

VOLATILE = {"elapsed_s", "search_s", "solve_s", "solver_s", "seconds", "duration_s", "windtunnel", "version"}
"""Keys of how long an answer took, and of versions."""


def run_command(words: tuple[str, ...]) -> Any:
    """The JSON document of a command, without what differs from run to run and from machine to machine."""
    if words[0] in ("capture", "--dry-run", "memory"):  # what follows the script is the script's own
        outcome = windtunnel_process(*words[:-1], "--json", words[-1])
    else:
        outcome = windtunnel(*words, "--json")
    if outcome.code not in (0, 1) or not outcome.stdout:
        raise AssertionError(f"windtunnel {' '.join(words)} ended with {outcome.code}: {outcome.stderr}")
    return _without_volatile(json.loads(outcome.stdout.replace(_ROOT, "ROOT")))


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    return [_without_volatile(item) for item in value] if isinstance(value, list) else value


def find_differences(expected: Any, actual: Any, path: str = "$") -> Iterator[str]:
    """Where two documents differ; floats may by one in 10⁹, as libraries of other machines sum in another order."""
    if isinstance(expected, float) and isinstance(actual, (int, float)) and not isinstance(actual, bool):
        if not math.isclose(expected, actual, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{path}: expected {expected}, got {actual}"
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() ^ actual.keys()):
            yield f"{path}.{key}: only {'expected' if key in expected else 'now'}"
        for key in expected.keys() & actual.keys():
            yield from find_differences(expected[key], actual[key], f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path}: {len(expected)} items expected, {len(actual)} now"
        for i, (before, now) in enumerate(zip(expected, actual, strict=False)):
            yield from find_differences(before, now, f"{path}[{i}]")
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{path}: expected {expected!r}, got {actual!r}"
