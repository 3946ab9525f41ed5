"""Partial flights of gradient averaging between processes of this host (room cost).

In: how many processes and how many bytes. Out: how much longer a backward pass takes with DistributedDataParallel over
gloo than without, measured here: real processes, no computation beside it. The host's own memory is the link, so no
data sheet gives its rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from windtunnel.cost.database import Measurement, ProfileDatabase
from windtunnel.cost.fingerprint import libraries, machine
from windtunnel.errors import PriceError
from windtunnel.extras import require

__all__ = ["averaging_ns"]

_SIZES_BYTES = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_TIMEOUT_S = 120
ROUNDS = 13


def averaging_ns(size_bytes: int, num_ranks: int, *, database: ProfileDatabase | None = None) -> int:
    """How long averaging so many bytes of gradients takes between ``num_ranks`` processes of this host, in ns.

    Measured once per host and number of processes at five sizes, a line between them, and kept in the database.

    Parameters
    ----------
    size_bytes : int
        All gradients of one backward pass.
    num_ranks : int
    database : ProfileDatabase, optional

    Raises
    ------
    PriceError
        The processes could not be run.
    """
    known = _curve(num_ranks, database)
    sizes = [0.0, *map(float, _SIZES_BYTES)]
    added = [0.0, *(max(0.0, each.new_ns - each.old_ns) for each in known)]
    if size_bytes > sizes[-1]:
        return round(added[-1] * size_bytes / sizes[-1])
    return round(float(np.interp(size_bytes, sizes, added)))


def _curve(num_ranks: int, database: ProfileDatabase | None) -> list[Measurement]:
    keys = [
        ("DistributedDataParallel", f"{size_bytes} bytes", "backward", f"gloo:{num_ranks}", 1, machine(), libraries())
        for size_bytes in _SIZES_BYTES
    ]
    found = [database.find(key) for key in keys] if database is not None else []
    known = [each for each in found if each is not None and each.is_trusted]
    if len(known) == len(keys):
        return known
    flown = _fly(num_ranks, _SIZES_BYTES)
    measured = [
        Measurement(*key, old_ns=old_ns, new_ns=new_ns, spread_ratio=spread, rounds=ROUNDS)
        for key, (old_ns, new_ns, spread) in zip(keys, flown, strict=True)
    ]
    if database is not None:
        database.add(measured)
    return measured


def _fly(num_ranks: int, sizes_bytes: Sequence[int]) -> list[list[float]]:
    require("torch", extra="torch")
    with tempfile.TemporaryDirectory(prefix="windtunnel-") as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        command = [sys.executable, "-m", "windtunnel.cost._gloo_worker"]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(num_ranks), rendezvous, json.dumps(list(sizes_bytes)), str(ROUNDS)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_ranks)
        ]
        try:
            outputs = [rank.communicate(timeout=_TIMEOUT_S) for rank in ranks]
        except subprocess.TimeoutExpired:
            outputs = [("", f"no answer within {_TIMEOUT_S} s")] * num_ranks
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return _read(outputs, num_ranks)


def _read(outputs: list[tuple[str, str]], num_ranks: int) -> list[list[float]]:
    answer = outputs[0][0].strip().splitlines()
    if not answer:
        reason = next((tail for _, tail in outputs if tail.strip()), "no answer").strip().splitlines()[-1]
        raise PriceError(
            f"averaging gradients between {num_ranks} processes could not be measured here: {reason}",
            fix="say how fast the link is: data-parallel:bandwidth_bytes_per_s=...",
        )
    found: list[list[float]] = json.loads(answer[-1])
    return found
