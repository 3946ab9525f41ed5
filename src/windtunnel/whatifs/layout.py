"""Channels innermost (what-if family "layout").

In: a captured graph with convolutions. Out: its operators on NHWC images and weights.
"""

from __future__ import annotations

from typing import Any

from windtunnel import registry
from windtunnel.cost.rerun import Form
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.simulate.limits import less_work
from windtunnel.whatifs.measured import operators_of, require_program, rerun_in_form
from windtunnel.whatifs.unpriced import Unpriced

__all__ = ["channels_last"]


@registry.whatif(
    "channels-last",
    source="PyTorch memory formats",
    limits=less_work(operators_of, "a layout changes operators only"),
)
def channels_last(graph: Graph) -> Unpriced:
    """Lay out images and convolution weights with channels innermost; what lies between follows.

    Raises
    ------
    NotApplicableError
        There is no 2-D convolution.
    InEffectError
        All of them read such images.
    """
    program = require_program(graph)
    images = [call for call in program.calls if "conv" in call.operator and _has_images(call.shapes)]
    if not images:
        raise NotApplicableError("there is no 2-D convolution", fix="channels-last is for images")
    if all(_is_channels_last(call.shapes[0], call.strides[0]) for call in images if call.strides):
        raise InEffectError("images lie with their channels innermost", where=f"{len(images)} convolutions")
    return rerun_in_form(graph, Form(memory_format="channels_last"))


def _is_channels_last(shape: Any, stride: Any) -> bool:
    return isinstance(stride, list) and len(stride) == 4 and stride[1] == 1 and stride[3] == shape[1] > 1


def _has_images(shapes: list[object]) -> bool:
    return bool(shapes) and isinstance(shapes[0], list) and len(shapes[0]) == 4
