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
    registry._entry_points.cache_clear()
    found = {(point.name, point.value) for point in registry._entry_points()}

    assert ("whatif.all", "windtunnel.whatifs") in found
    assert installed >= found


def test_plugins_of_others_are_found_beside_an_uninstalled_package(monkeypatch):
    theirs = importlib.metadata.EntryPoint("theirs", "their.whatifs", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (theirs,))
    registry._entry_points.cache_clear()
    found = registry._entry_points()

    assert theirs in found
    assert any(point.value == "windtunnel.whatifs" for point in found)


@pytest.mark.parametrize("kind", registry.KINDS)
def test_a_plugin_is_found_where_its_kind_is_looked_for(kind):
    """In a process that looks for nothing else."""
    for other in registry.KINDS:
        registry.all(other)
    expected = [name for name, plugin in registry.all(kind).items() if plugin.package == "windtunnel"]
    code = f"from windtunnel import registry; [print(name) for name in registry.all({kind!r})]"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert expected == found.stdout.splitlines()


def test_a_verb_is_found_without_those_of_other_subjects():
    """Also what other modules add to its group."""
    code = (
        "import sys; from windtunnel import registry; "
        "print(*registry.verbs('train')); print('windtunnel.systems.placement.verb' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert [
        "train train plan train plan strategies train plan values train predict train run",
        "False",
    ] == found.stdout.splitlines()


def test_a_plugin_that_is_named_is_found_without_the_others_of_its_kind():
    code = (
        "import sys; from windtunnel import registry; print(registry.get('page', 'predict-chips').name); "
        "print([name for name in sys.modules if name.startswith('windtunnel.') and name.endswith('.page')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ["predict-chips", "[]"] == found.stdout.splitlines()


@pytest.fixture(autouse=True)
def read_anew():
    """What is installed is read once; these tests change it."""
    yield
    registry._entry_points.cache_clear()


@pytest.mark.parametrize(
    ("use", "unneeded"),
    [
        ("from windtunnel.graph import load; load(sys.argv[1])", ("torch", "pandas")),
        (
            "from windtunnel.cli import main; main(['replay', sys.argv[1]])",
            ("torch", "windtunnel.flights", "windtunnel.systems", "windtunnel.whatifs"),
        ),
    ],
)
def test_a_stored_graph_is_used_without_what_it_does_not_need(use, unneeded, tmp_path):
    """Start-up is most of what one waits for here."""
    stored = save(step_graph(), tmp_path / "train.wt")
    code = f"import sys; {use}; print([name for name in {unneeded} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code, str(stored)], capture_output=True, text=True, check=True)

    assert "[]" == found.stdout.splitlines()[-1]
