"""``windtunnel cost``: train, evaluate, sample and describe cost models.

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


@registry.verb("cost", source="CDMPP")
def _group() -> None:
    """Example: windtunnel cost info

    Train, evaluate and describe the models that price operators.
    """


@registry.verb("cost train", source="CDMPP")
def _train() -> None:
    """Example: windtunnel cost train programs programs.npz

    Learn prices from measurements.
    """


@registry.verb("cost eval", source="CDMPP")
def _eval() -> None:
    """Example: windtunnel cost eval programs model.safetensors programs.npz

    Compare a trained model's prices with measurements.
    """
