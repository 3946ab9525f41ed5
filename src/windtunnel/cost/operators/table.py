"""Measured operators on many accelerators, as published with NeuSight.

In: an op set (CSV, plain or gzip, one row per measured kernel) and a sheet of devices. Out: ``OpTable``, checked, and
``Device`` by name. A matrix product is (M x N) times (N x K): N is the contraction, latencies are milliseconds, and
elements have 4 bytes. Not here: prices (``tile``), which device a model may see (``OpSplit`` only keeps them apart).
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.reading import ReadLimit, read_decompressed
from windtunnel.errors import InputError
from windtunnel.hardware import Device

__all__ = [
    "CLASSES",
    "ELEMENTWISE",
    "PRODUCTS",
    "OpSplit",
    "OpTable",
    "op_class",
    "read_op_set",
    "read_published",
    "read_sheet",
]

# P rows
Floats = NDArray[np.float64]
Texts = NDArray[np.object_]
Mask = NDArray[np.bool_]

PRODUCTS = ("bmm", "linear")
ELEMENTWISE = ("add", "addu", "div", "divu", "mul", "mulu", "pow", "powu", "relu", "gelu", "tanh")
"""A trailing u says one tensor and a scalar."""
CLASSES = (*PRODUCTS, "elementwise", "ln", "softmax")
"""Those of the published op sets, one predictor each; of other operators ``graph.kernel_classes`` says the class."""
_SIZES = ("B", "M", "N", "K", "H")
_TILES = ("tile1", "tile2")
_SHEET = ("device", "num_units", "fp32_tflops", "mem_gb", "mem_bw_gbs")


def op_class(op: str) -> str:
    """The class whose predictor prices an operator; empty where there is none.

    Examples
    --------
    >>> op_class("addu"), op_class("softmax"), op_class("conv2d")
    ('elementwise', 'softmax', '')
    """
    if op in ELEMENTWISE:
        return "elementwise"
    return op if op in CLASSES else ""


@dataclass(frozen=True, eq=False)
class OpTable:
    """P kernels: what ran where, and how long.

    Parameters
    ----------
    device, op : object [P]
    latency_ms : float [P]
        NaN where it was not measured (rows to price).
    B, M, N, K, H : float [P]
        Batch, (M x N) times (N x K), and of vector operators B rows of H elements; 0 where it does not apply.
    tile1, tile2 : float [P]
        Output tile of the kernel that ran; 0 where it is not known.
    """

    device: Texts
    op: Texts
    latency_ms: Floats
    B: Floats
    M: Floats
    N: Floats
    K: Floats
    H: Floats
    tile1: Floats
    tile2: Floats

    def __len__(self) -> int:
        return len(self.op)

    @property
    def op_class(self) -> Texts:
        """Class of each row [P]."""
        known = {op: op_class(op) for op in dict.fromkeys(self.op.tolist())}
        return np.array([known[op] for op in self.op.tolist()], dtype=object)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(set(self.device.tolist())))

    def take(self, rows: NDArray[np.int64] | Mask) -> OpTable:
        """The given rows."""
        return OpTable(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def of_class(self, name: str) -> OpTable:
        """Rows of one class."""
        return self.take(self.op_class == name)

    def on(self, *devices: str) -> OpTable:
        """Rows of the given devices."""
        return self.take(np.isin(self.device, devices))

    def some(self, most: int, seed: int) -> OpTable:
        """A random sample of at most ``most`` rows."""
        rows = np.random.default_rng(seed).choice(len(self), min(most, len(self)), replace=False)
        return self.take(np.sort(rows))

    def concat(self, others: Sequence[OpTable]) -> OpTable:
        """These rows and those of other tables."""
        tables = (self, *others)
        names = [field.name for field in fields(self)]
        return OpTable(**{name: np.concatenate([getattr(table, name) for table in tables]) for name in names})

    def digest(self) -> str:
        """Short hash of the rows: equal tables have equal digests."""
        result = hashlib.sha256()
        for field in fields(self):
            column = getattr(self, field.name)
            result.update("\n".join(column.tolist()).encode() if column.dtype == object else column.tobytes())
        return result.hexdigest()[:16]

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[str, str, Sequence[float]]]) -> OpTable:
        """Rows to price, as (device, op, sizes): sizes (B, M, N, K) of a product, (B, H) of the others."""
        given = list(rows)
        sizes = np.zeros((len(given), len(_SIZES)))
        for row, (_, name, numbers) in enumerate(given):
            sizes[row] = (*numbers, 0.0) if name in PRODUCTS else (numbers[0], 0.0, 0.0, 0.0, numbers[1])
        device, op = (np.array([row[index] for row in given], dtype=object) for index in (0, 1))
        unknown = np.full(len(given), np.nan)
        columns = dict(zip((*_SIZES, *_TILES), (*sizes.T, *np.zeros((2, len(given)))), strict=True))
        return cls(device, op, unknown, **columns)


@dataclass(frozen=True, eq=False)
class OpSplit:
    """What may be learned from and what is held out; nothing else reaches a model.

    The tile table, normalization, validation and every choice that a model makes come from ``train`` alone.

    Parameters
    ----------
    train, held_out : OpTable
    """

    train: OpTable
    held_out: OpTable

    @classmethod
    def without_device(cls, table: OpTable, device: str) -> OpSplit:
        """Leave one device out.

        Raises
        ------
        InputError
            The table has no such device, or no other one.
        """
        is_held_out = table.device == device
        if not is_held_out.any() or is_held_out.all():
            raise InputError(f"cannot hold out {device!r}", where="devices", fix=f"known: {', '.join(table.devices)}")
        return cls(table.take(~is_held_out), table.take(is_held_out))

    @classmethod
    def by_size(cls, table: OpTable, share: float = 0.7, *, held_out: str = "") -> OpSplit:
        """Learn from the smaller ``share`` of each operator's shapes, hold the larger ones out.

        With ``held_out`` the small ones of that device are dropped too, and its large ones alone are held out: a new
        device and new sizes at once, which is what a price for hardware that is not at hand asks for.
        """
        is_large = np.zeros(len(table), dtype=bool)
        volume = np.where(table.H > 0, table.B * table.H, table.B * table.M * table.N * table.K)
        for name in set(table.op_class.tolist()):
            rows = table.op_class == name
            is_large |= rows & (volume > np.quantile(volume[rows], share))
        if not held_out:
            return cls(table.take(~is_large), table.take(is_large))
        elsewhere = table.device != held_out
        return cls(table.take(~is_large & elsewhere), table.take(is_large & ~elsewhere))


def read_op_set(*paths: str | Path) -> OpTable:
    """Read measured operators; several files become one table.

    Raises
    ------
    InputError
        A file is no op set, or a row has a latency or a size that is not above zero: names file and line.
    """
    tables = [_read_table(Path(path)) for path in paths]
    return tables[0].concat(tables[1:])


def read_published(folder: str | Path, split: str) -> tuple[OpTable, dict[str, Device]]:
    """Read the op sets of one split, and the sheet of devices in the same or the parent folder, as they were published.

    Parameters
    ----------
    folder : path
        With ``devices.csv`` and, in it or in ``neusight/``, ``<split>_*.csv`` files, plain or gzip.
    split : str
        ``train`` or ``test``.

    Raises
    ------
    InputError
        There are none.
    """
    top = Path(folder)
    location = top / "neusight" if (top / "neusight").is_dir() else top
    # convolutions have other columns and no tile model
    files = [path for path in sorted(location.glob(f"{split}_*.csv*")) if "conv" not in path.name]
    sheets = [
        path for path in (top / "devices.csv", location / "devices.csv", top.parent / "devices.csv") if path.is_file()
    ]
    if not files or not sheets:
        missing = "devices.csv" if files else f"{split}_*.csv"
        raise InputError(f"there is no {missing}", where=str(folder), fix="name the folder that holds devices.csv")
    return read_op_set(*files), read_sheet(sheets[0])


def _read_table(path: Path) -> OpTable:
    header, rows = _csv(path)
    missing = [name for name in ("device", "op", "latency_ms") if name not in header]
    if missing:
        raise InputError(f"this is no op set: no column {', '.join(missing)}", where=str(path))
    table = _table(header, rows, path)
    _check(table, path)
    return table


def _csv(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        rows = list(csv.reader(read_decompressed(ReadLimit(path), cost=16, error=InputError).decode().splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error
    if len(rows) < 2:
        raise InputError("there are no rows", where=str(path))
    return rows[0], rows[1:]


def _table(header: list[str], rows: list[list[str]], path: Path) -> OpTable:
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(f"{len(row)} fields under {len(header)} names", where=f"{path}, line {line}")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    latency = _numbers(columns["latency_ms"], "latency_ms", path)
    empty = ("",) * len(rows)
    sizes = {name: _numbers(columns.get(name, empty), name, path, empty=0.0) for name in (*_SIZES, *_TILES)}
    device, op = (np.array(columns[name], dtype=object) for name in ("device", "op"))
    return OpTable(device, op, latency, **sizes)


def _numbers(strings: Sequence[str], name: str, path: Path, *, empty: float = math.nan) -> Floats:
    try:
        return np.array([float(text) if text else empty for text in strings])
    except ValueError:
        line = next(line for line, text in enumerate(strings, start=2) if text and not _is_number(text))
        raise InputError(
            f"{name} is no number: {strings[line - 2]!r}", where=f"{path}, line {line}", fix="write a number"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check(table: OpTable, path: Path) -> None:
    _refuse(~(np.isfinite(table.latency_ms) & (table.latency_ms > 0)), table.latency_ms, "latency_ms", path)
    is_product = np.isin(table.op, PRODUCTS)
    for name in _SIZES:
        column = getattr(table, name)
        needed = is_product if name in "MNK" else ~is_product if name == "H" else np.ones(len(table), dtype=bool)
        _refuse(needed & ~(np.isfinite(column) & (column > 0)), column, name, path)


def _refuse(is_bad: Mask, column: Floats, name: str, path: Path) -> None:
    if not is_bad.any():
        return
    row = int(np.argmax(is_bad))
    others = int(is_bad.sum()) - 1
    raise InputError(
        f"{name} must be above zero, not {column[row]:g}" + (f" (and {others} rows more)" if others else ""),
        where=f"{path}, line {row + 2}",
        fix="leave the row out or measure it again",
    )


def read_sheet(path: str | Path) -> dict[str, Device]:
    """Read a sheet of accelerators; memory and caches in 2^30, 2^20 and 2^10 bytes, rates in 1e9 and 1e12 per second.

    Rows without the numbers that prices need (CPUs, chips of unknown units) are left out.

    Raises
    ------
    InputError
        It is no such sheet; lists the columns that are missing.
    """
    header, rows = _csv(Path(path))
    missing = [name for name in _SHEET if name not in header]
    if missing:
        raise InputError(f"this is no sheet of devices: no column {', '.join(missing)}", where=str(path))
    result = [dict(zip(header, row, strict=True)) for row in rows]
    return {
        row["device"]: _device(row) for row in result if row.get("kind", "gpu") == "gpu" and all(map(row.get, _SHEET))
    }


def _device(row: dict[str, str]) -> Device:
    half = row.get("fp16_matrix_tflops_dense")
    peaks = {"fp32": float(row["fp32_tflops"]) * 1e12} | ({"fp16": float(half) * 1e12} if half else {})
    return Device(
        name=row["device"],
        memory_bytes=round(float(row["mem_gb"]) * 2**30),
        bandwidth_bytes_per_s=float(row["mem_bw_gbs"]) * 1e9,
        peak_flops_per_s=peaks,
        vendor=row.get("vendor", ""),
        num_units=int(row["num_units"]),
        source=row.get("source", ""),
        architecture=row.get("arch", "").split(" ")[0],
        lanes_per_unit=_optional(row.get("cores_per_unit"), 1),
        clock_hz=_optional(row.get("clock_mhz"), 1e6),
        shared_bytes=_optional(row.get("smem_kb_per_unit"), 2**10),
        l2_bytes=_optional(row.get("l2_mb"), 2**20),
    )


def _optional(text: str | None, unit: float) -> int | None:
    return round(float(text) * unit) if text else None
