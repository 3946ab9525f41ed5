"""What is asked, as text and as values (room whatifs).

In: ``amp``, ``data-parallel:num_ranks=8,link=nvlink4``, ``data-parallel:num_ranks=4+p3``. Out: steps with typed
parameters. Not here: doing them (``edit``), asking many (``ask``).
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.units import parse_duration, parse_ratio, parse_size

__all__ = ["Request", "Step", "parse_request", "parse_requests", "parse_step"]

_YES, _NO = ("yes", "true", "on", "1"), ("no", "false", "off", "0")


@dataclass(frozen=True, slots=True)
class Step:
    """One what-if with the parameters that differ from its defaults."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ",".join(f"{key}={_written(value)}" for key, value in self.parameters.items())
        return f"{self.name}:{given}" if given else self.name


@dataclass(frozen=True, slots=True)
class Request:
    """Steps that are done one after the other on one graph."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "+".join(str(step) for step in self.steps)


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_requests(texts: str | Iterable[str | Request]) -> list[Request]:
    """Read several requests: a text with commas between them, or one text each.

    A comma is also what separates the parameters of one what-if; a piece ``key=value`` belongs to the name before it.

    Raises
    ------
    InputError
        A name or a parameter is not known, or a value does not fit.
    """
    if isinstance(texts, str):
        return [parse_request(text) for text in _separated(texts)]
    return [text if isinstance(text, Request) else parse_request(text) for text in texts]


def _separated(text: str) -> Iterator[str]:
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
        A name or a parameter is not known, or a value does not fit.
    """
    return Request(tuple(parse_step(part.strip()) for part in text.split("+")))


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
        near = difflib.get_close_matches(key, plugin.parameters, n=3, cutoff=0.3) or sorted(plugin.parameters)[:3]
        fix = f"did you mean {', '.join(near)}?" if near else "it has no parameters"
        raise InputError(f"{plugin.name} has no parameter {key!r}", fix=fix)
    try:
        return _converted(key, plugin.parameters[key], text)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{key} cannot be {text!r}", where=plugin.name, fix=f"{error}") from error


def _converted(key: str, parameter: inspect.Parameter, text: str) -> Any:
    """Read a value as its parameter's unit, by name, or its type, by annotation, says."""
    kinds = {kind.strip() for kind in str(parameter.annotation).split("|")}
    if "None" in kinds and text.lower() == "none":
        return None
    if not _is_number(text):
        if key.endswith("_ns"):
            return parse_duration(text)
        if key.endswith(("_bytes", "_bytes_per_s")):
            return parse_size(text.removesuffix("/s"))
        if key.endswith("_ratio"):
            return parse_ratio(text)
    if "bool" in kinds:
        return _yes_or_no(text)
    if "int" in kinds:
        return int(float(text)) if float(text).is_integer() else float(text)
    return float(text) if "float" in kinds else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _yes_or_no(text: str) -> bool:
    if text.lower() in (*_YES, *_NO):
        return text.lower() in _YES
    raise ValueError("write yes or no")
