"""Graphs on accelerators, and the published runs of a GPU that is described as one."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.cost import price
from windtunnel.cost.work import Work
from windtunnel.errors import InputError
from windtunnel.graph import GraphBuilder, Kind
from windtunnel.hardware import device, template_space
from windtunnel.systems.chips.accelerators import Gemms, Machines, product_cycles, product_energy_j, vector_energy_j
from windtunnel.systems.chips.accelerators.parts import parts_of
from windtunnel.systems.chips.accelerators.pricer import accelerator, duration_ns, energy_j

TPU = device("tpu-v4-like")


def macs(products):
    return products.m * products.n * products.k * products.count


def work_of(*rows, dtype="bf16"):
    """Rows of (operator, shapes, flops, bytes)."""
    names, shapes, flops, moved = (list(column) for column in zip(*rows, strict=True))
    made = Work.of_counts(np.array(names, dtype=object), np.array(flops, float), np.array(moved, float), dtype)
    return Work(**{**{name: getattr(made, name) for name in made.__dataclass_fields__},
                   "shapes": np.array(shapes, dtype=object)})  # fmt: skip


def sizes(parts):
    return [tuple(int(getattr(parts.products, name)[row]) for name in ("m", "n", "k", "count"))
            for row in range(len(parts.row))]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "shapes", "flops", "products"),
    [
        ("aten::mm", "[[8,4],[4,16]]", 1024, [(8, 16, 4, 1)]),
        ("aten::addmm", "[[16],[8,4],[4,16]]", 1024, [(8, 16, 4, 1)]),
        ("aten::bmm", "[[3,8,4],[3,4,16]]", 3072, [(8, 16, 4, 3)]),
        ("aten::convolution", "[[2,4,8,8],[6,4,3,3],[6]]", 2 * 2 * 36 * 6 * 36, [(72, 6, 36, 1)]),
        ("aten::convolution", "[[1,4,8,8],[4,1,3,3]]", 2 * 36 * 4 * 9, [(36, 1, 9, 4)]),
        (
            "aten::convolution_backward",
            "[[2,6,6,6],[2,4,8,8],[6,4,3,3]]",
            2 * 2 * 2 * 36 * 6 * 36,
            [(6, 36, 72, 1), (72, 36, 6, 1)],
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            "[[2,3,8,4],[2,3,10,4],[2,3,10,4]]",
            2 * 6 * 80 * 8,
            [(8, 10, 4, 6), (8, 4, 10, 6)],
        ),
        (
            "aten::convolution_backward",
            "[[8,32,16,16],[8,64,8,8],[64,32,2,2]]",
            2 * 2 * 512 * 64 * 128,
            [(64, 128, 512, 1), (512, 128, 64, 1)],
        ),
        ("aten::mkldnn_rnn_layer", "[[12,4,8],[64,8],[64,16]]", 147_456, [(4, 64, 8, 1)]),
        ("aten::relu", "[[8,4]]", 32, []),
    ],
)
def test_an_operator_is_taken_apart_into_its_products(operator, shapes, flops, products):
    parts = parts_of(work_of((operator, shapes, flops, 0)))

    assert products == sizes(parts)
    assert flops == 2 * int((macs(parts.products) * parts.times).sum()) if products else 32 == parts.elements[0]


def test_attention_backward_is_five_products():
    shapes = "[[2,3,8,4],[2,3,8,4],[2,3,10,4],[2,3,10,4]]"
    flops = 2 * 6 * 80 * (3 * 4 + 2 * 4)
    parts = parts_of(work_of(("aten::_scaled_dot_product_flash_attention_backward", shapes, flops, 0)))

    assert 5 == len(parts.row)
    assert flops == 2 * macs(parts.products).sum()


def test_a_product_takes_its_cycles_and_a_vector_operator_its_rounds():
    rows = work_of(
        ("aten::mm", "[[4096,4096],[4096,4096]]", 2 * 4096**3, 3 * 2 * 4096**2),
        ("aten::tanh", "[[4096,4096]]", 4096**2, 2 * 2 * 4096**2),
        ("aten::add", "[[16,16],[16,16]]", 256, 3 * 2 * 256),
    )
    cycles = product_cycles(Gemms.of(4096, 4096, 4096), Machines.of_accelerator(TPU, TPU.arrays[0])).item()
    found = duration_ns(rows, TPU)

    assert found[0] == pytest.approx(cycles / 1.05)
    assert found[1] == pytest.approx(4096**2 // 256 * 27 / 1.05)
    assert found[2] == pytest.approx(1e9 * 1536 / TPU.bandwidth_bytes_per_s)


def graph(dtype="c10::BFloat16"):
    build = GraphBuilder()
    common = {"kind": Kind.COMPUTE, "duration_ns": 0, "input_dtypes": f'["Tensor({dtype})","Tensor({dtype})"]'}
    build.task("mm", op="aten::mm", input_shapes="[[512,512],[512,512]]", flops=2 * 512**3, bytes_read=2**20,
               bytes_written=2**19, **common)  # fmt: skip
    build.task("relu", op="aten::relu", input_shapes="[[512,512]]", flops=2**18, bytes_read=2**19,
               bytes_written=2**19, **common)  # fmt: skip
    return build.build()


def test_a_graph_is_priced_by_its_chip_and_says_so():
    priced = price(graph(), TPU)
    sources = priced.tasks.strings("cost_source").to_numpy().tolist()

    assert ["accelerator", "accelerator"] == sources
    assert (priced.duration_ns > 0).all()


def test_other_devices_are_left_to_other_models():
    priced = price(graph(), device("tpu-v4"))

    assert "accelerator" not in priced.tasks.strings("cost_source").to_numpy().tolist()


def test_a_type_that_the_chip_does_not_have_is_named():
    with pytest.raises(InputError, match="no peak rate for 'fp32'"):
        price(graph("float"), TPU)
    assert (price(graph("float"), TPU, dtype="bf16").duration_ns > 0).all()


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000))
def test_no_price_is_under_the_roofline(m, n, k):
    row = work_of(("aten::mm", f"[[{m},{k}],[{k},{n}]]", 2 * m * n * k, 2 * (m * k + k * n + m * n)))
    found = accelerator().price(row, TPU)

    assert found.efficiency[0] <= 1
    assert found.duration_ns[0] >= 2e9 * m * n * k / TPU.flops_per_s("bf16") * (1 - 1e-9)


def test_energy_is_that_of_its_parts():
    shapes = "[[1024,1024],[1024,1024]]"
    rows = work_of(("aten::mm", shapes, 2 * 1024**3, 6 * 2**20), ("aten::relu", "[[1024]]", 1024, 4096))
    machines = Machines.of_accelerator(TPU, TPU.arrays[0])
    found = energy_j(rows, TPU)

    assert found[0] == pytest.approx(product_energy_j(Gemms.of(1024, 1024, 1024), machines).item())
    assert found[1] == pytest.approx(vector_energy_j(["relu"], [1024], [4096], machines).item())
    assert found[0] > 1024**3 * 1.5e-12


def test_a_larger_buffer_never_takes_more_energy_for_memory():
    small, large = (Machines.of(template_space().take(np.array([row]))) for row in (0, 1))
    work = Gemms.of(4096, 4096, 4096)

    assert (product_energy_j(work, small) > 0).all()
    assert (product_energy_j(work, large) > 0).all()


MATMULS = "kernels_hw/gpu_ops/a100_matmul.csv"


def published(name, operator):
    rows = list(csv.DictReader(shared_path(f"kernels_hw/gpu_ops/a100_{name}.csv").read_text().splitlines()))
    if name == "matmul":
        measured = np.array([1e6 * float(row["ms"]) for row in rows])
        each = [tuple(int(row[key]) for key in "mnk") for row in rows]
        made = [(operator, f"[[{m},{k}],[{k},{n}]]", 2 * m * n * k, 2 * (m * k + k * n + m * n)) for m, n, k in each]
        return work_of(*made, dtype="fp16"), measured
    shapes = [[int(row["elements"])] if "elements" in row else [int(row["rows"]), int(row["cols"])] for row in rows]
    counts = np.array([np.prod(one) for one in shapes])
    measured = counts / np.array([float(row["gelems_per_s"]) for row in rows])
    made = [(operator, f"[{shape}]", int(count), 4 * int(count)) for shape, count in zip(shapes, counts, strict=True)]
    return work_of(*made, dtype="fp16"), measured


@pytest.mark.parametrize(
    ("name", "operator", "most"),
    [
        ("matmul", "aten::mm", 0.08),
        ("softmax", "aten::_softmax", 0.15),
        ("layernorm", "aten::native_layer_norm", 0.15),
        ("gelu", "aten::gelu", 0.15),
    ],
)
def test_a_gpu_described_as_an_accelerator_is_near_its_published_times(name, operator, most):
    rows, measured = published(name, operator)
    error = np.abs(duration_ns(rows, device("a100-like"), is_alone=True) / measured - 1)

    assert error[1::2].mean() < most
