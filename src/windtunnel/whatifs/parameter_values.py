"""Text as the value of a plug-in's parameter: its type by annotation, unit and range by name.

In: a parameter and text. Out: a value that a computation can hold. Not here: which parameters there are (``request``).
"""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

from windtunnel.errors import InputError
from windtunnel.units import parse_duration, parse_ratio, parse_size

__all__ = ["format_value", "parse_value"]

_YES, _NO = ("yes", "true", "on", "1"), ("no", "false", "off", "0")
_SIZES = ("_bytes", "_bytes_per_s")
_MAY_BE_NONE_AT_ALL = ("_ns", "_bytes")
_COUNTS_FROM_ZERO = ("num_workers", "rank", "seed")
# the most by the end of a name: a day, an EiB, an EiB per second; sums over a graph then still fit into 64 bits
_MOST = {"_ns": 86_400 * 10**9, "_bytes": 2**60, "_bytes_per_s": 2**60}
_MAX_COUNT, _MAX_FACTOR, _MIN_FACTOR = 2**31 - 1, 1e6, 1e-6


def format_value(value: Any) -> str:
    """A value as :func:`parse_value` reads it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_value(key: str, parameter: inspect.Parameter, text: str, where: str) -> Any:
    """The value, or an error that says where it was given.

    Raises
    ------
    InputError
        It does not fit.
    """
    try:
        return _convert_value(key, parameter, text)
    except InputError as error:
        raise InputError(f"{key} cannot be {text!r}: {error.message}", where=where, fix=error.fix) from error
    except ValueError as error:
        raise InputError(f"{key} cannot be {text!r}", where=where, fix=f"{error}") from error


def _convert_value(key: str, parameter: inspect.Parameter, text: str) -> Any:
    """Of the type that the annotation says, with the unit and the range of the name; ValueError says what would do."""
    kinds = _kinds(parameter)
    if "None" in kinds and text.lower() == "none":
        return None
    if "bool" in kinds:
        if text.lower() in (*_YES, *_NO):
            return text.lower() in _YES
        raise ValueError("write yes or no")
    if not kinds & {"int", "float"}:
        return text
    return _in_range(key, parameter, _number(key, text, is_whole="float" not in kinds))


def _kinds(parameter: inspect.Parameter) -> set[str]:
    """Names of the types, whether the annotation is text or a type."""
    annotation = parameter.annotation
    words = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    kinds = set(re.findall(r"\w+", words))
    return kinds | {"None"} if "Optional" in kinds else kinds


def _number(key: str, text: str, *, is_whole: bool) -> int | float:
    try:
        value = float(text)
    except ValueError:
        return _with_unit(key, text, is_whole=is_whole)
    if not math.isfinite(value):
        raise ValueError("give a number that has an end")
    if not is_whole:
        return value
    if not value.is_integer():
        raise ValueError("give a whole number")
    return int(value)


def _with_unit(key: str, text: str, *, is_whole: bool) -> int | float:
    if key.endswith("_ns"):
        return parse_duration(text)
    if key.endswith(_SIZES):
        return parse_size(text.removesuffix("/s"))
    if key.endswith("_ratio"):
        return parse_ratio(text)
    raise ValueError("give a whole number" if is_whole else "give a number")


def _in_range(key: str, parameter: inspect.Parameter, value: int | float) -> int | float:
    least, most = (_MIN_FACTOR, _MAX_FACTOR) if isinstance(value, float) else (1, _MAX_COUNT)
    most = next((limit for end, limit in _MOST.items() if key.endswith(end)), most)
    may_be_zero = parameter.default == 0 or key.endswith(_MAY_BE_NONE_AT_ALL) or key in _COUNTS_FROM_ZERO
    if (value == 0 and may_be_zero) or least <= value <= most:
        return value
    raise ValueError(f"give {'0, or ' if may_be_zero else ''}{least:g} to {most:,.0f}")
