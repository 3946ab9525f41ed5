"""How to take a time on a shared machine: turns, stop rules, spread, guards, what was measured before.

In: something that can be run and timed. Out: durations with their spread, and a database that keeps them. May not
enter: what is measured, and why.

Internal modules: ``worker``.
"""

from windtunnel.measure import fingerprint
from windtunnel.measure.database import ProfileDatabase, default_database_path
from windtunnel.measure.stats import Estimate
from windtunnel.measure.turns import Measurement, StopRule

__all__ = [
    "Estimate",
    "Measurement",
    "ProfileDatabase",
    "StopRule",
    "default_database_path",
    "fingerprint",
]
