"""``windtunnel predict`` on chips that are described by what they are built of."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import windtunnel
from tests.whatifs.test_forecast import step
from windtunnel.graph import save

SMALL = "phaze:64x64x64+16x64+64MiB"


@pytest.fixture
def stored(tmp_path):
    return save(step(), tmp_path / "train.wt")


def test_a_chip_says_its_area_and_the_energy_of_a_step(stored):
    outcome = windtunnel("predict", stored, "--on", "tpu-v4-like", "--dtype", "bf16")

    assert 0 == outcome.code
    assert "one iteration on tpu-v4-like, bf16" in outcome.stdout
    assert "chip    278.8 mm²" in outcome.stdout
    assert "accelerator" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_several_chips_are_compared_in_step_energy_and_area(stored):
    outcome = windtunnel("predict", stored, "--on", f"tpu-v4-like,{SMALL},a100-like,h100", "--dtype", "bf16")

    assert 0 == outcome.code
    assert "area not known" in outcome.stdout
    assert "* no other is better in step, energy" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_the_document_has_area_and_energy_in_raw_units(stored):
    document = json.loads(windtunnel("predict", stored, "--on", f"{SMALL},h100", "--dtype", "bf16", "--json").stdout)
    chips = {one["device"]: one.get("chip") for one in document["forecasts"]}

    assert chips["h100-sxm5-80g"] is None
    assert chips[SMALL]["area_um2"] > 1e8
    assert chips[SMALL]["energy_j"] > 0


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("phaze:3x8x8+1x8+2MiB", "no template has num_tensor_cores 3"),
        ("phaze:8x8", "'phaze:8x8' is no template"),
        ("tpu-v4-like", "tpu-v4-like has no peak rate for 'fp32'"),
    ],
)
def test_a_chip_that_cannot_be_is_bad_input(stored, on, message):
    outcome = windtunnel("predict", stored, "--on", on)

    assert 2 == outcome.code
    assert message in outcome.stderr


def test_a_description_with_a_wrong_value_is_bad_input(stored, tmp_path):
    sheet = {"name": "mine", "source": "own", "clock_hz": 0, "arrays": [{"rows": 4, "cols": 4, "count": 1}],
             "vector": {"width": 4, "count": 1}, "sram": {"global": "64KiB"},
             "dram": {"bytes": "1GiB", "bytes_per_s": 1e9}}  # fmt: skip
    path = tmp_path / "chip.json"
    path.write_text(json.dumps(sheet))
    outcome = windtunnel("predict", stored, "--on", path)

    assert 2 == outcome.code
    assert "clock_hz must be above zero" in outcome.stderr
