"""Read, check, override and write configurations.

In: a YAML file in DLIO's layout, or the name of a shipped one, and overrides. Out: a ``DlioConfig``, or an error that
names section and key. Every key has to be known: one that is misspelt would silently measure something else.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.base.extras import require
from windtunnel.base.outputs import whole
from windtunnel.base.reading import format_value
from windtunnel.errors import InputError
from windtunnel.systems.dataio.config import TIME_KEYS, DlioConfig, TimeDraw
from windtunnel.systems.dataio.config_rules import check_config, keys_without_effect

__all__ = ["dump_config", "load_config", "parse_config", "to_mapping", "workload_names"]

_SHIPPED = Path(__file__).parent / "workloads"
# of earlier versions of DLIO, and where each went
_RENAMED = {
    ("dataset", "record_length"): ("dataset", "record_length_bytes"),
    ("dataset", "record_length_stdev"): ("dataset", "record_length_bytes_stdev"),
    ("dataset", "record_length_resize"): ("dataset", "record_length_bytes_resize"),
    ("checkpoint", "model_size"): ("model", "model_size_bytes"),
    ("checkpoint", "optimization_groups"): ("model", "optimization_groups"),
    ("checkpoint", "num_layers"): ("model", "num_layers"),
    ("checkpoint", "layer_parameters"): ("model", "layer_parameters"),
    ("checkpoint", "tensor_parallelism"): ("model", "parallelism", "tensor"),
    ("checkpoint", "pipeline_parallelism"): ("model", "parallelism", "pipeline"),
    ("workflow", "do_eval"): ("workflow", "evaluation"),
}
_STDEVS = {
    ("train", "computation_time_stdev"): "computation_time",
    ("reader", "preprocess_time_stdev"): "preprocess_time",
    ("evaluation", "eval_time_stdev"): "eval_time",
}
_IGNORED = {("model", "model_size"): "model.model_size has no effect in DLIO either; model_size_bytes is the size"}
_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def workload_names() -> tuple[str, ...]:
    """Names of the configurations that come with the package."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))


def load_config(source: str | Path, overrides: Sequence[str] = (), *, folder: Path | None = None) -> DlioConfig:
    """Read a configuration.

    Parameters
    ----------
    source : str or Path
        A YAML file, or the name of a shipped workload.
    overrides : sequence of str
        Such as ``++workload.reader.read_threads=4``.
    folder : Path, optional
        Where named workloads are looked for first, itself or in ``workload/``.

    Raises
    ------
    InputError
        There is no such file or name, it is no YAML, or a key or value in it is wrong.

    Examples
    --------
    >>> load_config("unet3d_h100", ["++workload.reader.batch_size=2"]).reader.batch_size
    2
    """
    path = _find(source, folder)
    try:
        document = _parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the configuration: {reason}", where=str(path)) from error
    document = {} if document is None else document
    if isinstance(document, Mapping) and set(document) == {"workload"}:
        document = document["workload"]  # as hydra writes it
    if not isinstance(document, Mapping):
        raise InputError(f"a configuration is a mapping of sections, not {format_value(document)}", where=str(path))
    nested = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}
    for override in overrides:
        _override(nested, override)
    return parse_config(nested, name=path.stem, where=str(path))


def parse_config(document: Mapping[str, Any], *, name: str = "", where: str = "configuration") -> DlioConfig:
    """Check a mapping of sections.

    Raises
    ------
    InputError
        A key or value is wrong; names section and key.
    """
    notes: list[str] = []
    sections = _modernize(document, notes)
    config: DlioConfig = _section(DlioConfig, sections, "", where)
    check_config(config, where)
    return replace(config, name=name, warnings=(*notes, *keys_without_effect(config)))


def to_mapping(config: Any) -> dict[str, Any]:
    """A configuration as nested mappings; what equals the default is left out."""
    result: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if not item.metadata.get("is_section", True) or value == _default(item):
            continue
        if isinstance(value, TimeDraw):
            keys = TIME_KEYS.get(value.kind, ())
            pairs = dict(zip(keys, (value.first, value.second), strict=False))
            result[item.name] = {"type": value.kind, **pairs} if pairs else value.first
        elif is_dataclass(value):
            result[item.name] = to_mapping(value)
        elif isinstance(value, tuple):
            result[item.name] = list(value)
        else:
            result[item.name] = dict(value) if isinstance(value, Mapping) else value
    return result


def dump_config(config: DlioConfig, path: Path) -> None:
    """Write a configuration that DLIO and ``load_config`` read.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    yaml = require("yaml", extra="dataio")
    with whole(path) as scratch:
        scratch.write_text(yaml.safe_dump(to_mapping(config), sort_keys=False), encoding="utf-8")


def _default(item: Field[Any]) -> Any:
    return item.default_factory() if callable(item.default_factory) else item.default


def _find(source: str | Path, folder: Path | None) -> Path:
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    for parent in ([folder, folder / "workload"] if folder is not None else []) + [_SHIPPED]:
        if (parent / f"{source}.yaml").is_file():
            return parent / f"{source}.yaml"
    near = difflib.get_close_matches(str(source), workload_names(), n=3, cutoff=0.3)
    raise InputError(
        f"no configuration is called {str(source)!r}",
        where=str(folder or source),
        fix=f"give a .yaml file, or one of {', '.join(near or workload_names())}",
    )


def _parse_yaml(text: str, where: str) -> Any:
    yaml = require("yaml", extra="dataio")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise InputError(
            f"this is no YAML: {problem}", where=f"{where}{line}", fix="check indents and quotes"
        ) from error


def _override(document: dict[str, Any], text: str) -> None:
    """Apply ``++workload.section.key=value``."""
    name, sign, value = text.partition("=")
    keys = name.lstrip("+").split(".")
    keys = keys[1:] if keys[0] == "workload" else keys
    if not sign or not keys or not all(keys):
        raise InputError(
            f"{text!r} overrides nothing", where="overrides", fix="write it like ++workload.reader.read_threads=4"
        )
    target = document
    for key in keys[:-1]:
        inner = target.get(key)
        target[key] = dict(inner) if isinstance(inner, Mapping) else {}
        target = target[key]
    target[keys[-1]] = _parse_yaml(value, text)


def _modernize(document: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Move keys of earlier versions to where they are now, and drop those without effect."""
    sections = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}
    if "data_reader" in sections and "reader" not in sections:
        sections["reader"] = sections.pop("data_reader")
    if isinstance(sections.get("model"), str):
        sections["model"] = {"name": sections["model"]}
    for (section, key), target in _RENAMED.items():
        if isinstance(sections.get(section), dict) and key in sections[section]:
            value = sections[section].pop(key)
            inner = sections
            for step in target[:-1]:
                inner = inner.setdefault(step, {})
            inner.setdefault(target[-1], value)
            notes.append(f"{section}.{key} is {'.'.join(target)} now")
    for (section, key), time in _STDEVS.items():
        if isinstance(sections.get(section), dict) and key in sections[section]:
            stdev = sections[section].pop(key)
            mean = sections[section].get(time, 0)
            if not isinstance(mean, Mapping):
                sections[section][time] = {"mean": mean, "stdev": stdev}
            notes.append(f"{section}.{key} is {time}: {{mean, stdev}} now")
    for (section, key), note in _IGNORED.items():
        if isinstance(sections.get(section), dict) and sections[section].pop(key, None) is not None:
            notes.append(note)
    return sections


def _section(cls: Any, document: Any, prefix: str, where: str) -> Any:
    """Check the keys of one section, and build it."""
    if document is None:
        return cls()
    if not isinstance(document, Mapping):
        raise InputError(f"{prefix.rstrip('.')} is a section, not {format_value(document)}", where=where)
    items = {item.name: item for item in fields(cls) if item.metadata.get("is_section", True)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key not in items:
            raise _unknown_key(prefix, str(key), list(items), where)
        values[key] = _value(hints[key], value, items[key].metadata, f"{prefix}{key}", where)
    return cls(**values)


def _unknown_key(prefix: str, key: str, names: Sequence[str], where: str) -> InputError:
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    section = f"section {prefix.rstrip('.')}" if prefix else "a configuration"
    fix = f"did you mean {prefix}{near[0]}?" if near else f"known keys: {', '.join(names)}"
    return InputError(f"{section} has no key {key!r}", where=f"{where}: {prefix}{key}", fix=fix)


def _value(hint: Any, value: Any, rules: Mapping[str, Any], key: str, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(item for item in typing.get_args(hint) if item is not type(None))
    if hint is TimeDraw:
        return _time(value, key, where)
    if is_dataclass(hint):
        return _section(hint, value, f"{key}.", where)
    origin = typing.get_origin(hint)
    if origin is tuple:
        element = typing.get_args(hint)[0]
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        return tuple(_value(element, item, {"min": 0} if element is int else {}, key, where) for item in items)
    if origin is not None:
        if not isinstance(value, Mapping):
            raise InputError(f"{key} is a mapping, not {format_value(value)}", where=f"{where}: {key}")
        return {str(name): item for name, item in value.items()}
    return _scalar(hint, value, rules, key, where)


def _scalar(hint: Any, value: Any, rules: Mapping[str, Any], key: str, where: str) -> Any:
    result = _convert(hint, value)
    if result is None:
        raise InputError(f"{key} is {_KINDS[hint]}, not {format_value(value)}", where=f"{where}: {key}")
    choices = rules.get("choices", ())
    if choices and result not in choices:
        near = difflib.get_close_matches(str(value), [str(item) for item in choices], n=1)
        known = ", ".join(str(item) for item in choices)
        fix = f"did you mean {near[0]}? It is one of {known}" if near else f"one of {known}"
        raise InputError(f"{key} cannot be {format_value(value)}", where=f"{where}: {key}", fix=fix)
    if "min" in rules and result < rules["min"]:
        raise InputError(f"{key} is {format_value(value)}; it is at least {rules['min']}", where=f"{where}: {key}")
    return result


def _convert(hint: Any, value: Any) -> Any:
    """The value in its type; None where it is of another one."""
    if hint is str:
        # YAML reads ``off`` and ``none`` unquoted as false and as text
        return "off" if value is False else value if isinstance(value, str) else None
    if hint is bool:
        return value if isinstance(value, bool) else None
    if isinstance(value, str):  # YAML 1.1 takes 1e-3 for text
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -(2**63) <= value < 2**63:  # NaN and infinity compare false
        return None
    if hint is int:
        return int(value) if value == int(value) else None
    return float(value)


def _time(value: Any, key: str, where: str) -> TimeDraw:
    """A time value: a number, {mean, stdev}, or a distribution by name."""
    if not isinstance(value, Mapping):
        return TimeDraw("constant", _scalar(float, value, {"min": 0}, key, where))
    given = dict(value)
    kind = str(given.pop("type", None) or "normal")
    if kind not in TIME_KEYS:
        near = difflib.get_close_matches(kind, TIME_KEYS, n=1, cutoff=0.4)
        fix = f"did you mean {near[0]}?" if near else f"one of {', '.join(TIME_KEYS)}"
        raise InputError(f"{key} has no distribution {kind!r}", where=f"{where}: {key}.type", fix=fix)
    names = TIME_KEYS[kind]
    for name in given:
        if name not in names:
            raise _unknown_key(f"{key}.", str(name), names, where)
    if missing := [name for name in names if name not in given and name != "stdev"]:
        raise InputError(f"{key} of type {kind} lacks {missing[0]}", where=f"{where}: {key}")
    numbers = [_scalar(float, given.get(name, 0), {"min": 0}, f"{key}.{name}", where) for name in names]
    if kind == "uniform" and numbers[0] > numbers[1]:
        raise InputError(f"{key} has a min of {numbers[0]:g} above its max of {numbers[1]:g}", where=f"{where}: {key}")
    if kind == "normal" and not numbers[1]:
        return TimeDraw("constant", numbers[0])
    return TimeDraw(kind, *numbers)
