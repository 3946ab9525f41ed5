"""``windtunnel list``: what can be asked, flown, read and run (room cli)."""

from __future__ import annotations

from typing import Annotated

import typer

from windtunnel.cli._console import advise, print_json, print_table, say
from windtunnel.cli._options import Json
from windtunnel.errors import InputError

__all__ = ["list_plugins"]

_KINDS = {
    "whatifs": ("whatif", "windtunnel whatif GRAPH NAME"),
    "flights": ("flight", "windtunnel verify SCRIPT.py --whatif NAME"),
    "workloads": ("workload", "windtunnel verify NAME --whatif amp"),
    "sources": ("source", "windtunnel capture SCRIPT.py"),
    "models": ("cost_model", "windtunnel predict GRAPH --on h100 --model NAME"),
}


def list_plugins(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="whatifs, flights, workloads, sources, models.")
    ] = "whatifs",
    as_json: Json = False,
) -> None:
    """Example: windtunnel list whatifs

    List what is registered, with what it does and where it comes from.
    """
    import difflib

    from windtunnel import registry

    if kind not in _KINDS:
        near = difflib.get_close_matches(kind, _KINDS, n=3, cutoff=0.3) or list(_KINDS)
        raise InputError(f"there is nothing called {kind!r} to list", fix=f"did you mean {', '.join(near)}?")
    singular, next_command = _KINDS[kind]
    found = registry.all(singular).values()
    if as_json:
        rows = [
            {
                "name": p.name,
                "summary": p.summary,
                "source": p.source,
                "package": p.package,
                "parameters": list(p.parameters),
            }
            for p in found
        ]
        print_json({"schema": "windtunnel.plugins/1", "kind": singular, "plugins": rows})
    elif found:
        lines = [(plugin.name, plugin.summary.replace("``", "")) for plugin in found]
        print_table(("name", "what it does"), lines, gives_way=1)
    else:
        say(f"no {kind} are installed")
    advise(f"next: {next_command}")
