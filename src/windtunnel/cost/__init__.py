"""What work costs: ``Graph`` in, prices out.

The profile database keeps what was measured here; ``rerun`` runs a captured program's operators again in a form in
which they never ran, old form and new form side by side; a roofline prices bytes and operations where nothing was
measured. Not here: search, edits.

Internal modules: ``contender``, ``operator_samples``.
"""

from windtunnel import registry
from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.cost.host import Ceilings, measure_ceilings
from windtunnel.cost.measured import CalibratedPricer, MeasuredPricer
from windtunnel.cost.operators.learned import LearnedPricer
from windtunnel.cost.operators.tile_pricer import TilePricer
from windtunnel.cost.peak import Bandwidth, Peak, measure_bandwidth, measure_peak
from windtunnel.cost.pricer import Pricer, Prices
from windtunnel.cost.pricing import price
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.cost.work import Work, work_of

__all__ = [
    "Bandwidth",
    "Bounds",
    "CalibratedPricer",
    "Ceilings",
    "LearnedPricer",
    "MeasuredPricer",
    "Peak",
    "Pricer",
    "Prices",
    "RooflinePricer",
    "TilePricer",
    "Work",
    "bounds_on",
    "measure_bandwidth",
    "measure_ceilings",
    "measure_peak",
    "price",
    "work_of",
]

registry.discover(__name__)
