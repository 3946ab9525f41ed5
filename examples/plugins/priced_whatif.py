"""A what-if that needs prices: mixed precision and channels-last images together.

In: a captured graph with 2-D convolutions. Out: the same graph with its operators in the new form. How much faster each
operator becomes cannot be read from a graph, so that the what-if returns an ``Unpriced`` change: a description of what
has to be measured. The caller has it measured, or looks it up, and finishes the change.
"""

from __future__ import annotations

from windtunnel import registry
from windtunnel.cost.rerun import Form
from windtunnel.errors import NotApplicableError
from windtunnel.graph import Graph
from windtunnel.simulate.limits import less_work
from windtunnel.whatifs import Unpriced
from windtunnel.whatifs.measured import operators_of, require_program, rerun_in_form


@registry.whatif(
    "amp-channels-last",
    source="PyTorch performance tuning guide",
    decides="amp",  # not together with "amp": both choose the precision
    limits=less_work(operators_of, "precision and layout change operators only"),
)
def amp_channels_last(graph: Graph, dtype: str = "bfloat16") -> Unpriced:
    """Run forward passes under autocast on images whose channels are innermost.

    Parameters
    ----------
    graph : Graph
    dtype : str
        ``bfloat16`` or ``float16``.

    Raises
    ------
    NotApplicableError
        The captured program has no 2-D convolution.
    """
    calls = require_program(graph).calls
    if not any("conv" in call.operator and _is_image(call.shapes) for call in calls):
        raise NotApplicableError("there is no 2-D convolution", fix="capture a model of images")
    # one form, so that both changes are measured together: their gains do not multiply
    return rerun_in_form(graph, Form(autocast=dtype, memory_format="channels_last"))


def _is_image(shapes: list[object]) -> bool:
    return bool(shapes) and isinstance(shapes[0], list) and len(shapes[0]) == 4
