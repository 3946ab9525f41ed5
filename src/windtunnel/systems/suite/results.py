"""Result files of the suite.

In: results of cells (workload, size, batch size, threads, ranks). Out: one JSON file per finished cell in a folder, a
``profile.parquet`` over all of them, a machine record, and the same read back. Every file is written whole or not at
all. Not here: measuring (``suite``), comparing (``comparison``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from windtunnel import hardware
from windtunnel.base.outputs import whole
from windtunnel.base.reading import ReadLimit, format_value, read_decompressed, read_json
from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.hardware.host import cpu_quota_cores, num_sockets
from windtunnel.measure import fingerprint
from windtunnel.measure.fingerprint import now, package_versions
from windtunnel.measure.stats import Estimate
from windtunnel.systems.suite.stable import steady

__all__ = ["Cell", "Result", "SuiteRun", "load_run", "profile_table", "write_machine", "write_profile", "write_result"]

SCHEMA = "windtunnel.suite/1"
DISTURBED = 0.05
_RESULTS, _MACHINE, _PROFILE = "results", "machine.json", "profile.parquet"
_PROFILE_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "domain", "size", "machine_id", "mode", "unit", "allocator")),
        *((name, pa.int64()) for name in ("num_threads", "num_ranks", "cores", "batch_size", "num_runs")),
        *((name, pa.int64()) for name in ("warm_up_runs", "num_parameters", "flops", "peak_resident_bytes")),
        *((f"latency_{name}_ns", pa.int64()) for name in ("min", "mean", "max", "p50", "p99")),
        *((f"throughput{end}_per_s", pa.float64()) for end in ("", "_low", "_high")),
        *((f"{name}_utilization", pa.float64()) for name in ("compute", "arithmetic", "cpu")),
        ("energy_j", pa.float64()),
        ("is_unstable", pa.bool_()),
    ]
)


class Cell(msgspec.Struct, frozen=True):
    """The unit of measurement; ``batch_size`` 0 is the default of the workload, a link of 0 is not throttled."""

    workload: str
    size: str = "tiny"
    batch_size: int = 0
    num_threads: int = 1
    num_ranks: int = 1
    link_bytes_per_s: int = 0

    @property
    def key(self) -> str:
        """The name in files and tables, such as ``mlp-tiny-b32-t2-r1``."""
        link = f"-l{self.link_bytes_per_s}" if self.link_bytes_per_s else ""
        return f"{self.workload}-{self.size}-b{self.batch_size}-t{self.num_threads}-r{self.num_ranks}{link}"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One cell, measured or not.

    Attributes
    ----------
    cell : Cell
    status : str
        ``measured``, ``refused`` (would not fit), ``missing`` (an extra is not installed), ``failed``.
    message, fix : str
        Why it was not measured, and what to do.
    durations_ns, units : list
        Of every step that ran, warm-up first.
    cut : int
        Steps that are warm-up.
    median_ns, throughput_per_s : tuple of three
        Value, low and high end of the 95 % interval.
    family : str
        ``recurrent``, ``convolutional`` or ``dense``.
    flops_by_dtype : dict
        FLOP of one step.
    compute_utilization, cpu_utilization : float or None
    arithmetic_utilization, peak_flops_per_s : dict
        By dtype.
    waited_ratio : float
        Share of the time in which the main thread was ready but other programs had the cores.
    energy_j : float or None
        Of one step; None where the host does not tell.
    peak_resident_bytes, predicted_memory_bytes : int or None
        Of the process, Python and libraries included; of the step's tensors, before anything ran.
    predicted_memory_by_category : dict
        The latter, in bytes at the peak.
    objective : list of float or None
        What training makes fall, one value per step; None where there is none yet (no episode has ended).
    """

    cell: Cell
    status: str = "measured"
    message: str = ""
    fix: str = ""
    domain: str = ""
    source: str = ""
    data: str = ""
    unit: str = "samples"
    family: str = ""
    batch_size: int = 0
    num_parameters: int = 0
    durations_ns: list[int] = []
    units: list[float] = []
    objective: list[float | None] = []
    cut: int = 0
    num_spikes: int = 0
    is_unstable: bool = False
    change_ratio: float = 0.0
    median_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    mean_ns: float = 0.0
    iqr_ns: float = 0.0
    min_ns: float = 0.0
    max_ns: float = 0.0
    p99_ns: float = 0.0
    throughput_per_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    flops_by_dtype: dict[str, int] = {}
    peak_flops_per_s: dict[str, float] = {}
    arithmetic_utilization: dict[str, float] = {}
    compute_utilization: float | None = None
    cpu_utilization: float | None = None
    waited_ratio: float = 0.0
    energy_j: float | None = None
    energy_source: str = ""
    peak_resident_bytes: int | None = None
    predicted_memory_bytes: int | None = None
    predicted_memory_by_category: dict[str, int] = {}
    graph: str = ""
    notes: list[str] = []
    versions: dict[str, str] = {}
    machine_id: str = ""
    measured_at: str = ""
    seconds: float = 0.0
    schema: str = SCHEMA

    @property
    def is_measured(self) -> bool:
        """Whether the cell was measured."""
        return self.status == "measured"

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs used so much of the machine that the times are unreliable."""
        return self.waited_ratio > DISTURBED

    @property
    def throughput(self) -> Estimate:
        """Units per second."""
        return Estimate(*self.throughput_per_s)

    @property
    def flops(self) -> int:
        """Return the FLOP of one step."""
        return sum(self.flops_by_dtype.values())

    @property
    def ns_per_unit(self) -> list[float]:
        """Return the time per unit of every step that is neither warm-up nor a spike."""
        rows = zip(self.durations_ns, self.units, steady(self.durations_ns, self.cut), strict=True)
        return [duration_ns / units for duration_ns, units, is_steady in rows if is_steady and units > 0]


class SuiteRun(msgspec.Struct, frozen=True):
    """A folder of results."""

    path: Path
    machine: dict[str, Any]
    results: list[Result]

    @property
    def measured(self) -> list[Result]:
        """The results that were measured."""
        return [result for result in self.results if result.is_measured]

    def find(self, cell: Cell) -> Result | None:
        """Return the result of a cell, or None."""
        return next((result for result in self.results if result.cell == cell), None)


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file under a temporary name, then rename it.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    with whole(path) as scratch:
        scratch.write_bytes(content)
    return path


def write_result(folder: Path, result: Result) -> Path:
    """Save a result; it replaces one of the same cell."""
    return write_whole(folder / _RESULTS / f"{result.cell.key}.json", msgspec.json.encode(result) + b"\n")


def write_machine(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Save the machine of the results, as :func:`hardware.machine` describes it, with additional ``facts``."""
    host = hardware.machine()
    record = {
        "schema": "windtunnel.machine/1",
        "machine_id": host.fingerprint(),
        **host.json(),
        "threads_per_core": host.num_threads / host.num_cores,
        "num_sockets": num_sockets(),
        "cpu_quota_cores": cpu_quota_cores(),
        "libraries": fingerprint.libraries(),
        "versions": package_versions(),
        "measured_at": now(),
        **facts,
    }
    return write_whole(folder / _MACHINE, json.dumps(record, indent=1, sort_keys=True).encode() + b"\n")


def write_profile(folder: Path, results: Sequence[Result]) -> Path:
    """Save the measured cells as the table ``profile``."""
    sink = pa.BufferOutputStream()
    pq.write_table(profile_table(results), sink)
    return write_whole(folder / _PROFILE, sink.getvalue().to_pybytes())


def profile_table(results: Sequence[Result]) -> pa.Table:
    """Return one row per measured cell; times in ns."""
    rows = [_profile_row(result) for result in results if result.is_measured]
    return pa.Table.from_pylist(rows, schema=_PROFILE_SCHEMA)


def _profile_row(result: Result) -> dict[str, Any]:
    cell = result.cell
    times = {"min": result.min_ns, "mean": result.mean_ns, "max": result.max_ns, "p99": result.p99_ns}
    rates = zip(("", "_low", "_high"), result.throughput_per_s, strict=True)
    return {
        "model": cell.workload,
        "domain": result.domain,
        "size": cell.size,
        "machine_id": result.machine_id,
        "mode": "training, eager",
        "unit": result.unit,
        "allocator": "system",
        "num_threads": cell.num_threads,
        "num_ranks": cell.num_ranks,
        "cores": cell.num_threads * cell.num_ranks,
        "batch_size": result.batch_size,
        "num_runs": len(result.durations_ns) - result.cut,
        "warm_up_runs": result.cut,
        "num_parameters": result.num_parameters,
        "flops": result.flops,
        "peak_resident_bytes": result.peak_resident_bytes,
        **{f"latency_{name}_ns": round(value) for name, value in (times | {"p50": result.median_ns[0]}).items()},
        **{f"throughput{end}_per_s": value for end, value in rates},
        "compute_utilization": result.compute_utilization,
        "arithmetic_utilization": sum(result.arithmetic_utilization.values()) or None,
        "cpu_utilization": result.cpu_utilization,
        "energy_j": result.energy_j,
        "is_unstable": result.is_unstable,
    }


def load_run(folder: str | Path) -> SuiteRun:
    """Read the results of a folder.

    Raises
    ------
    InputError
        There are none, or a file is no result.
    SchemaVersionError
        A newer version wrote them.
    """
    path = Path(folder)
    files = sorted((path / _RESULTS).glob("*.json"))
    if not files:
        raise InputError(f"{path} holds no results of the suite", fix="make some: windtunnel suite run -o FOLDER")
    machine = path / _MACHINE
    record = read_json(ReadLimit(machine)) if machine.exists() else {}
    if not isinstance(record, dict):
        raise InputError(
            f"the machine is {format_value(record)}", where=str(machine), fix="delete it and run with --resume"
        )
    return SuiteRun(path, record, sorted(map(_read_result, files), key=_place))


def _place(result: Result) -> tuple[object, ...]:
    cell = result.cell
    return cell.workload, cell.size, cell.num_ranks, cell.num_threads, cell.link_bytes_per_s, cell.batch_size


def _read_result(file: Path) -> Result:
    try:
        result = msgspec.json.decode(read_decompressed(ReadLimit(file), error=InputError), type=Result)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InputError(
            f"this is no result of the suite: {error}", where=str(file), fix="delete the file and run with --resume"
        ) from error
    if result.schema != SCHEMA:
        raise SchemaVersionError(
            f"result of schema {result.schema!r}; this program knows {SCHEMA!r}",
            where=str(file),
            fix="update windtunnel",
        )
    return result
