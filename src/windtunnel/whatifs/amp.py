"""Forward passes in bfloat16 (what-if family "precision").

In: a graph. Out: the same work with operators, and the casts between them, in the types that autocast gives them.
Parameters and updates stay in float32.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.rerun import Form, Program
from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import Graph, Kind, Phase
from windtunnel.graph.kernel_classes import MATRIX_CLASSES, class_of, does_matrix_work
from windtunnel.simulate.limits import Baseline, less_work
from windtunnel.whatifs.device_tasks import device_kernels
from windtunnel.whatifs.insert_tasks import chip_of, products_by_type, runs_in_16_bits
from windtunnel.whatifs.measured import has_program, operators_of, require_program, rerun_in_form, scale_memory
from windtunnel.whatifs.peak_memory import note_form
from windtunnel.whatifs.unpriced import Unpriced

__all__ = ["amp"]

Mask = NDArray[np.bool_]
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}
_LOW_TYPES = ("c10::BFloat16", "c10::Half")
_MOST = 16.0  # bf16 products of matrix units over float32 products of vector units, on CPUs and GPUs without tf32


def _most(baseline: Baseline) -> float:
    """How much faster the fastest of the changed operators can become: by the peaks of a GPU of the catalog."""
    peaks = getattr(chip_of(baseline.graph), "peak_flops_per_s", {})
    new = _SHORT.get(baseline.options["dtype"], "")
    return max(2.0, peaks[new] / peaks["fp32"]) if {new, "fp32"} <= set(peaks) else _MOST


@registry.whatif(
    "amp",
    source="Micikevicius et al., Mixed precision training, ICLR 2018; Daydream, ATC 2020",
    limits=less_work(operators_of, "operators gain at most the ratio of the peaks of both types", factor=_most),
)
def amp(graph: Graph, dtype: str = "bfloat16") -> Unpriced:
    """Run the models' forward passes under autocast; backward follows.

    Measured: the captured operators run again under autocast, interleaved with the original, casts included, and the
    ratios are applied to the step. Paper: matrix products and convolutions take a third, other device kernels half, the
    CPU stays. On a GPU of the catalog that has TensorFloat-32, products take the share that the data sheet's peaks of
    their type and of the new one have, and updates stay: the paper's third is that of the GPUs of 2018.

    Parameters
    ----------
    graph : Graph
    dtype : str
        ``bfloat16`` or ``float16``.

    Raises
    ------
    NotApplicableError
        No operator would run in lower precision.
    InEffectError
        Most of those that would do so already.
    """
    published = partial(_paper, graph, _SHORT.get(dtype, dtype))
    if not has_program(graph):
        return Unpriced.from_paper(published)
    _check(require_program(graph))
    form = Form(autocast=dtype)
    return replace(rerun_in_form(graph, form, partial(note_form, form=form)), published=published)


def _check(program: Program) -> None:
    inside = [call for call in program.calls if call.layer]
    products = [call for call in inside if class_of(call.operator) in MATRIX_CLASSES]
    low = [call for call in products if any(kind in str(call.output_types) for kind in _LOW_TYPES)]
    if low and 2 * len(low) >= len(products):
        raise InEffectError(
            f"{len(low)} of {len(products)} products run in 16 bits", where=f"{low[0].operator} of {low[0].layer}"
        )
    if not products:
        raise NotApplicableError(
            "no operator within a module runs in lower precision under autocast",
            where=f"{len(inside)} calls within modules",
        )


def _paper(graph: Graph, dtype: str) -> Graph:
    kernels = device_kernels(graph)
    low = kernels & runs_in_16_bits(graph)
    products = kernels & does_matrix_work(graph)
    if (low & products).any() and 2 * graph.duration_ns[low & products].sum() >= graph.duration_ns[products].sum():
        raise InEffectError(f"{int((low & products).sum())} of {int(products.sum())} products run in 16 bits")
    kernels &= ~low
    for mask, divisor in _divisors(graph, kernels, dtype):
        duration = np.rint(graph.duration_ns[mask] / divisor).astype(np.int64)
        graph = graph.set_duration(mask, duration, cost_source="paper")
    return scale_memory(graph, np.where(kernels & graph.select(kind=Kind.COMPUTE), 0.5, 1.0))


def _divisors(graph: Graph, kernels: Mask, dtype: str) -> list[tuple[Mask, float]]:
    chip = chip_of(graph)
    if chip is None or not {"fp32", "tf32", dtype} <= set(chip.peak_flops_per_s):
        products = kernels & does_matrix_work(graph)
        return [(products, 3.0), (kernels & ~products, 2.0)]
    products_of = products_by_type(graph, kernels)
    others = kernels & ~graph.select(phase=Phase.UPDATE)
    for mask in products_of.values():
        others &= ~mask
    new = chip.flops_per_s(dtype)
    return [(others, 2.0), *((products_of[old], new / chip.flops_per_s(old)) for old in ("fp32", "tf32"))]
