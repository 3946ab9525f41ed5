"""On what and how a set was measured.

In: this host and a target. Out: plain values for the header of a set. Not here: measuring of programs.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Mapping
from typing import Any

from windtunnel.systems.tensor_programs.run.build import ISAS, Target
from windtunnel.systems.tensor_programs.run.measure import PROTOCOL
from windtunnel.systems.tensor_programs.run.worker import (
    MAX_CODE_OPERATIONS,
    MAX_LEAVES,
    MAX_RUN_S,
    MAX_TEMPORARY_BYTES,
)

__all__ = ["describe_device", "describe_run", "name_after_host"]

_SIMD_BITS = {"sse4.2": 128, "avx2": 256, "avx512": 512}
_VERSIONS = ("windtunnel", "apache-tvm", "numpy")


def describe_device(target: Target, rates: Mapping[str, float]) -> dict[str, Any]:
    """A target on this host, with the rates that were measured on it."""
    from windtunnel import hardware

    host = hardware.machine()
    return {
        "name": target.name,
        "isa": target.isa,
        "num_threads": target.num_threads,
        "simd_bits": _SIMD_BITS[target.isa],
        "code_generator_flags": list(ISAS[target.isa]),
        "cpu_name": host.cpu_name,
        "cache_bytes": dict(host.cache_bytes),
        "memory_bytes": host.memory_bytes,
        **rates,
    }


def name_after_host(name: str) -> str:
    """A target as a device among those of other hosts, such as ``avx2-1@amd-epyc``: by its processor."""
    from windtunnel import hardware

    processor = hardware.machine().cpu_name
    return f"{name}@{'-'.join(re.findall(r'[a-z0-9]+', processor.lower()))}"


def describe_run(seed: int) -> dict[str, Any]:
    """Processor, seed, protocol, limits and versions."""
    from windtunnel import hardware

    host = hardware.machine()
    return {
        "cpu_name": host.cpu_name,
        "num_cores": host.num_cores,
        "fingerprint": host.fingerprint(),
        "seed": seed,
        "features": "full",
        "protocol": PROTOCOL,
        "limits": {
            "max_leaves": MAX_LEAVES,
            "max_temporary_bytes": MAX_TEMPORARY_BYTES,
            "max_code_operations": MAX_CODE_OPERATIONS,
            "max_run_s": MAX_RUN_S,
        },
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONS}
        | {"python": platform.python_version()},
    }
