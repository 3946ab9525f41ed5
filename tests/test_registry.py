"""Plug-ins of this package are found as they are, installed or not."""

import importlib.metadata
import subprocess
import sys

import pytest

from tests.cli.graphs import step_graph
from windtunnel import registry
from windtunnel.graph import save


def test_an_uninstalled_package_finds_its_own_plugins(monkeypatch):
    installed = {(point.name, point.value) for point in registry._entry_points()}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ())
    found = {(point.name, point.value) for point in registry._entry_points()}

    assert ("whatifs", "windtunnel.whatifs") in found
    assert installed >= found


def test_plugins_of_others_are_found_beside_an_uninstalled_package(monkeypatch):
    theirs = importlib.metadata.EntryPoint("theirs", "their.whatifs", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (theirs,))
    found = registry._entry_points()

    assert theirs in found
    assert any(point.value == "windtunnel.whatifs" for point in found)


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_plugin_lies_where_its_kind_is_looked_for(kind):
    for each in registry.KINDS:
        registry.all(each)
    homes = {package for package, held in registry._HOLDS.items() if held == kind}
    ours = [one.module for one in registry.all(kind).values() if one.package == "windtunnel"]

    assert [] == [module for module in ours if ".".join(module.split(".")[:2]) not in homes]


@pytest.mark.parametrize(
    ("use", "unneeded"),
    [
        ("from windtunnel.graph import load; load(sys.argv[1])", ("torch", "pandas")),
        (
            "from windtunnel.cli import main; main(['replay', sys.argv[1]])",
            ("torch", "windtunnel.flights", "windtunnel.programs", "windtunnel.whatifs", "windtunnel.training"),
        ),
    ],
)
def test_a_stored_graph_is_used_without_what_it_does_not_need(use, unneeded, tmp_path):
    """Start-up is most of what one waits for here."""
    stored = save(step_graph(), tmp_path / "train.wt")
    code = f"import sys; {use}; print([name for name in {unneeded} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code, str(stored)], capture_output=True, text=True, check=True)

    assert "[]" == found.stdout.splitlines()[-1]
