import json

import numpy as np
import pytest

from tests.shared_data import shared_path
from tests.systems.tensor_programs.model.golden_nests import (
    GOLDEN,
    around,
    cpu_fusion,
    cpu_matmul,
    gpu_matmul,
    load,
    statement_features,
)
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.features import FEATURE_NAMES, NUM_FEATURES
from windtunnel.systems.tensor_programs.model.nest import Buffer, Nest, Store


def entry(row, name):
    return row[FEATURE_NAMES.index(name)]


@pytest.mark.parametrize("name", GOLDEN)
def test_published_vectors(name):
    """Seven statements of three programs, as the released extractor prints them."""
    golden = json.loads(shared_path("cost/golden/per_statement_features.json").read_text())
    case = next(case for case in golden["cases"] if case["name"] == name)

    rows = statement_features(GOLDEN[name](), mode="compat", collect="buffer")

    assert list(FEATURE_NAMES) == golden["feature_names"]
    np.testing.assert_allclose(rows, np.array(case["leaves"]), rtol=1e-5, atol=1e-5)


def test_names_are_unique_and_164():
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES) == NUM_FEATURES


def test_store_rule_keeps_initializations():
    """The compact tree has a leaf per store node; the flat baselines a row per buffer."""
    assert statement_features(gpu_matmul(), collect="store").shape == (5, NUM_FEATURES)
    assert statement_features(gpu_matmul(), collect="buffer").shape == (4, NUM_FEATURES)
    assert statement_features(cpu_matmul(), collect="store").shape == (2, NUM_FEATURES)


def test_later_store_to_a_buffer_overwrites_the_earlier_row():
    buffer = {"a": Buffer("a", (8,)), "b": Buffer("b", (8,))}
    first = Store("a", ("i",), load("b", "i"))
    second = Store("a", ("i",), ("mul", load("b", "i"), 2.0))
    nest = Nest(around((first, Store("b", ("i",), load("a", "i")), second), ("i", 8)), buffer)

    rows = statement_features(nest, collect="buffer")

    assert rows.shape[0] == 2
    assert entry(rows[0], "float_mul") == pytest.approx(np.log2(9))
    assert entry(rows[1], "float_mul") == 0


def test_full_mode_tells_positions():
    row = statement_features(cpu_matmul(), mode="full")[1]

    assert entry(row, "unroll_type.kPosInnerReduce") == 1  # the only loop of its axis
    assert entry(row, "vec_type.kPosMiddleSpatial") == 1
    assert entry(row, "parallel_type.kPosMixed") == 1  # two loops: the outermost and the next
    one = Nest(around((Store("C", ("i", "j"), 1.0),), ("i", 8, "parallel"), ("j", 4)), {"C": Buffer("C", (8, 4))})
    assert entry(statement_features(one)[0], "parallel_type.kPosOuterSpatial") == 1


def test_full_mode_takes_the_whole_interval_of_a_remainder():
    """The released extractor takes a remainder as one point; 512 x 2 elements are really touched."""
    full, compat = statement_features(gpu_matmul(), mode="full"), statement_features(gpu_matmul(), mode="compat")

    assert entry(full[1], "B1.unique_bytes") == pytest.approx(np.log2(512 * 2 * 4 + 1))
    assert entry(compat[1], "B1.unique_bytes") == pytest.approx(np.log2(512 * 1 * 4 + 1))


def test_touched_elements_equal_those_of_running_the_loops():
    """Affine indices without gaps: the hull is exactly what the loops touch."""
    indices = (("add", ("mul", "a", 4), "b"), ("add", "b", ("mul", "c", 3)))
    nest = Nest(around((Store("x", indices, 1.0),), ("a", 3), ("b", 4), ("c", 2)), {"x": Buffer("x", (12, 8))})
    touched = {(4 * a + b, b + 3 * c) for a in range(3) for b in range(4) for c in range(2)}
    hull = np.prod([len({place[dim] for place in touched}) for dim in range(2)])

    assert entry(statement_features(nest)[0], "B0.unique_bytes") == pytest.approx(np.log2(4 * hull + 1))


def test_serial_reuse_across_statements():
    row = statement_features(cpu_fusion())[1]

    assert entry(row, "B0.reuse_type.kSerialMultipleReadWrite") == 1
    assert entry(row, "B0.reuse_ct") == 1


def test_a_store_without_loops():
    nest = Nest((Store("x", (0,), ("call", "exp", load("x", 0))),), {"x": Buffer("x", (1,))})

    row = statement_features(nest)[0]

    assert entry(row, "float_mathfunc") == 1
    assert entry(row, "num_loops") == 0
    assert entry(row, "B0.unique_bytes") == 1
    assert entry(row, "arith_intensity_curve_9") == 0


def test_no_store_is_named():
    with pytest.raises(InputError, match="stores nothing"):
        statement_features(Nest((), {}, "empty"))
    constant = Nest((Store("x", (0,), 0.0),), {"x": Buffer("x", (1,))})
    with pytest.raises(InputError, match="stores nothing"):
        statement_features(constant, collect="buffer")
