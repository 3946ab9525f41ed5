"""Parse and print sizes, times, rates and ratios.

The only place that knows prefixes: ``GB`` is 10**9, ``GiB`` is 2**30. Times are integer nanoseconds, sizes
integer bytes, rates float per second.
"""

from __future__ import annotations

import math
import re

from windtunnel.errors import InputError

__all__ = [
    "format_count",
    "format_duration",
    "format_per_s",
    "format_rate",
    "format_ratio",
    "format_size",
    "format_spread",
    "parse_duration",
    "parse_rate",
    "parse_ratio",
    "parse_size",
]

_DURATION_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
_SIZE_BYTES = {
    "B": 1,
    **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("kMGTP")},
    **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGTP")},
    "KB": 1000,
}
_MOST = 2**63 - 1
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-zµ%]*)\s*")


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None or not math.isfinite(float(match[1])):
        raise InputError(f"{text!r} is not a {what}", fix=f"write it like {example}")
    if float(match[1]) < 0:
        raise InputError(f"{text!r} is below nothing: no {what} is negative", fix=f"write it like {example}")
    return float(match[1]), match[2]


def _parse_with_unit(text: str, what: str, example: str, factors: dict[str, int]) -> int:
    value, unit = _split(text, what, example)
    if unit not in factors:
        raise InputError(f"{text!r} has no known unit of {what}", fix=_suggest_units(text, unit, factors))
    if value * factors[unit] > _MOST:
        raise InputError(f"{text!r} is too large a {what}", fix="64 bits hold no more than 9.2e18 of the smallest unit")
    return round(value * factors[unit])


def _suggest_units(text: str, unit: str, factors: dict[str, int]) -> str:
    """Both meanings of ``16G``, the right spelling of ``16gb``; else all units."""
    number = text.strip().removesuffix(unit).strip()
    alike = [factor for factor in factors if factor.lower() == unit.lower()]
    if not alike and unit and factors is _SIZE_BYTES:
        alike = [
            factor
            for factor in factors
            if factor.lower() in (f"{unit.lower()}b", f"{unit.lower()}ib") and factor != "KB"
        ]
    if not alike:
        return f"use one of {', '.join(factors)}"
    meanings = (
        f"{number}{item}" + (f" ({factors[item]:,} bytes each)" if factors is _SIZE_BYTES else "") for item in alike
    )
    return f"did you mean {' or '.join(meanings)}?"


def parse_duration(text: str) -> int:
    """Parse ``"90s"`` or ``"2.5ms"`` into nanoseconds.

    Raises
    ------
    InputError
        The text is not a number with a unit of time, is negative, or longer than 292 years.

    Examples
    --------
    >>> parse_duration("1.5ms")
    1500000
    """
    return _parse_with_unit(text, "duration", "90s or 2.5ms", _DURATION_NS)


def parse_size(text: str) -> int:
    """Parse ``"80GiB"`` or ``"4.5GB"`` into bytes.

    Raises
    ------
    InputError
        The text is not a number with a unit of size (``16G`` may be GB or GiB), is negative, or above 8 EiB.

    Examples
    --------
    >>> parse_size("1KiB")
    1024
    """
    return _parse_with_unit(text, "size", "80GiB or 4.5GB", _SIZE_BYTES)


def parse_rate(text: str) -> float:
    """Parse ``"16 GB/s"``, or ``"1Gbit"`` as networks are sold, into bytes per second.

    Raises
    ------
    InputError
        The text is not a size per second.

    Examples
    --------
    >>> parse_rate("16 GB/s")
    16000000000.0
    >>> parse_rate("1Gbit")
    125000000.0
    """
    bits = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT])bit(?:/s)?\s*", text)
    if bits is not None:
        return float(bits[1]) * 1000.0 ** (1 + "kMGT".index(bits[2])) / 8
    size, sign, unit = text.rpartition("/")
    if not sign or unit.strip() != "s":
        raise InputError(f"{text!r} is not a rate", fix="write it like 16 GB/s")
    return float(parse_size(size))


def parse_ratio(text: str) -> float:
    """Parse ``"5%"`` or ``"0.05"`` into a ratio.

    Raises
    ------
    InputError
        The text is neither a number nor a percentage, or is negative.

    Examples
    --------
    >>> parse_ratio("5%")
    0.05
    """
    value, unit = _split(text, "ratio", "5% or 0.05")
    if unit not in ("", "%"):
        raise InputError(f"{text!r} is not a ratio", fix="write it like 5% or 0.05")
    return value / 100 if unit == "%" else value


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 3)}f}"


def format_duration(duration_ns: float) -> str:
    """Print nanoseconds with three digits and the unit that fits.

    Examples
    --------
    >>> format_duration(12_840_000)
    '12.8 ms'
    """
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if abs(duration_ns) >= factor:
            return f"{_three_digits(duration_ns / factor)} {unit}"
    return f"{duration_ns:.0f} ns"


def format_spread(duration_ns: float, spread_ns: float) -> tuple[str, str]:
    """Print nanoseconds with the digits that their spread deserves, and the spread in the same unit.

    Examples
    --------
    >>> format_spread(12_840_123, 210_000)
    ('12.84 ms', '±0.21')
    """
    units = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))
    unit, factor = next((pair for pair in units if abs(duration_ns) >= pair[1]), units[-1])
    if spread_ns <= 0:
        return format_duration(duration_ns), "±0"
    digits = min(3, max(0, 1 - math.floor(math.log10(spread_ns / factor))))
    return f"{duration_ns / factor:.{digits}f} {unit}", f"±{spread_ns / factor:.{digits}f}"


def format_size(size_bytes: float) -> str:
    """Print bytes with three digits and a binary prefix.

    Examples
    --------
    >>> format_size(3 * 2**20)
    '3.00 MiB'
    """
    for power, prefix in ((5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if abs(size_bytes) >= 1024**power:
            return f"{_three_digits(size_bytes / 1024**power)} {prefix}iB"
    return f"{size_bytes:.0f} B"


def format_rate(rate_per_s: float, unit: str = "B/s") -> str:
    """Print a rate per second with three digits and a decimal prefix.

    Examples
    --------
    >>> format_rate(25e9)
    '25.0 GB/s'
    """
    for power, prefix in ((5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if abs(rate_per_s) >= 1000**power:
            return f"{_three_digits(rate_per_s / 1000**power)} {prefix}{unit}"
    return f"{_three_digits(rate_per_s)} {unit}"


def format_per_s(amount_per_s: float, what: str) -> str:
    """Print how many things are done per second, with three digits and thousands separated.

    Examples
    --------
    >>> format_per_s(12_345.6, "samples"), format_per_s(0.61803, "samples")
    ('12,300 samples/s', '0.618 samples/s')
    """
    digits = 2 - math.floor(math.log10(amount_per_s)) if amount_per_s > 0 else 0
    return f"{round(amount_per_s, digits):,.{min(max(digits, 0), 3)}f} {what}/s"


def format_count(count: int) -> str:
    """Print a count with thousands separated.

    Examples
    --------
    >>> format_count(1830)
    '1,830'
    """
    return f"{count:,}"


def format_ratio(ratio: float) -> str:
    """Print a ratio as a percentage with the digits that it deserves.

    Examples
    --------
    >>> format_ratio(0.314)
    '31 %'
    """
    return f"{100 * ratio:.1f} %" if abs(ratio) < 0.1 else f"{100 * ratio:.0f} %"
