"""One array in closed form, against published runs of a simulator."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.hardware.accelerators import DATAFLOWS
from windtunnel.systems.chips.accelerators import Machines, product_cycles
from windtunnel.systems.chips.accelerators.systolic import Gemms, accesses, cycles, utilization

SIZES = st.integers(1, 500)
SIDES = st.integers(1, 40)
GOLDEN = {"golden_user_os": (256, 128, 256, "os"), "golden_user_ws": (256, 128, 256, "ws"),
          "golden_calc": (3025, 96, 363, "ws")}  # fmt: skip


def report(run, name):
    path = shared_path(f"kernels_hw/scalesim/{run}/{name}_REPORT.csv")
    header, row = (line.split(",") for line in path.read_text().splitlines()[:2])
    return {key.strip(): float(value) for key, value in zip(header, row, strict=True) if value.strip()}


def machine_of(dataflow, buffer_words, words_per_cycle, side=32):
    sides = [np.array([one]) for one in (side, side, 1, 1, 3 * buffer_words)]
    return Machines(*sides, np.array([words_per_cycle]), dataflow, word_bytes=1, operand_bytes=(buffer_words,) * 3)


def simulated(m, n, k, rows, cols, dataflow):
    """Fold by fold: fill, steps, drain."""
    down, across, steps = {"os": (m, n, k), "ws": (k, n, m), "is": (k, m, n)}[dataflow]
    total, reads = 0, [0, 0, 0]
    for row in range(0, down, rows):
        for col in range(0, across, cols):
            high, wide = min(rows, down - row), min(cols, across - col)
            total += (0 if dataflow == "os" else rows) + steps + rows + cols - 2
            moved = {
                "os": (high * k, k * wide, high * wide),
                "ws": (high * m, high * wide, m * wide),
                "is": (high * wide, high * n, wide * n),
            }[dataflow]
            reads = [one + more for one, more in zip(reads, moved, strict=True)]
    return total - 1, reads


def test_every_published_run_is_exact():
    rows = list(csv.DictReader(shared_path("kernels_hw/scalesim/os_cycles.csv").read_text().splitlines()))
    m, n, k, high, wide, spent = (
        np.array([int(row[name]) for row in rows]) for name in ("m", "n", "k", "rows", "cols", "cycles")
    )
    share = np.array([float(row["util_pct"]) for row in rows])

    assert {"os"} == {row["dataflow"] for row in rows}
    assert spent.tolist() == cycles(m, n, k, high, wide, "os").tolist()
    assert share == pytest.approx(100 * m * n * k / (high * wide * spent), abs=6e-4)


@pytest.mark.parametrize("run", GOLDEN)
def test_the_simulators_own_reports_are_exact(run):
    m, n, k, dataflow = GOLDEN[run]
    spent, read = report(run, "COMPUTE"), report(run, "DETAILED_ACCESS")
    ours = accesses(m, n, k, 32, 32, dataflow)
    _, mapping, compatible = utilization(m, n, k, 32, 32, dataflow)

    assert spent["Total Cycles"] - spent["Stall Cycles"] == cycles(m, n, k, 32, 32, dataflow)
    assert (read["SRAM IFMAP Reads"], read["SRAM Filter Reads"]) == (ours.x, ours.w)
    # the reports of stationary outputs count 2,048 words of filler
    assert read["SRAM OFMAP Writes"] == ours.y + (2048 if dataflow == "os" else 0)
    assert spent["Mapping Efficiency %"] == pytest.approx(100 * mapping)
    assert spent["Compute Util %"] == pytest.approx(100 * compatible)


@pytest.mark.parametrize("run", ["golden_user_os", "golden_user_ws"])
def test_a_narrow_memory_stalls_as_it_does_in_the_simulator(run):
    m, n, k, dataflow = GOLDEN[run]
    machine = machine_of(dataflow, 65536, 10.0)
    ours, tiled = (product_cycles(Gemms.of(m, n, k), machine, mode).item() for mode in ("stream", "tiled"))

    assert report(run, "COMPUTE")["Total Cycles"] == pytest.approx(ours, rel=0.01)
    assert tiled < ours


@given(SIZES, SIZES, SIZES, SIDES, SIDES, st.sampled_from(DATAFLOWS))
def test_the_closed_form_counts_what_folds_take_one_by_one(m, n, k, rows, cols, dataflow):
    total, reads = simulated(m, n, k, rows, cols, dataflow)
    found = accesses(m, n, k, rows, cols, dataflow)

    assert total == cycles(m, n, k, rows, cols, dataflow)
    assert reads == [found.x, found.w, found.y]


@given(SIZES, SIZES, SIZES, SIDES, SIDES, st.sampled_from(DATAFLOWS), st.sampled_from("mnk"))
def test_more_work_never_takes_fewer_cycles(m, n, k, rows, cols, dataflow, side):
    sizes = {"m": m, "n": n, "k": k}
    larger = sizes | {side: sizes[side] + 1}

    assert cycles(**sizes, rows=rows, cols=cols, dataflow=dataflow) <= cycles(
        **larger, rows=rows, cols=cols, dataflow=dataflow
    )


@given(SIZES, st.integers(2, 500), SIZES, SIDES, SIDES, st.sampled_from(DATAFLOWS))
def test_two_halves_never_take_fewer_cycles_than_the_whole(m, n, k, rows, cols, dataflow):
    parts = [cycles(m, half, k, rows, cols, dataflow) for half in (n // 2, n - n // 2)]

    assert cycles(m, n, k, rows, cols, dataflow) <= sum(parts) + 1


@given(SIZES, SIZES, SIZES, st.integers(64, 9000), st.integers(1, 30), st.sampled_from(DATAFLOWS))
def test_tiles_are_never_slower_than_streaming(m, n, k, words, rate, dataflow):
    work, machine = Gemms.of(m, n, k), machine_of(dataflow, words, float(rate), side=8)

    assert product_cycles(work, machine) <= product_cycles(work, machine, "stream")


def test_streaming_needs_a_buffer_for_each_operand():
    shared = replace(machine_of("os", 64, 1.0), operand_bytes=None)

    with pytest.raises(InputError, match="the operands share a buffer"):
        product_cycles(Gemms.of(4, 4, 4), shared, "stream")


@pytest.mark.parametrize(("field", "value"), [("m", 0), ("n", -3), ("k", float("nan")), ("m", 1.5), ("count", 0)])
def test_sizes_that_are_none_are_named(field, value):
    sizes = {"m": 4, "n": 4, "k": 4, "count": 1} | {field: value}

    with pytest.raises(InputError, match=f"{field} cannot be {value}"):
        Gemms.of(**sizes)


def test_an_unknown_dataflow_is_named():
    with pytest.raises(InputError, match="no dataflow is called 'rs'"):
        cycles(1, 1, 1, 1, 1, "rs")


def test_products_beyond_64_bits_are_refused():
    with pytest.raises(InputError, match="multiplications"):
        Gemms.of(2**31, 2**31, 2**31)


@given(SIZES, SIZES, SIZES, st.integers(2, 40), SIDES, st.sampled_from(DATAFLOWS))
def test_an_array_multiplies_what_its_share_of_work_says(m, n, k, rows, cols, dataflow):
    overall, mapping, compatible = utilization(m, n, k, rows, cols, dataflow)

    assert float(overall) * rows * cols * float(cycles(m, n, k, rows, cols, dataflow)) == pytest.approx(m * n * k)
    assert 0 < compatible <= mapping <= 1


def test_half_an_array_is_half_mapped():
    assert (0.5, 1.0) == tuple(float(utilization(m, 32, 8, 32, 32, "os")[1]) for m in (16, 64))


@pytest.mark.parametrize("dataflow", ["os", "ws", "is"])
def test_one_multiplier_is_busy_with_one_product(dataflow):
    assert 1.0 == utilization(1, 1, 1, 1, 1, dataflow)[0]
