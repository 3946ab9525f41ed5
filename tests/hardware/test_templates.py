"""The space of templates and their areas."""

import csv
import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.hardware.templates import LARGEST, LIMITS, Templates, area_um2, template_space


def published():
    with gzip.open(shared_path("placement/phaze/cores.csv.gz"), "rt") as file:
        rows = list(csv.reader(file))[1:]
    return {tuple(map(int, row[:6])): float(row[6]) for row in rows}


def test_the_space_is_the_published_one_and_so_are_its_areas():
    theirs, ours = published(), template_space()
    keys = zip(
        *(getattr(ours, name).tolist() for name in (
            "num_tensor_cores", "num_vector_cores", "width", "depth", "vector_width", "sram_bytes"
        )),
        strict=True,
    )  # fmt: skip
    mine = dict(zip(keys, ours.area_um2.tolist(), strict=True))

    assert theirs.keys() == mine.keys()
    assert np.array([mine[key] for key in theirs]) == pytest.approx(np.array(list(theirs.values())), rel=1e-12)


def test_areas_of_the_shipped_sample_are_exact():
    path = shared_path("kernels_hw/area/accelerator_area.csv.gz")
    with gzip.open(path, "rt") as file:
        rows = np.array([list(map(float, row)) for row in list(csv.reader(file))[1:]])
    cores, vectors, width, depth, lanes, sram = rows[:, :6].T.astype(np.int64)

    assert area_um2(cores, width, depth, vectors, lanes, sram) == pytest.approx(rows[:, 6], rel=1e-11)


@given(st.sampled_from(sorted(LIMITS)), st.data())
def test_a_larger_part_never_takes_less_area(field, data):
    values = {name: data.draw(st.sampled_from([low, min(4 * low, high), high])) for name, (low, high) in LIMITS.items()}
    larger = values | {field: LIMITS[field][1]}

    assert area_um2(**values) <= area_um2(**larger)


@pytest.mark.parametrize(
    ("field", "value"),
    [("width", 0), ("depth", -4), ("width", 3), ("num_tensor_cores", 8192), ("sram_bytes", 1), ("depth", float("nan"))],
)
def test_a_template_outside_of_the_space_names_its_field_and_value(field, value):
    values = dict(zip(LIMITS, LARGEST, strict=True)) | {field: value}

    with pytest.raises(InputError, match=f"{field} {value}"):
        Templates.of(**values)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_no_area_is_refused(limit):
    with pytest.raises(InputError, match="is no area"):
        template_space(limit)


def test_a_limit_below_every_template_says_the_least():
    with pytest.raises(InputError, match="as small as 10"):
        template_space(10)


def test_rows_are_taken_in_columns():
    one = template_space().take(np.array([0, 3]))

    assert 2 == len(one)
    assert 2 == len(one.area_um2)
