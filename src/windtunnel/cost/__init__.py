"""What work costs (room cost): ``Graph`` in, prices out.

The profile database keeps what was measured here; partial flights measure operators in a form in which they never
ran, old form and new form side by side; a roofline prices bytes and operations where nothing was measured. Not here:
search, edits.
"""

from windtunnel import registry
from windtunnel.cost.bounds import Bounds, bounds_on
from windtunnel.cost.ceilings import Ceilings, measured_ceilings
from windtunnel.cost.flops import FlopCount
from windtunnel.cost.form import BASELINE, Form
from windtunnel.cost.measured import CalibratedPricer, MeasuredPricer
from windtunnel.cost.operators.tile_pricer import TilePricer
from windtunnel.cost.optimizer import UpdateForm, measure_update
from windtunnel.cost.partial import Ratios, known_ratios, measure_ratios
from windtunnel.cost.peak import Bandwidth, Peak, measured_bandwidth, measured_peak
from windtunnel.cost.pricer import Pricer, Prices
from windtunnel.cost.pricing import price
from windtunnel.cost.program import Call, Program, program_of
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.cost.work import Work, work_of

__all__ = [
    "BASELINE",
    "Bandwidth",
    "Bounds",
    "CalibratedPricer",
    "Call",
    "Ceilings",
    "FlopCount",
    "Form",
    "MeasuredPricer",
    "Peak",
    "Pricer",
    "Prices",
    "Program",
    "Ratios",
    "RooflinePricer",
    "TilePricer",
    "UpdateForm",
    "Work",
    "bounds_on",
    "known_ratios",
    "measure_ratios",
    "measure_update",
    "measured_bandwidth",
    "measured_ceilings",
    "measured_peak",
    "price",
    "program_of",
    "work_of",
]

registry.discover(__name__)
