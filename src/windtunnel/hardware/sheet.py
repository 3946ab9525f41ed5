"""Sheets of devices and links: a row of the catalog, or a JSON file of one's own with the same fields.

In: text by field. Out: a ``Device``. A field that does not apply is empty (``null`` in JSON); one that is left out of a
file is an error: nothing is silently zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from windtunnel.base.outputs import whole
from windtunnel.base.reading import ReadLimit, format_value, read_json
from windtunnel.errors import InputError
from windtunnel.hardware.accelerator_sheet import accelerator_of, is_accelerator_sheet
from windtunnel.hardware.parts import Device, Link

__all__ = ["FIELDS", "device_of_row", "read_link", "read_sheet", "write_link"]

_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_PEAKS = {f"{name}_tflops": name for name in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")} | {"int8_tops": "int8"}
_TEXTS = ("name", "kind", "vendor", "architecture", "source", "date")
_NEEDED = ("name", "kind", "num_units", "memory_gib", "bandwidth_gb_per_s", "source")
# field of the sheet: field of a Device, unit
_NUMBERS = {
    "lanes_per_unit": ("lanes_per_unit", 1),
    "clock_mhz": ("clock_hz", 1e6),
    "l1_kib": ("l1_bytes", _KIB),
    "shared_kib": ("shared_bytes", _KIB),
    "l2_mib": ("l2_bytes", _MIB),
    "l3_mib": ("l3_bytes", _MIB),
    "cache_bandwidth_gb_per_s": ("cache_bandwidth_bytes_per_s", 1e9),
    "num_threads": ("num_threads", 1),
    "simd_bits": ("simd_bits", 1),
    "launch_overhead_ns": ("launch_overhead_ns", 1),
}
_RATES = ("clock_hz", "cache_bandwidth_bytes_per_s")
FIELDS = (*_TEXTS, "year", "num_units", "memory_gib", "bandwidth_gb_per_s", *_PEAKS, *_NUMBERS)
"""Of a sheet; ``aliases`` is the catalog's own."""


def device_of_row(row: Mapping[str, str]) -> Device:
    """The device of one row, whose empty fields are not known.

    Raises
    ------
    InputError
        A number is none, or not above zero.
    """
    known = {name: text for name, text in row.items() if text != ""}
    optional: dict[str, Any] = {}
    for name, (field, unit) in _NUMBERS.items():
        if name in known:
            value = _number(known, name) * unit
            optional[field] = value if field in _RATES else round(value)
    return Device(
        name=known["name"],
        memory_bytes=round(_number(known, "memory_gib") * _GIB),
        bandwidth_bytes_per_s=_number(known, "bandwidth_gb_per_s") * 1e9,
        peak_flops_per_s={dtype: _number(known, name) * 1e12 for name, dtype in _PEAKS.items() if name in known},
        kind=known["kind"],
        vendor=known.get("vendor", ""),
        architecture=known.get("architecture", ""),
        year=round(_number(known, "year")) if "year" in known else 0,
        num_units=round(_number(known, "num_units")),
        source=", ".join(known[name] for name in ("source", "date") if name in known),
        **optional,
    )


def read_sheet(path: Path) -> Device:
    """Read a device of one's own: one JSON object with every one of ``FIELDS``, ``null`` where it is not known.

    One with ``arrays`` says what the device is built of, see ``accelerator_sheet``.

    Raises
    ------
    InputError
        The file is not there or no JSON object; fields are missing or unknown (all are listed), or needed ones are
        null; it states no peak.
    """
    sheet = _object(path, "device")
    if is_accelerator_sheet(sheet):
        return accelerator_of(sheet, str(path))
    _check(sheet, path)
    row = {name: "" if sheet[name] is None else str(sheet[name]) for name in FIELDS}
    if not any(row[name] for name in _PEAKS):
        raise InputError("the sheet states no peak", where=str(path), fix=f"give one of {', '.join(_PEAKS)}")
    return device_of_row(row)


def read_link(path: Path) -> Link:
    """Read a link of one's own: one JSON object with the fields of a ``Link``.

    Raises
    ------
    InputError
        The file is not there or no JSON object, a field is missing, unknown or no number.
    """
    sheet = _object(path, "link")
    kinds: dict[str, Any] = {
        "name": str,
        "bandwidth_bytes_per_s": (int, float),
        "latency_ns": int,
        "is_duplex": bool,
        "source": str,
        "sum_bytes_per_s": (int, float, NoneType),
    }
    for name in kinds:
        if name not in sheet and name in ("name", "bandwidth_bytes_per_s", "latency_ns"):
            raise InputError(f"the link's sheet lacks {name}", where=str(path), fix=f"give {', '.join(kinds)}")
    for name, value in sheet.items():
        is_right = name in kinds and isinstance(value, kinds[name]) and (name == "is_duplex" or value is not True)
        if not is_right:
            raise InputError(
                f"the link's sheet says {name} is {format_value(value)}",
                where=str(path),
                fix=f"give {', '.join(kinds)}",
            )
    return Link(**sheet)


def write_link(link: Link, path: Path) -> Path:
    """Write what ``read_link`` reads.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    with whole(path) as scratch:
        scratch.write_text(json.dumps(link.json(), indent=2) + "\n", encoding="utf-8")
    return path


def _object(path: Path, what: str) -> dict[str, Any]:
    try:
        result = read_json(ReadLimit(path))
    except InputError as error:
        raise InputError(
            f"the {what}'s sheet cannot be read: {error.message}", where=error.where, fix=error.fix
        ) from error
    if not isinstance(result, dict):
        raise InputError(f"the {what}'s sheet is not one JSON object", where=str(path), fix="write {field: value, ...}")
    return result


def _check(sheet: Mapping[str, Any], path: Path) -> None:
    missing = [name for name in FIELDS if name not in sheet]
    missing += [name for name in _NEEDED if name in sheet and sheet[name] in (None, "")]
    if missing:
        raise InputError(
            f"the device's sheet lacks {len(missing)} fields: {', '.join(missing)}",
            where=str(path),
            fix="add them; null says that a value is not known",
        )
    unknown = [name for name in sheet if name not in FIELDS]
    if unknown:
        raise InputError(f"the device's sheet has unknown fields: {', '.join(unknown)}", where=str(path))


def _number(row: Mapping[str, str], name: str) -> float:
    try:
        return float(row[name])
    except ValueError as error:
        raise InputError(f"{name} is not a number: {row[name]!r}", where=f"device {row['name']}") from error
