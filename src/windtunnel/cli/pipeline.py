"""``windtunnel pipeline``: plan and run pipelines, look at their schedules (room cli)."""

from __future__ import annotations

from collections.abc import Callable

import typer

from windtunnel.cli import pipeline_plan, pipeline_run, pipeline_show

__all__ = ["SUMMARY", "VERBS", "pipeline"]

SUMMARY = "Pipelines of stages: plan and run them, look at their schedules."

pipeline = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


@pipeline.callback(help=f"Example: windtunnel pipeline plan layers.json --devices 8\n\n{SUMMARY}")
def _pipeline() -> None:
    """Hold the verbs of pipelines together."""


VERBS: dict[str, Callable[..., None]] = {
    "plan": pipeline_plan.plan,
    "run": pipeline_run.run,
    "show": pipeline_show.show,
}
