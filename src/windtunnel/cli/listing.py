"""``windtunnel list``: what can be asked, flown, read and run."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import registry
from windtunnel.base.tables import Table
from windtunnel.cli.console import advise, show
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
    document = {"schema": "windtunnel.plugins/1", "kind": singular, "plugins": [_document(item) for item in result]}
    rows = [(item.name, _description(item)) for item in result]
    table = Table({"name": str, "description": str}, rows, wraps="description")
    show(document, [table if rows else f"no {kind} are installed"], as_json=as_json)
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


def _description(plugin: Plugin) -> str:
    given = ", ".join(f"{key}={'' if value is None else value}" for key, value in _defaults(plugin).items())
    summary = plugin.summary.replace("``", "")
    return f"{summary} [{given}]" if given else summary


def _list_hardware(kind: str, *, as_json: bool) -> None:
    from windtunnel.hardware import Accelerator, accelerators, catalog

    every: dict[str, Any] = {"devices": catalog.devices, "links": catalog.links, "machines": catalog.machines}
    result = [*every[kind]().values(), *(accelerators().values() if kind == "devices" else ())]
    rows = [item.json() if isinstance(item, Accelerator) else _row(item) for item in result]
    show({"schema": "windtunnel.catalog/1", "kind": kind, "rows": rows}, [_TABLES[kind](result)], as_json=as_json)


def _row(one: Device | Link | Machine) -> dict[str, Any]:
    """Its fields; parts that the catalog holds themselves by their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return getattr(value, "name", value)

    return {field.name: plain(getattr(one, field.name)) for field in dataclasses.fields(one)}


def _device_table(devices: Sequence[Device]) -> Table:
    columns = {"name": str, "memory": format_size, "bandwidth": format_rate, "source": str}
    rows = [(device.name, device.memory_bytes, device.bandwidth_bytes_per_s, device.source) for device in devices]
    return Table(columns, rows, wraps="source")


def _link_table(links: Sequence[Link]) -> Table:
    columns = {"name": str, "bandwidth": format_rate, "latency": format_duration, "source": str}
    rows = [(link.name, link.bandwidth_bytes_per_s, link.latency_ns, link.source) for link in links]
    return Table(columns, rows, wraps="source")


def _machine_table(machines: Sequence[Machine]) -> Table:
    rows = []
    for machine in machines:
        counts = Counter(chip.name for chip in machine.devices)
        chips = ", ".join(f"{count} {name}" for name, count in counts.items())
        rows.append((machine.name, machine.cpu_name, machine.num_threads, chips))
    return Table({"name": str, "processor": str, "threads": "{}", "devices": str}, rows, wraps="processor")


_TABLES: dict[str, Any] = {"devices": _device_table, "links": _link_table, "machines": _machine_table}
