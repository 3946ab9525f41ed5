"""``windtunnel dataio``: will storage and data loading keep the accelerators busy?"""

from __future__ import annotations

from windtunnel import registry
from windtunnel.systems.dataio import (  # noqa: F401 - each registers its verbs
    verb_capture,
    verb_predict,
    verb_run,
    verb_show,
)


@registry.verb("dataio", source="DLIO")
def _group() -> None:
    """Example: windtunnel dataio predict unet3d_h100 --ranks 2

    Predict, plan and measure how well an input pipeline keeps accelerators busy.
    """
