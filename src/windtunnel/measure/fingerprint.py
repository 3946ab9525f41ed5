"""Which machine and which libraries a measurement holds for.

In: this process. Out: short texts that are equal where a measured time may be used again.
"""

from __future__ import annotations

import datetime
import functools
import os
import platform
from importlib import metadata

from windtunnel import hardware
from windtunnel.base.extras import require

__all__ = ["libraries", "machine", "now", "package_versions"]


@functools.cache
def machine() -> str:
    """Processor and the fingerprint of what sets this host's speed.

    Examples
    --------
    >>> machine() == machine()
    True
    """
    host = hardware.machine()
    return f"{host.cpu_name} {host.fingerprint()}"


@functools.cache
def libraries() -> str:
    """Version of torch, the instruction set that it uses, and how its threads wait for work.

    A thread that sleeps between operators instead of spinning makes small operators on several threads twice as slow:
    what was measured one way says nothing about the other.

    Raises
    ------
    MissingExtraError
        PyTorch is not installed.
    """
    torch = require("torch", extra="torch")
    waiting = os.environ.get(
        "OMP_WAIT_POLICY", ""
    ).lower()  # libgomp reads it once, at its start, and does not report it
    return f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()} {waiting}".rstrip()


def now() -> str:
    """This moment in UTC, to the second, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def package_versions() -> dict[str, str]:
    """Versions that a timing depends on: Python, torch and this package."""
    versions = {"python": platform.python_version()}
    for package in ("windtunnel", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
