"""windtunnel: measure a deep-learning job, model it, change the model, fly the winner.

Everything here is loaded on first use: ``import windtunnel`` costs next to nothing and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.cost import price as price
    from windtunnel.cost.calibration import calibrate as calibrate
    from windtunnel.errors import WindtunnelError as WindtunnelError
    from windtunnel.flights import fly as fly
    from windtunnel.flights import verify as verify
    from windtunnel.graph import Graph as Graph
    from windtunnel.graph import Kind as Kind
    from windtunnel.graph import Phase as Phase
    from windtunnel.graph import load as load
    from windtunnel.graph import save as save
    from windtunnel.hardware import machine as machine
    from windtunnel.reports import explain as explain
    from windtunnel.reports import report as report
    from windtunnel.search.placement.search import place as place
    from windtunnel.simulate import Timeline as Timeline
    from windtunnel.simulate import replay as replay
    from windtunnel.sources.dry.run import dry_run as dry_run
    from windtunnel.sources.torch.step import capture as capture
    from windtunnel.whatifs import whatif as whatif
    from windtunnel.whatifs.forecast import forecast as forecast

__version__ = "0.1.0"

_HOMES = {
    "Graph": "windtunnel.graph",
    "Kind": "windtunnel.graph",
    "Phase": "windtunnel.graph",
    "Timeline": "windtunnel.simulate",
    "WindtunnelError": "windtunnel.errors",
    "calibrate": "windtunnel.cost.calibration",
    "capture": "windtunnel.sources.torch.step",
    "dry_run": "windtunnel.sources.dry.run",
    "explain": "windtunnel.reports",
    "fly": "windtunnel.flights",
    "forecast": "windtunnel.whatifs.forecast",
    "load": "windtunnel.graph",
    "machine": "windtunnel.hardware",
    "optimize": "windtunnel.systems.strategy.optimizer",
    "place": "windtunnel.search.placement.search",
    "price": "windtunnel.cost",
    "replay": "windtunnel.simulate",
    "report": "windtunnel.reports",
    "save": "windtunnel.graph",
    "verify": "windtunnel.flights",
    "whatif": "windtunnel.whatifs",
}

__all__ = [
    "Graph",
    "Kind",
    "Phase",
    "Timeline",
    "WindtunnelError",
    "calibrate",
    "capture",
    "dry_run",
    "explain",
    "fly",
    "forecast",
    "load",
    "machine",
    "optimize",
    "place",
    "price",
    "replay",
    "report",
    "save",
    "verify",
    "whatif",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'windtunnel' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
