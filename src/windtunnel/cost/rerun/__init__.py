"""Operators that are run again in another form, for what-ifs: the one door of this sub-package.

In: what a what-if needs to know (``Need``: operators in a new form, an update with other options, gradients averaged
between processes, what messages cost computing, a peak of memory). Out: prices, each looked up in the profile database
first and measured here otherwise. Needs are plain values: to state one runs nothing.

Internal modules: ``arguments``, ``chunked_loss``, ``gloo_worker``, ``inputs``, ``interpreter``,
``lengths``, ``resize``, ``segments``, ``stopwatch``.
"""

from typing import TYPE_CHECKING, Any

from windtunnel.cost.rerun.all_reduces import AllReduceTimes
from windtunnel.cost.rerun.carrying import CarryingCost, MessageCost
from windtunnel.cost.rerun.form import BASELINE, Form
from windtunnel.cost.rerun.memory import ProgramPeak
from windtunnel.cost.rerun.needs import (
    AllReduceNeed,
    AveragingNeed,
    CarryingNeed,
    Need,
    OperatorsNeed,
    PeakNeed,
    ReducingNeed,
    UpdateNeed,
    UpdatePeakNeed,
    price_needs,
)
from windtunnel.cost.rerun.optimizer import UpdateForm, embedding_row_ratios, measure_update, sparse_parameters
from windtunnel.cost.rerun.partial import lacks_kernel, measure_ratios
from windtunnel.cost.rerun.program import (
    Call,
    Program,
    TensorSpec,
    data_of,
    device_names,
    program_of,
    random_inputs,
    tensors_of,
)
from windtunnel.cost.rerun.ratios import Ratios, look_up_ratios
from windtunnel.cost.rerun.sending import SENDERS, in_order, thin_factors

if TYPE_CHECKING:
    from windtunnel.cost.rerun.arguments import DTYPES as DTYPES
    from windtunnel.cost.rerun.arguments import fill as fill
    from windtunnel.cost.rerun.chunked_loss import cross_entropy_in_chunks as cross_entropy_in_chunks
    from windtunnel.cost.rerun.rectified_norm import RectifiedNorm as RectifiedNorm

__all__ = [
    "BASELINE",
    "SENDERS",
    "AllReduceNeed",
    "AllReduceTimes",
    "AveragingNeed",
    "Call",
    "CarryingCost",
    "CarryingNeed",
    "Form",
    "MessageCost",
    "Need",
    "OperatorsNeed",
    "PeakNeed",
    "Program",
    "ProgramPeak",
    "Ratios",
    "ReducingNeed",
    "TensorSpec",
    "UpdateForm",
    "UpdateNeed",
    "UpdatePeakNeed",
    "data_of",
    "device_names",
    "embedding_row_ratios",
    "in_order",
    "lacks_kernel",
    "look_up_ratios",
    "measure_ratios",
    "measure_update",
    "price_needs",
    "program_of",
    "random_inputs",
    "sparse_parameters",
    "tensors_of",
    "thin_factors",
]

# these need torch, and are imported when they are asked for
_LAZY = {
    "DTYPES": "arguments",
    "fill": "arguments",
    "RectifiedNorm": "rectified_norm",
    "cross_entropy_in_chunks": "chunked_loss",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
