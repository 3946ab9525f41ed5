"""``windtunnel list``: what can be asked, flown, read and run."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.cli.console import advise, print_json, print_table, say
from windtunnel.cli.options import Json
from windtunnel.errors import InputError
from windtunnel.units import format_duration, format_rate, format_size

if TYPE_CHECKING:
    from windtunnel.hardware import Device, Link, Machine
    from windtunnel.registry import Plugin

__all__ = ["list_plugins"]

_WITH_PARAMETERS = ("whatif", "workload", "cost_model", "strategy", "policy")

_KINDS = {
    "whatifs": ("whatif", "windtunnel whatif GRAPH NAME"),
    "flights": ("flight", "windtunnel verify SCRIPT.py --whatif NAME"),
    "workloads": ("workload", "windtunnel verify mlp --whatif amp"),
    "sources": ("source", "windtunnel capture SCRIPT.py"),
    "strategies": ("strategy", "windtunnel train plan CLUSTER.toml --policies 'bsp NAME'"),
    "policies": ("policy", "windtunnel cluster plan JOBS.csv --cluster FILE --policies 'dally NAME'"),
    "models": ("cost_model", "windtunnel predict GRAPH --on h100 --model NAME"),
    "layers": ("layer", "windtunnel whatif GRAPH NAME"),
}
_HARDWARE = {
    "devices": "windtunnel predict GRAPH --on NAME",
    "links": "windtunnel whatif GRAPH data-parallel:link=NAME",
    "machines": "windtunnel predict GRAPH --on h100",
}


@registry.verb("list", source="windtunnel")
def list_plugins(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="What to list: whatifs, flights, workloads, sources, strategies, policies, models, layers; of the "
            "hardware catalog: devices, links, machines.",
        ),
    ] = "whatifs",
    as_json: Json = False,
) -> None:
    """Example: windtunnel list whatifs

    List plug-ins with parameters and defaults, or the hardware catalog.
    """
    every = (*_KINDS, *_HARDWARE)
    if kind not in every:
        near = difflib.get_close_matches(kind, every, n=3, cutoff=0.3) or list(_KINDS)
        raise InputError(f"{kind!r} is no kind of list", fix=f"did you mean {', '.join(near)}?")
    if kind in _HARDWARE:
        _list_hardware(kind, as_json=as_json)
        advise(f"next: {_HARDWARE[kind]}")
        return

    singular, next_command = _KINDS[kind]
    result = list(registry.all(singular).values())
    if as_json:
        print_json(
            {"schema": "windtunnel.plugins/1", "kind": singular, "plugins": [_document(item) for item in result]}
        )
    elif result:
        print_table(("name", "description"), [(item.name, _lines(item)) for item in result], gives_way=1)
    else:
        say(f"no {kind} are installed")
    advise(f"next: {next_command}")


def _document(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "summary": plugin.summary,
        "source": plugin.source,
        "package": plugin.package,
        "parameters": list(plugin.parameters),
        "defaults": _defaults(plugin),
    }


def _defaults(plugin: Plugin) -> dict[str, Any]:
    """Parameters that can be given as ``NAME:key=value``, with their defaults."""
    if plugin.kind not in _WITH_PARAMETERS:
        return {}
    return {
        key: None if parameter.default is parameter.empty else parameter.default
        for key, parameter in plugin.parameters.items()
    }


def _lines(plugin: Plugin) -> str:
    given = ", ".join(f"{key}={'' if value is None else value}" for key, value in _defaults(plugin).items())
    summary = plugin.summary.replace("``", "")
    return f"{summary} [{given}]" if given else summary


def _list_hardware(kind: str, *, as_json: bool) -> None:
    from windtunnel.hardware import Accelerator, accelerators, catalog

    every: dict[str, Any] = {"devices": catalog.devices, "links": catalog.links, "machines": catalog.machines}
    result = [*every[kind]().values(), *(accelerators().values() if kind == "devices" else ())]
    if as_json:
        rows = [item.json() if isinstance(item, Accelerator) else _row(item) for item in result]
        print_json({"schema": "windtunnel.catalog/1", "kind": kind, "rows": rows})
    elif kind == "machines":
        head = ("name", "processor", "threads", "devices")
        print_table(head, [_machine_cells(item) for item in result], numbers=(2,), gives_way=1)
    elif kind == "devices":
        head = ("name", "memory", "bandwidth", "source")
        print_table(head, [_device_cells(item) for item in result], numbers=(1, 2), gives_way=3)
    else:
        head = ("name", "bandwidth", "latency", "source")
        print_table(head, [_link_cells(item) for item in result], numbers=(1, 2), gives_way=3)


def _row(one: Device | Link | Machine) -> dict[str, Any]:
    """Its fields; parts that the catalog holds themselves by their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return getattr(value, "name", value)

    return {field.name: plain(getattr(one, field.name)) for field in dataclasses.fields(one)}


def _device_cells(one: Device) -> tuple[str, ...]:
    return one.name, format_size(one.memory_bytes), format_rate(one.bandwidth_bytes_per_s), one.source


def _link_cells(one: Link) -> tuple[str, ...]:
    return one.name, format_rate(one.bandwidth_bytes_per_s), format_duration(one.latency_ns), one.source


def _machine_cells(one: Machine) -> tuple[str, ...]:
    counts = Counter(chip.name for chip in one.devices)
    chips = ", ".join(f"{count} {name}" for name, count in counts.items())
    return one.name, one.cpu_name, str(one.num_threads), chips
