"""Chips by what they are built of, by name and from files."""

import json
import pickle

import pytest

from windtunnel.errors import InputError
from windtunnel.hardware import Accelerator, accelerators, device
from windtunnel.hardware.accelerators import Arrays

SHEET = {
    "name": "mine",
    "source": "own drawing",
    "clock_hz": 1e9,
    "arrays": [{"rows": 32, "cols": 32, "count": 2, "dataflow": "os"}],
    "vector": {"width": 16, "count": 4},
    "sram": {"x": "64KiB", "w": 65536, "y": "64KiB"},
    "dram": {"bytes": "8GiB", "bytes_per_s": 1e10},
    "word_bytes": 1,
}


def written(folder, changes):
    path = folder / "mine.json"
    path.write_text(json.dumps({name: value for name, value in (SHEET | changes).items() if value != "left out"}))
    return str(path)


def test_a_description_of_ones_own_is_a_device(tmp_path):
    mine = device(written(tmp_path, {}))

    assert isinstance(mine, Accelerator)
    assert (2 * 2 * 32 * 32 * 1e9, 64, 3 * 65536) == (mine.flops_per_s("int8"), mine.num_lanes, mine.buffer_bytes)
    assert mine.template is None


def test_the_catalog_has_what_it_says():
    tpu, gpu = accelerators()["tpu-v4-like"], accelerators()["a100-like"]

    assert tpu.flops_per_s("bf16") == pytest.approx(device("tpu-v4").flops_per_s("bf16"), rel=0.01)
    assert gpu.flops_per_s("fp16") == pytest.approx(device("a100").flops_per_s("fp16"), rel=0.01)
    assert tpu.template.area_um2 == pytest.approx(278_826_676.31)
    assert tpu == device("tpu-v4-like")


@pytest.mark.parametrize("name", ["tpu-v4-like", "a100-like", "phaze:8x128x128+2x128+128MiB"])
def test_an_accelerator_travels_between_processes(name):
    one = device(name)

    assert one == pickle.loads(pickle.dumps(one))
    assert json.dumps(one.json())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("phaze:8x128", "is no template"),
        ("phaze:3x8x8+1x8+2MiB", "num_tensor_cores 3"),
        ("phaze:8x512x8+1x8+2MiB", "width 512"),
        ("phaze:8x8x8+1x8+1MiB", "sram_bytes 1048576"),
        ("phaze:0x8x8+1x8+2MiB", "num_tensor_cores 0"),
        ("phaze:8x8x8+1x8+2GB", "sram_bytes 2000000000"),
        ("phaze:8x8x8+1x8+2parsecs", "no known unit"),
        ("tpu-v9-like", "no device is called"),
    ],
)
def test_a_name_that_is_no_template_says_what_is_wrong(name, message):
    with pytest.raises(InputError, match=message):
        device(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": "left out"}, "lacks"),
        ({"clock_hz": "left out"}, "lacks clock_hz"),
        ({"colour": "red"}, "unknown fields: colour"),
        ({"arrays": []}, "arrays is"),
        ({"arrays": [3]}, r"arrays\[0\] is 3"),
        ({"arrays": [{"rows": 32, "cols": 32}]}, r"arrays\[0\] lacks count"),
        ({"arrays": [{"rows": 0, "cols": 32, "count": 1}]}, "rows must be above zero, not 0"),
        ({"arrays": [{"rows": 2.5, "cols": 32, "count": 1}]}, "rows is 2.5"),
        ({"arrays": [{"rows": 4, "cols": 4, "count": 1, "dataflow": "rs"}]}, "no dataflow is called 'rs'"),
        ({"arrays": [{"rows": 4, "cols": 4, "count": 3, "per_core": 2}]}, "3 arrays do not make cores of 2"),
        ({"arrays": [{"rows": 4, "cols": 4, "count": 1, "compute_ratio": 1.5}]}, "compute_ratio 1.5"),
        ({"arrays": [{"rows": 4, "cols": 4, "count": 1, "is_overlapped": 1}]}, "is_overlapped is 1"),
        ({"arrays": [{"rows": 4, "cols": 4, "count": 1, "tile_sides": "64"}]}, "tile_sides is"),
        ({"vector": {"width": 16}}, "vector lacks count"),
        ({"vector": 7}, "vector is 7"),
        ({"sram": {"global": 1000}}, "sram global of 1000 bytes is smaller than one tile"),
        ({"sram": {"x": 65536, "w": 65536}}, "sram has x, w"),
        ({"sram": {"global": "64 acres"}}, "no known unit"),
        ({"dram": {"bytes": "8GiB", "bytes_per_s": 0}}, "bandwidth_bytes_per_s must be above zero"),
        ({"dram": {"bytes": "8GiB", "bytes_per_s": True}}, "bytes_per_s is True"),
        ({"clock_hz": 0}, "clock_hz must be above zero"),
        ({"word_bytes": 3}, "word_bytes cannot be 3"),
        ({"name": ""}, "name is"),
        ({"operators": {"gelu": {}}}, "operators.gelu lacks overhead_ns"),
    ],
)
def test_a_wrong_description_names_field_and_value(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        device(written(tmp_path, changes))


def test_numbers_that_are_none_are_refused(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(SHEET | {"clock_hz": float("nan")}))

    with pytest.raises(InputError):
        device(str(path))


def test_an_accelerator_without_arrays_is_none():
    with pytest.raises(InputError, match="arrays must be at least one"):
        Accelerator("none", 2**30, 1e9)


def test_a_chip_of_two_kinds_of_arrays_is_no_template(tmp_path):
    two = device(written(tmp_path, {"arrays": [*SHEET["arrays"], *SHEET["arrays"]], "sram": {"global": "2MiB"}}))

    assert two.template is None
    assert 4 * 32 * 32 * 1e9 == two.macs_per_s


def test_arrays_need_positive_tiles():
    with pytest.raises(InputError, match="tile_sides must be above zero"):
        Arrays(4, 4, 4, tile_sides=(0, 64))


def test_a_chunk_is_a_word_of_the_bitmaps():
    """Said twice, as hardware is looked up where numba is not installed."""
    from windtunnel.base.bitmaps import WORD_BITS
    from windtunnel.hardware.parts import CHUNK

    assert WORD_BITS == CHUNK
