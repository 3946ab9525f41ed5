"""A left-out chip is left out with all of its variants, and nobody learns from it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("xgboost")

from benchmarks.unseen_gpus import MOST_ROWS, chips, may_learn, some

from tests.shared_data import shared_path
from windtunnel.cost.operators.table import OpTable, read_sheet


def test_variants_of_one_chip_are_left_out_together():
    sheet = read_sheet(shared_path("cost/devices.csv"))

    found = chips(("a100-40g-pcie", "a100-80g-pcie", "mi100", "t4"), sheet)

    assert found == {"a100-40g-pcie": ("a100-40g-pcie", "a100-80g-pcie"), "mi100": ("mi100",), "t4": ("t4",)}


def test_no_model_learns_from_a_left_out_device_and_only_amd_learns_from_amd():
    assert not may_learn("t4", "t4", ("t4",))
    assert not may_learn("t4", "mi100", ("t4",))
    assert may_learn("mi100", "mi210", ("mi100",))
    assert may_learn("mi100", "t4", ("mi100",))


def test_a_sample_holds_every_class_of_every_device():
    sizes = (1, 2, 2, 2)
    rows = [("a", "linear", sizes)] * (MOST_ROWS + 5) + [("b", "linear", sizes)] * 3 + [("b", "softmax", (4, 4))]

    found = some(OpTable.of_rows(rows))

    assert np.unique(found.device.astype(str), return_counts=True)[1].tolist() == [MOST_ROWS, 4]
    assert (found.op == "softmax").sum() == 1
