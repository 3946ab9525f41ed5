"""Play a graph: when does each task start and end, and why.

In: graphs with durations. Out: timelines and what can be read from them. May not enter: policies, papers, prices.

Internal modules: ``arrays``, ``engine``, ``equal_tasks``, ``event_engine``, ``flows``, ``instructions``,
``start_causes``, ``static_engine``.
"""

from windtunnel.simulate.breakdown import TimelineDiff
from windtunnel.simulate.clock import EventClock, FairFlows
from windtunnel.simulate.critical import CriticalPath
from windtunnel.simulate.engine import Replays, replay, replay_many
from windtunnel.simulate.folding import Fold, fold
from windtunnel.simulate.memory import MemoryCurve
from windtunnel.simulate.timeline import Timeline
from windtunnel.simulate.uncertainty import (
    PredictionInterval,
    draw_durations,
    prediction_interval,
)
from windtunnel.simulate.waiting import waits_for_data, with_waits_for_data

__all__ = [
    "CriticalPath",
    "EventClock",
    "FairFlows",
    "Fold",
    "MemoryCurve",
    "PredictionInterval",
    "Replays",
    "Timeline",
    "TimelineDiff",
    "draw_durations",
    "fold",
    "prediction_interval",
    "replay",
    "replay_many",
    "waits_for_data",
    "with_waits_for_data",
]
