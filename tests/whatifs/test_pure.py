"""What-ifs start nothing, open nothing and read no clock: they do not even know what could."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import windtunnel.whatifs

FILES = sorted(Path(windtunnel.whatifs.__file__).parent.glob("*.py"))
REACHES_OUT = {"multiprocessing", "os", "pathlib", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile"}
REACHES_OUT |= {"threading", "time", "torch"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_file_of_the_room_imports_what_reaches_out(path):
    tree = ast.parse(path.read_text())
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    of = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}

    assert set() == {name.partition(".")[0] for name in plain | of} & REACHES_OUT
    assert "open" not in called
