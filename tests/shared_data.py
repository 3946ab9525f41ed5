"""Public data that lies beside the project and is never copied into it."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def find_shared(relative: str) -> Path | None:
    """The path of a public data file, or None where the data is absent."""
    given = os.environ.get("WINDTUNNEL_SHARED")
    places = [Path(given)] if given else [folder / "shared" / "data" for folder in (ROOT, *ROOT.parents)]
    found = (place / relative for place in places)
    return next((path for path in found if path.exists()), None)


def shared_path(relative: str) -> Path:
    """The path of a public data file; skips the test where the data is absent."""
    path = find_shared(relative)
    if path is None:
        pytest.skip(f"public data {relative} is not here; point WINDTUNNEL_SHARED at the folder that holds it")
    return path
