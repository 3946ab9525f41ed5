"""``windtunnel pipeline``: plan and run pipelines, look at their schedules."""

from __future__ import annotations

from windtunnel import registry
from windtunnel.systems.pipelines import verb_plan, verb_run, verb_show  # noqa: F401 - each registers its verbs


@registry.verb("pipeline", source="PipeDream-2BW")
def _group() -> None:
    """Example: windtunnel pipeline plan layers.json --on 8

    Plan and run pipeline-parallel training, and show schedules.
    """
