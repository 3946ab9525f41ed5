"""``windtunnel models``: train, evaluate, sample and describe cost models.

A file ``cost_*.py`` brings each verb; this one holds them together.
"""

from __future__ import annotations

from windtunnel import registry
from windtunnel.systems.tensor_programs import (  # noqa: F401 - each registers its verbs
    verb_info,
    verb_learned,
    verb_programs,
    verb_search,
)


@registry.verb("models", source="CDMPP")
def _group() -> None:
    """Example: windtunnel models show

    Train, evaluate, sample and show cost models of operators.
    """


@registry.verb("models sample", source="CDMPP", default="programs")
def _sample_group() -> None:
    """Example: windtunnel models sample --programs 8000 --out programs.npz

    Measure tensor programs on this host (default), or collect the tasks of networks.
    """


@registry.verb("models train", source="CDMPP")
def _train() -> None:
    """Example: windtunnel models train programs programs.npz

    Train a cost model on measurements.
    """


@registry.verb("models eval", source="CDMPP")
def _eval() -> None:
    """Example: windtunnel models eval programs model.safetensors programs.npz

    Evaluate a cost model on measurements.
    """
