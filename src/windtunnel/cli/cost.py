"""``windtunnel cost``: train, evaluate, sample and describe cost models (room cli).

A file ``cost_*.py`` brings each verb; this one holds them together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import typer

from windtunnel.cli import cost_programs

__all__ = ["SUMMARY", "cost"]

SUMMARY = "Train, evaluate and describe the models that price operators."

cost = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


@cost.callback(help=f"Example: windtunnel cost info\n\n{SUMMARY}")
def _cost() -> None:
    """Hold the verbs of cost models together."""


_VERBS: dict[str, Callable[..., None]] = {
    "sample": cost_programs.sample,
    "harvest": cost_programs.harvest,
}

for _name, _verb in _VERBS.items():
    cost.command(_name, short_help=(inspect.getdoc(_verb) or "").split("\n\n")[1].replace("\n", " "))(_verb)
