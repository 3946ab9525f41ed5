"""Products of linear layers in 8 bits, on graphs of a GPU."""

from __future__ import annotations

import json

import pytest

from windtunnel.errors import InEffectError, NotApplicableError
from windtunnel.graph import EdgeKind, Graph, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.whatifs import whatif
from windtunnel.whatifs.fp8 import fp8_linear

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
BF16, FLOAT = "c10::BFloat16", "float"


def step(*products, device=H100) -> Graph:
    """A launch and a kernel for each product: (operator, layer, rows, inner, columns, type, duration_ns)."""
    builder = GraphBuilder()
    host = builder.resource("main thread", ResourceKind.HOST_THREAD)
    stream = builder.resource("GPU 0 stream 7", ResourceKind.STREAM)
    last: tuple[int, int] | None = None
    for operator, layer, rows, inner, columns, kind, duration_ns in products:
        about = {"op": operator, "layer": layer, "phase": Phase.FORWARD}
        launch = builder.task("launch", kind=Kind.HOST, resource=host, duration_ns=1_000, **about)
        size = 2 if kind == BF16 else 4
        kernel = builder.task(
            "gemm",
            kind=Kind.COMPUTE,
            resource=stream,
            duration_ns=duration_ns,
            input_shapes=json.dumps([[rows, inner], [inner, columns]]),
            input_dtypes=json.dumps([f"Tensor({kind})"] * 2),
            flops=2 * rows * inner * columns,
            bytes_read=size * inner * (rows + columns),
            bytes_written=size * rows * columns,
            **about,
        )
        builder.edge(launch, kernel, kind=EdgeKind.LAUNCH)
        if last is not None:
            builder.edge(last[0], launch, kind=EdgeKind.ORDER)
            builder.edge(last[1], kernel, kind=EdgeKind.ORDER)
        last = launch, kernel
    devices = [{"id": 0, "name": device, "totalGlobalMem": 85_899_345_920}]
    return builder.build({"source": "kineto", "hardware": {"devices": devices}})


LARGE = ("aten::mm", "head", 8192, 8192, 8192, BF16, 1_600_000)


def test_a_large_product_takes_half_and_is_cast_first():
    graph = step(LARGE, ("aten::bmm", "attention", 8192, 8192, 8192, BF16, 1_600_000))
    changed = fp8_linear(graph)
    names = changed.tasks.strings("name")
    casts = names.where({text: text == "scale and cast to 8 bits" for text in names.values})

    products = changed.select(name="gemm")
    assert [800_000, 1_600_000] == changed.duration_ns[products].tolist()  # attention stays
    assert 1 == casts.sum()
    read_bytes = 2 * 8192 * 2 * 8192
    assert changed.duration_ns[casts][0] * 3.35e3 > 2.5 * read_bytes  # no faster than the memory of an H100
    assert changed.num_tasks == graph.num_tasks + 2  # the cast, and its launch
    (answer,) = whatif(graph, "fp8-linear:layer=head")
    assert 1.0 < answer.speedup < 2.0


def test_a_thin_product_is_limited_by_memory_and_loses():
    rows, inner, columns = 16, 8192, 8192
    (answer,) = whatif(step(("aten::addmm", "head", rows, inner, columns, BF16, 50_000)), "fp8-linear")

    assert answer.is_applicable
    assert answer.speedup < 1.0


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (step(LARGE, device=A100), NotApplicableError, "a100.* has no products in 8-bit"),
        (step(LARGE, device="Some GPU"), NotApplicableError, "the GPU of this graph is not known"),
        (
            step((*LARGE[:5], FLOAT, 3_000_000)),
            NotApplicableError,
            "no product of a linear layer is known to run in 16",
        ),
        (step(("aten::mm", "head", 100, 50, 30, BF16, 5_000)), NotApplicableError, "multiples of 16"),
        (step(LARGE, ("aten::_scaled_mm", "head", 64, 64, 64, BF16, 5_000)), InEffectError, "run in 8 bits"),
    ],
)
def test_where_it_has_nothing_to_do_it_says_why(graph, error, message):
    with pytest.raises(error, match=message):
        fp8_linear(graph)


def test_a_pattern_chooses_layers():
    graph = step(LARGE, (*LARGE[:1], "body", *LARGE[2:]))
    changed = fp8_linear(graph, layer="body")

    assert [800_000, 1_600_000] == sorted(changed.duration_ns[changed.select(name="gemm")].tolist())
    with pytest.raises(NotApplicableError) as refused:
        fp8_linear(graph, layer="tail")
    assert refused.value.where == "0 products"
