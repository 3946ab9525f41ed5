"""The catalog's rows and sheets of one's own."""

from __future__ import annotations

import csv
import json

import pytest

from tests.shared_data import shared_path
from windtunnel.errors import InputError
from windtunnel.hardware import device, devices, read_sheet, recognize
from windtunnel.hardware.parts import OPTIONAL_FIELDS
from windtunnel.hardware.sheet import FIELDS

MINE = dict.fromkeys(FIELDS) | {
    "name": "mine",
    "kind": "gpu",
    "num_units": 16,
    "memory_gib": 8,
    "bandwidth_gb_per_s": 100.5,
    "fp32_tflops": 4,
    "l2_mib": 1.5,
    "source": "own measurement",
}


def written(folder, **changes):
    path = folder / "mine.json"
    path.write_text(json.dumps({name: value for name, value in (MINE | changes).items() if value != "left out"}))
    return path


def test_a_sheet_of_ones_own_is_a_device(tmp_path):
    mine = device(str(written(tmp_path)))

    assert (16, 4e12, 100.5e9) == (mine.num_units, mine.flops_per_s(), mine.bandwidth_bytes_per_s)
    assert 1.5 * 2**20 == mine.l2_bytes
    assert mine.l3_bytes is None
    assert mine.clock_hz is None


def test_missing_fields_are_all_listed(tmp_path):
    path = written(tmp_path, l2_mib="left out", clock_mhz="left out", source=None)
    with pytest.raises(InputError, match="lacks 3 fields: clock_mhz, l2_mib, source"):
        read_sheet(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"l2_mb": 3}, "unknown fields: l2_mb"),
        ({"l2_mib": "much"}, "l2_mib is not a number"),
        ({"l2_mib": 0}, "l2_bytes must be above zero"),
        ({"fp32_tflops": None}, "states no peak"),
    ],
)
def test_wrong_fields_are_named(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        read_sheet(written(tmp_path, **changes))


def test_a_sheet_that_is_none_is_refused(tmp_path):
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "text.json").write_text("{")
    for name, message in (("list", "not one JSON object"), ("text", "is no JSON"), ("none", "cannot be read")):
        with pytest.raises(InputError, match=message):
            device(str(tmp_path / f"{name}.json"))


def test_the_catalog_is_large_and_its_rows_are_whole():
    kinds = [one.kind for one in devices().values()]

    assert len(kinds) >= 26
    assert {"gpu", "cpu", "tpu", "npu"} == set(kinds)
    for one in devices().values():
        assert one.source[-7:-3].isdigit(), one.name  # ends in year-month
        assert all(getattr(one, name) is None or getattr(one, name) > 0 for name in OPTIONAL_FIELDS)
        if one.kind in ("gpu", "cpu"):
            assert None not in (one.lanes_per_unit, one.clock_hz, one.l1_bytes, one.l2_bytes, one.num_threads), one.name


def test_stated_peaks_are_lanes_times_clock():
    for one in devices().values():
        if one.lanes_per_unit and one.clock_hz:
            vector = 2 * one.num_units * one.lanes_per_unit * one.clock_hz
            assert vector == pytest.approx(one.flops_per_s("fp32"), rel=0.02), one.name


def test_lower_precision_is_never_slower_than_fp32():
    for one in devices().values():
        peaks = one.peak_flops_per_s
        assert all(peaks[name] >= peaks.get("fp32", 0) for name in ("tf32", "bf16", "fp16") if name in peaks), one.name


def test_published_tables_call_the_same_devices_by_other_names():
    for theirs in csv.DictReader(shared_path("cost/devices.csv").read_text().splitlines()):
        if theirs["device"] in ("hl-100",):
            continue
        ours = device(theirs["device"])
        if theirs["kind"] == "gpu":
            assert float(theirs["mem_bw_gbs"]) * 1e9 == pytest.approx(ours.bandwidth_bytes_per_s, rel=0.03)
            assert float(theirs["fp32_tflops"]) * 1e12 == pytest.approx(ours.flops_per_s(), rel=0.07)


def test_short_names_work_in_any_case():
    assert device("H100") is device("h100-sxm5-80g")
    assert device("a100-40g-pcie").name == "a100-pcie-40g"


@pytest.mark.parametrize(
    ("driver", "memory_gib", "name"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", 11, "rtx2080ti"),
        ("GeForce GTX 1080 Ti", 11, "gtx1080ti"),
        ("NVIDIA TITAN Xp", 12, "titanxp"),
        ("NVIDIA H200", 141, "h200-sxm5-141g"),
        ("NVIDIA A10G", 24, "a10g"),
    ],
)
def test_drivers_names_are_recognized(driver, memory_gib, name):
    assert name == recognize(driver, memory_gib * 2**30).name


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"name": "\xff"}'])
def test_a_sheet_of_any_bytes_is_told(tmp_path, text):
    path = tmp_path / "sheet.json"
    path.write_bytes(text)

    with pytest.raises(InputError, match="the device's sheet cannot be read"):
        read_sheet(path)
