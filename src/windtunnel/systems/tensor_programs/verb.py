"""``windtunnel cost``: train, evaluate, sample and describe cost models (room cli).

A file ``cost_*.py`` brings each verb; this one holds them together.
"""

from __future__ import annotations

from windtunnel import registry
from windtunnel.systems.tensor_programs import verb_explain as cost_explain  # noqa: F401 - each registers its verbs
from windtunnel.systems.tensor_programs import verb_info as cost_info  # noqa: F401 - each registers its verbs
from windtunnel.systems.tensor_programs import verb_kernels as cost_kernels  # noqa: F401 - each registers its verbs
from windtunnel.systems.tensor_programs import verb_learned as cost_learned  # noqa: F401 - each registers its verbs
from windtunnel.systems.tensor_programs import verb_operators as cost_operators  # noqa: F401 - each registers its verbs
from windtunnel.systems.tensor_programs import verb_programs as cost_programs  # noqa: F401 - each registers its verbs
from windtunnel.systems.tensor_programs import verb_search as cost_search  # noqa: F401 - each registers its verbs
from windtunnel.systems.utilization import verb_transfer as cost_transfer  # noqa: F401 - each registers its verbs


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
