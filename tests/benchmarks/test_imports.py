"""Benchmarks run seldom: what they import of the package has to be there after every renaming."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


def imported_names() -> dict[tuple[str, str], str]:
    """Module and name of every import from the package in benchmarks and examples, with one place that has it."""
    found = {}
    for folder in ("benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "windtunnel":
                    for alias in node.names:
                        found[str(node.module), alias.name] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return found


def test_benchmarks_import_names_that_exist():
    missing = []
    for (module, name), place in imported_names().items():
        try:
            is_there = hasattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("windtunnel"):
                continue  # an extra that is not installed
            is_there = False
        if not is_there:
            try:
                importlib.import_module(f"{module}.{name}")
            except ModuleNotFoundError:
                missing.append(f"{place}: {module}.{name}")

    assert [] == missing
