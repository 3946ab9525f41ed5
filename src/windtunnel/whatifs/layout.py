"""Channels innermost (what-if family "layout").

In: a captured graph with convolutions. Out: its operators on NHWC images and weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from windtunnel import registry
from windtunnel.cost.rerun import Form
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.simulate.limits import less_work
from windtunnel.whatifs.device_tasks import device_kernels, lies_on_device
from windtunnel.whatifs.insert_tasks import is_launching
from windtunnel.whatifs.measured import Unpriced, has_program, operators_of, require_program, rerun_in_form

__all__ = ["channels_last"]

_TRANSPOSES = r"(?i).*n(chw|hwc)_?(2|To)_?n(chw|hwc).*"


@registry.whatif(
    "channels-last",
    source="PyTorch memory formats",
    limits=less_work(operators_of, "a layout changes operators only"),
)
def channels_last(graph: Graph) -> Unpriced:
    """Lay out images and convolution weights with channels innermost; what lies between follows.

    Measured: the captured operators run again in that layout. On a trace of a device: the kernels that only turn
    images from one layout into the other go, as matrix units read channels innermost.

    Raises
    ------
    NotApplicableError
        There is no 2-D convolution, or no kernel of a trace turns layouts.
    InEffectError
        All of them read such images.
    """
    published = partial(_without_transposes, graph) if lies_on_device(graph).any() else None
    if not has_program(graph) and published is not None:
        return Unpriced.from_paper(published)
    program = require_program(graph)
    images = [call for call in program.calls if "conv" in call.operator and _has_images(call.shapes)]
    if not images:
        raise NotApplicableError("there is no 2-D convolution", fix="channels-last is for images")
    if all(_is_channels_last(call.shapes[0], call.strides[0]) for call in images if call.strides):
        raise InEffectError("images lie with their channels innermost", where=f"{len(images)} convolutions")
    return replace(rerun_in_form(graph, Form(memory_format="channels_last")), published=published)


def _without_transposes(graph: Graph) -> Graph:
    kernels = device_kernels(graph) & graph.select(phase=(Phase.FORWARD, Phase.BACKWARD))
    transposes = kernels & graph.select(name=_TRANSPOSES)
    if not transposes.any():
        raise NotApplicableError("no kernel turns images from one layout into another", where="names of kernels")
    launches = is_launching(graph, transposes) & ~is_launching(graph, ~transposes)
    return graph.remove(transposes | launches)


def _is_channels_last(shape: Any, stride: Any) -> bool:
    return isinstance(stride, list) and len(stride) == 4 and stride[1] == 1 and stride[3] == shape[1] > 1


def _has_images(shapes: list[object]) -> bool:
    return bool(shapes) and isinstance(shapes[0], list) and len(shapes[0]) == 4
