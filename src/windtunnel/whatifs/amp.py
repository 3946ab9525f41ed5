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
from windtunnel.simulate.limits import Baseline, less_work, other_order
from windtunnel.whatifs.device_tasks import device_kernels
from windtunnel.whatifs.insert_tasks import chip_of, is_on_host, launch_calls, products_by_type, runs_in_16_bits
from windtunnel.whatifs.measured import (
    Unpriced,
    has_program,
    operators_of,
    require_program,
    rerun_in_form,
    scale_memory,
)
from windtunnel.whatifs.peak_memory import note_form
from windtunnel.whatifs.product_speed import (
    host_time_per_launch_ns,
    names_16_bits,
    price_ratios,
    product_slowdown,
    product_speedup,
    rate_ratio,
    type_of_16_bits,
)

__all__ = ["amp", "no_amp"]

Mask = NDArray[np.bool_]
_STAYS = r"(?i).*(layer_?norm|rms_?norm|softmax|loss|embedding|index|gather|scatter|sort|distribution).*"  # in float32
_LOW_NAMES = r"(?i).*(bf16|bfloat16|half|fp16).*"
_CASTS = r"(?i).*(bfloat16|float16|half)_copy_kernel.*"
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
    CPU stays. On a GPU of the catalog that has TensorFloat-32, products gain by the data sheet's peaks of both types,
    as far as kernels of their length reach these; what autocast keeps in float32 stays, as do updates; the host
    converts the inputs of products. The paper's third is that of the GPUs of 2018. Where a graph holds prices of a GPU,
    the same cost models price both types.

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
    products = kernels & does_matrix_work(graph)
    low = kernels & (runs_in_16_bits(graph) | names_16_bits(graph, kernels))
    if (low & products).any() and 2 * graph.duration_ns[low & products].sum() >= graph.duration_ns[products].sum():
        if type_of_16_bits(graph, low & products) not in ("", dtype):
            return graph.set_duration(low, graph.duration_ns[low], cost_source="paper")  # both types are as fast
        raise InEffectError(
            f"{int((low & products).sum())} of {int(products.sum())} products run in 16 bits", reverse="no-amp"
        )
    kernels &= ~low
    for mask, speedup in _speedups(graph, kernels, dtype):
        duration = np.rint(graph.duration_ns[mask] / speedup).astype(np.int64)
        graph = graph.set_duration(mask, duration, cost_source="paper")
    graph = _add_casts(graph, kernels & products) if chip_of(graph) is not None else graph
    return scale_memory(graph, np.where(kernels & graph.select(kind=Kind.COMPUTE), 0.5, 1.0))


def _speedups(graph: Graph, kernels: Mask, dtype: str) -> list[tuple[Mask, NDArray[np.float64]]]:
    chip, took_ns = chip_of(graph), graph.duration_ns
    products = kernels & does_matrix_work(graph)
    priced = price_ratios(graph, dtype)
    if priced is not None:
        changed = products | (kernels & ~graph.select(phase=Phase.UPDATE) & ~graph.select(name=_STAYS))
        return [(changed, priced[changed])]
    if chip is None or not {"fp32", "tf32", dtype} <= set(chip.peak_flops_per_s):
        return [(mask, np.full(int(mask.sum()), gain)) for mask, gain in ((products, 3.0), (kernels & ~products, 2.0))]
    products_of = products_by_type(graph, kernels)
    others = kernels & ~products & ~graph.select(phase=Phase.UPDATE) & ~graph.select(name=_STAYS)
    result = [(others, np.full(int(others.sum()), 2.0))]
    for old in ("fp32", "tf32"):
        mask = products_of[old]
        result.append((mask, product_speedup(took_ns[mask], rate_ratio(chip, dtype, old))))
    return result


def _add_casts(graph: Graph, products: Mask) -> Graph:
    """Autocast converts weights and inputs of products: one more operator for each forward, half for each backward.

    Steps that wait for the host become longer by that.
    """
    calls = launch_calls(graph)
    added_ns = np.zeros(graph.num_tasks)
    for phase, count in ((Phase.FORWARD, 1.0), (Phase.BACKWARD, 0.5)):
        own = calls[products & graph.select(phase=phase)]
        np.add.at(added_ns, own[own >= 0], count * host_time_per_launch_ns(graph, phase))
    selected = added_ns > 0
    if not selected.any():
        return graph
    longer = np.rint(graph.duration_ns[selected] + added_ns[selected]).astype(np.int64)
    return graph.set_duration(selected, longer, cost_source="paper")


@registry.whatif(
    "no-amp",
    source="Micikevicius et al., Mixed precision training, ICLR 2018",
    limits=other_order("the device does no less", without=lambda baseline: is_on_host(baseline.graph)),
)
def no_amp(graph: Graph) -> Unpriced:
    """Run the forward passes in float32: the reverse of ``amp``.

    Products take the ratio of the peaks of both types longer, other 16-bit kernels twice as long; conversions go.

    Raises
    ------
    NotApplicableError
        No product runs in 16 bits, or the GPU is not in the catalog.
    """
    return Unpriced.from_paper(partial(_in_float32, graph))


def _in_float32(graph: Graph) -> Graph:
    kernels, chip = device_kernels(graph), chip_of(graph)
    products = kernels & (runs_in_16_bits(graph) | names_16_bits(graph, kernels)) & does_matrix_work(graph)
    if not products.any():
        raise NotApplicableError("no product runs in 16 bits", fix="ask for amp")
    if chip is None or not {"fp32", "bf16"} <= set(chip.peak_flops_per_s):
        raise NotApplicableError("this step ran on no GPU of the catalog, whose peaks would say", where="list devices")
    took_ns = graph.duration_ns
    slower = product_slowdown(took_ns[products], rate_ratio(chip, "bf16", "fp32"))
    changed = graph.set_duration(products, np.rint(took_ns[products] * slower).astype(np.int64), cost_source="paper")
    others = kernels & ~products & graph.select(name=_LOW_NAMES) & ~graph.select(phase=Phase.UPDATE)
    casts = others & graph.select(name=_CASTS)
    others &= ~casts
    changed = changed.set_duration(others, 2 * took_ns[others], cost_source="paper")
    return changed.remove(casts) if casts.any() else changed
