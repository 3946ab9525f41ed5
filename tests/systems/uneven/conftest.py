"""What tests of real runs share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def any_host(request, monkeypatch):
    """Runs on a busy host count, too: what is learned is tested here, not how punctually; ``punctual`` wants both."""
    if "punctual" not in request.fixturenames:
        monkeypatch.setattr("windtunnel.systems.uneven.run._check_late", lambda *_: None)


@pytest.fixture
def punctual():
    """A host that is too busy is refused, as for users."""
