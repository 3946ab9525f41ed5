"""Accelerators from a description: a JSON object of one's own, or one of the catalog.

In: ``{"name", "source", "clock_hz", "arrays": [{"rows", "cols", "count", ...}], "vector": {"width", "count"}, "sram":
{"global"} or {"x", "w", "y"}, "dram": {"bytes", "bytes_per_s"}, ...}``; sizes are bytes or a text such as ``128MiB``.
Out: an ``Accelerator``. Not here: what its numbers must be (``accelerators``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from windtunnel.base.reading import format_value
from windtunnel.errors import InputError
from windtunnel.hardware.accelerators import Accelerator, Arrays, OperatorRate
from windtunnel.hardware.parts import FourierEngine, SparseGrid
from windtunnel.units import parse_size

__all__ = ["accelerator_of", "accelerators", "is_accelerator_sheet"]

Part = TypeVar("Part", Arrays, OperatorRate, SparseGrid, FourierEngine)

_NEEDED = ("name", "source", "clock_hz", "arrays", "vector", "sram", "dram")
_MORE = ("kind", "word_bytes", "launch_s", "cache_bytes_per_s", "memory_ratio", "operators", "sparse_grid",
         "fourier_engine")  # fmt: skip
_ENGINES = tuple(field.name for kind in (SparseGrid, FourierEngine) for field in fields(kind))
_WHOLE = frozenset(("rows", "cols", "count", "per_core", "word_bytes", *_ENGINES)) - {"buffer_bytes_per_cycle"}
_NEEDED_OF = {Arrays: ("rows", "cols", "count"), OperatorRate: ("overhead_ns",)}


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Every accelerator of the catalog by name."""
    text = resources.files("windtunnel.hardware").joinpath("accelerators.json").read_text(encoding="utf-8")
    return {sheet["name"]: accelerator_of(sheet, "catalog") for sheet in json.loads(text)}


def is_accelerator_sheet(sheet: Mapping[str, Any]) -> bool:
    """Whether a sheet describes what a chip is built of, and not what it reaches."""
    return "arrays" in sheet


def accelerator_of(sheet: Mapping[str, Any], where: str) -> Accelerator:
    """The accelerator that a sheet describes.

    Parameters
    ----------
    sheet : mapping
    where : str
        Where it comes from, for messages.

    Raises
    ------
    InputError
        Fields are missing or unknown (all are listed), or a value is of another form; names the field and the value.
    """
    # All problems with names of fields come first and together; values are looked at afterwards, one by one.
    _require_fields(sheet, "the accelerator's sheet", where, _NEEDED, _MORE)
    vector, dram = _object(sheet, "vector", where), _object(sheet, "dram", where)
    _require_fields(vector, "vector", where, ("width", "count"))
    _require_fields(dram, "dram", where, ("bytes", "bytes_per_s"), ("pj_per_bit",))
    arrays = sheet["arrays"]
    if not isinstance(arrays, list) or not arrays:
        raise InputError(
            f"arrays is {format_value(arrays)}", where=where, fix='write [{"rows": 128, "cols": 128, "count": 8}]'
        )
    operators = _object(sheet, "operators", where) if "operators" in sheet else {}
    built = tuple(_part(Arrays, array, f"arrays[{index}]", where) for index, array in enumerate(arrays))
    # Optional fields are passed only where the sheet has them, so that the class states each default once.
    given: dict[str, Any] = {name: _number(sheet, name, where) for name in ("memory_ratio",) if name in sheet}
    if "pj_per_bit" in dram:
        given["memory_pj_per_bit"] = _number(dram, "pj_per_bit", where)
    if "cache_bytes_per_s" in sheet:
        given["cache_bandwidth_bytes_per_s"] = _number(sheet, "cache_bytes_per_s", where)
    if "launch_s" in sheet:
        given["launch_overhead_ns"] = round(1e9 * _number(sheet, "launch_s", where)) or None
    if "fourier_engine" in sheet:
        given["fourier_engine"] = _part(FourierEngine, sheet["fourier_engine"], "fourier_engine", where)
    if "sparse_grid" in sheet:
        given["sparse_grid"] = _part(SparseGrid, sheet["sparse_grid"], "sparse_grid", where)
    chip = Accelerator(
        name=_text(sheet, "name", where),
        source=_text(sheet, "source", where),
        kind=_text(sheet, "kind", where) if "kind" in sheet else "accelerator",
        memory_bytes=_size(dram, "bytes", where),
        bandwidth_bytes_per_s=_number(dram, "bytes_per_s", where),
        num_units=sum(item.count // item.per_core for item in built),
        clock_hz=_number(sheet, "clock_hz", where),
        arrays=built,
        num_vector_units=_whole(vector, "count", where),
        vector_width=_whole(vector, "width", where),
        sram_bytes={name: _size(_object(sheet, "sram", where), name, where) for name in sheet["sram"]},
        word_bytes=_whole(sheet, "word_bytes", where) if "word_bytes" in sheet else 2,
        operators={
            name: _part(OperatorRate, operator, f"operators.{name}", where) for name, operator in operators.items()
        },
        **given,
    )
    return chip if chip.sparse_grid is None else replace(chip, sparse_grid=_fed(chip.sparse_grid, chip))


def _fed(grid: SparseGrid, chip: Accelerator) -> SparseGrid:
    """The grid with the words, the buffer and the memory of its chip."""
    assert chip.clock_hz is not None  # an accelerator without a clock cannot be made
    rate = chip.bandwidth_bytes_per_s * chip.memory_ratio / chip.clock_hz
    return replace(grid, word_bytes=chip.word_bytes, buffer_bytes=chip.buffer_bytes, memory_bytes_per_cycle=rate)


def _require_fields(
    fields: Mapping[str, Any], what: str, where: str, needed: tuple[str, ...], more: tuple[str, ...] = ()
) -> None:
    missing = [name for name in needed if name not in fields]
    if missing:
        raise InputError(f"{what} lacks {', '.join(missing)}", where=where, fix=f"give {', '.join(needed)}")
    unknown = [name for name in fields if name not in needed + more]
    if unknown:
        raise InputError(f"{what} has unknown fields: {', '.join(unknown)}", where=where)


def _part(kind: type[Part], value: Any, name: str, where: str) -> Part:
    """One of the parts that are dataclasses: its fields by name, those without a default needed."""
    if not isinstance(value, dict):
        raise InputError(f"{name} is {format_value(value)}", where=where, fix="write {field: value, ...}")
    names = tuple(field.name for field in fields(kind))
    _require_fields(value, name, where, _NEEDED_OF.get(kind, ()), names)
    return kind(**{field: _value(value, field, name, where) for field in value})


def _value(fields: Mapping[str, Any], field: str, name: str, where: str) -> Any:
    value = fields[field]
    if field == "dataflow":
        return _text(fields, field, where)
    if field == "is_overlapped":
        if not isinstance(value, bool):
            raise InputError(f"{name}.{field} is {format_value(value)}", where=where, fix="write true or false")
        return value
    if field == "tile_sides":
        if not isinstance(value, list) or not all(isinstance(item, int) and item is not True for item in value):
            raise InputError(f"{name}.{field} is {format_value(value)}", where=where, fix="write [64, 128]")
        return tuple(value)
    return _whole(fields, field, where) if field in _WHOLE else _number(fields, field, where)


def _object(sheet: Mapping[str, Any], field: str, where: str) -> dict[str, Any]:
    result = sheet[field]
    if not isinstance(result, dict):
        raise InputError(f"{field} is {format_value(result)}", where=where, fix="write {field: value, ...}")
    return result


def _text(sheet: Mapping[str, Any], field: str, where: str) -> str:
    if not isinstance(sheet[field], str) or not sheet[field]:
        raise InputError(f"{field} is {format_value(sheet[field])}", where=where, fix="write a text")
    return str(sheet[field])


def _number(fields: Mapping[str, Any], field: str, where: str) -> float:
    if isinstance(fields[field], bool) or not isinstance(fields[field], int | float):
        raise InputError(f"{field} is {format_value(fields[field])}", where=where, fix="write a number")
    return float(fields[field])


def _whole(fields: Mapping[str, Any], field: str, where: str) -> int:
    value = _number(fields, field, where)
    if not value.is_integer():
        raise InputError(
            f"{field} is {format_value(fields[field])}", where=where, fix="write a whole number above zero"
        )
    return int(value)


def _size(fields: Mapping[str, Any], field: str, where: str) -> int:
    return parse_size(fields[field]) if isinstance(fields[field], str) else _whole(fields, field, where)
