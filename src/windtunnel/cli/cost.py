"""``windtunnel cost``: train, evaluate, sample and describe cost models (room cli).

A file ``cost_*.py`` brings each verb; this one holds them together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import typer

from windtunnel.cli import (
    cost_explain,
    cost_info,
    cost_kernels,
    cost_learned,
    cost_operators,
    cost_programs,
    cost_search,
    cost_transfer,
)

__all__ = ["SUMMARY", "cost"]

SUMMARY = "Train, evaluate and describe the models that price operators."

cost = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


@cost.callback(help=f"Example: windtunnel cost info\n\n{SUMMARY}")
def _cost() -> None:
    """Hold the verbs of cost models together."""


_VERBS: dict[str, Callable[..., None]] = {
    "sample": cost_programs.sample,
    "harvest": cost_programs.harvest,
    "search": cost_search.search,
    "transfer": cost_transfer.transfer,
    "info": cost_info.info,
    "explain": cost_explain.explain_program,
}

for _name, _verb in _VERBS.items():
    cost.command(_name, short_help=(inspect.getdoc(_verb) or "").split("\n\n")[1].replace("\n", " "))(_verb)

_GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "train": {
        "programs": cost_learned.train_programs,
        "tile": cost_operators.train_tile,
        "kernels": cost_kernels.train_kernels,
    },
    "eval": {
        "programs": cost_learned.eval_programs,
        "tile": cost_operators.eval_tile,
        "kernels": cost_kernels.eval_kernels,
    },
}
_ABOUT = {
    "train": "Learn prices from measurements.",
    "eval": "Compare a trained model's prices with measurements.",
}

for _group, _models in _GROUPS.items():
    _app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False, help=_ABOUT[_group])
    for _name, _verb in _models.items():
        _app.command(_name, short_help=(inspect.getdoc(_verb) or "").split("\n\n")[1].replace("\n", " "))(_verb)
    cost.add_typer(_app, name=_group)
