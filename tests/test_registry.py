"""Plug-ins of this package are found as they are, installed or not."""

import importlib.metadata

from windtunnel import registry


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
