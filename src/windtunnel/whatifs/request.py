"""What is asked, as text and as values.

In: ``amp``, ``data-parallel:num_ranks=8,link=nvlink4``, ``data-parallel:num_ranks=4+p3``. Out: steps with typed
parameters: the type by a parameter's annotation, its unit and range by its name. Not here: doing them, asking many
(``ask``).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.registry import did_you_mean
from windtunnel.units import parse_duration, parse_ratio, parse_size

__all__ = ["Request", "Step", "format_value", "parse_request", "parse_requests", "parse_step", "parse_value"]

_YES, _NO = ("yes", "true", "on", "1"), ("no", "false", "off", "0")
_SIZES = ("_bytes", "_bytes_per_s")
_MAY_BE_NONE_AT_ALL = ("_ns", "_bytes")
_COUNTS_FROM_ZERO = ("num_workers", "rank", "seed")
# the most by the end of a name: a day, an EiB, an EiB per second; sums over a graph then still fit into 64 bits
_MOST = {"_ns": 86_400 * 10**9, "_bytes": 2**60, "_bytes_per_s": 2**60}
_MAX_COUNT, _MAX_FACTOR, _MIN_FACTOR = 2**31 - 1, 1e6, 1e-6
_JOIN = re.compile(r"(?<![0-9][eE])\+")  # not the sign of an exponent, as in 1e+3


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


@dataclass(frozen=True, slots=True)
class Step:
    """One what-if with the parameters that differ from its defaults."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def used(self) -> Mapping[str, Any]:
        """Its parameters with the defaults of those that were not given; what is unset by default is left out."""
        known = registry.get("whatif", self.name).parameters
        defaults = {key: item.default for key, item in known.items() if item.default not in (None, "", item.empty)}
        return {**defaults, **self.parameters}

    def __str__(self) -> str:
        given = ",".join(f"{key}={format_value(value)}" for key, value in self.parameters.items())
        return f"{self.name}:{given}" if given else self.name


@dataclass(frozen=True, slots=True)
class Request:
    """Steps that are done one after the other on one graph."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "+".join(str(step) for step in self.steps)


def parse_requests(requests: str | Iterable[str | Request]) -> list[Request]:
    """Read several requests: a text with commas between them, or one text each.

    A comma is also what separates the parameters of one what-if; a piece ``key=value`` belongs to the name before it.

    Raises
    ------
    InputError
        A name or a parameter is not known, or a value does not fit.
    """
    if isinstance(requests, str):
        return [parse_request(text) for text in _split_parameters(requests)]
    return [text if isinstance(text, Request) else parse_request(text) for text in requests]


def _split_parameters(text: str) -> Iterator[str]:
    whole = ""
    for piece in text.split(","):
        is_parameter = "=" in piece and ":" not in piece.partition("=")[0]
        if whole and not is_parameter:
            yield whole
            whole = piece.strip()
        else:
            whole = f"{whole},{piece.strip()}" if whole else piece.strip()
    yield whole


def parse_request(text: str) -> Request:
    """Read one request: names joined by ``+``, each with its parameters behind a colon.

    Raises
    ------
    InputError
        A name or a parameter is not known, a value does not fit, or two steps decide the same thing.
    """
    steps = tuple(parse_step(part) for part in _split_steps(text))
    decided: dict[str, str] = {}
    for step in steps:
        thing = registry.get("whatif", step.name).decides
        if thing in decided:
            raise InputError(_twice(decided[thing], step.name), where=text, fix="ask them apart, with a comma")
        decided[thing] = step.name
    return Request(steps)


def _split_steps(text: str) -> Iterator[str]:
    """The steps; a + in a value, as in ``place=nr+rh``, is no sign between two of them."""
    known, whole = registry.all("whatif"), ""
    for piece in _JOIN.split(text):
        is_step = piece.partition(":")[0].strip() in known
        if whole and not is_step and _ends_in_text(whole):
            whole = f"{whole}+{piece.strip()}"
            continue
        if whole:
            yield whole
        whole = piece.strip()
    yield whole


def _ends_in_text(step: str) -> bool:
    """Whether its last parameter takes any text."""
    name, _, given = step.partition(":")
    key, sign, _ = given.rpartition(",")[2].partition("=")
    plugin = registry.all("whatif").get(name.strip())
    parameter = plugin.parameters.get(key.strip()) if plugin is not None and sign else None
    return parameter is not None and isinstance(parameter.default, str)


def _twice(first: str, second: str) -> str:
    if first == second:
        return f"{first} is asked twice: what is done already cannot be done again"
    return f"{first} and {second} exclude each other: both decide the same thing"


def parse_step(text: str, kind: str = "whatif") -> Step:
    """Read one plug-in's name and, behind a colon, its parameters.

    Raises
    ------
    InputError
        The name or a parameter is not known, or a value does not fit.

    Examples
    --------
    >>> parse_step("mlp:batch_size=64,depth=2", kind="workload")
    Step(name='mlp', parameters={'batch_size': 64, 'depth': 2})
    """
    name, _, given = text.partition(":")
    plugin = registry.get(kind, name.strip())
    parameters = {}
    for piece in filter(None, (piece.strip() for piece in given.split(","))):
        key, sign, value = piece.partition("=")
        if not sign:
            raise InputError(f"{piece!r} gives no value", where=text, fix="write parameters as key=value,key=value")
        parameters[key.strip()] = _value(plugin, key.strip(), value.strip())
    return Step(plugin.name, parameters)


def _value(plugin: registry.Plugin, key: str, text: str) -> Any:
    if key not in plugin.parameters:
        fix = did_you_mean(key, plugin.parameters) or "it has no parameters"
        raise InputError(f"{plugin.name} has no parameter {key!r}", fix=fix)
    return parse_value(key, plugin.parameters[key], text, plugin.name)
