"""Op sets: what is read, what is refused, and the units."""

import gzip

import numpy as np
import pytest

from tests.shared_data import shared_path
from windtunnel.cost.operators.physics import bytes_of, chips_of, flops_of, grid_of, roofline_ms
from windtunnel.cost.operators.table import OpSplit, OpTable, op_class, read_op_set, read_published, read_sheet
from windtunnel.errors import InputError, PriceError
from windtunnel.hardware import Device

HEAD = "split,device,op,latency_ms,grid,block,warps_per_sm,tile1,tile2,B,M,N,K,H\n"
BMM = "train,gpu-a,bmm,0.5,24,256,1.7,128,64,6,27,21,390,\n"
ADD = "train,gpu-b,add,0.25,42,128,1.5,512,0,127,,,,168\n"

TOY = Device(
    "toy",
    memory_bytes=2**30,
    bandwidth_bytes_per_s=1e9,
    peak_flops_per_s={"fp32": 1e12, "fp16": 4e12},
    num_units=4,
    lanes_per_unit=128,
    l2_bytes=2**20,
)


def write(path, text):
    path.write_text(text)
    return path


def test_rows_are_read_with_their_sizes(tmp_path):
    table = read_op_set(write(tmp_path / "ops.csv", HEAD + BMM + ADD))

    assert ["gpu-a", "gpu-b"] == list(table.devices)
    assert [(6, 27, 21, 390, 0), (127, 0, 0, 0, 168)] == list(
        zip(table.B, table.M, table.N, table.K, table.H, strict=True)
    )
    assert [0.5, 0.25] == table.latency_ms.tolist()
    assert [(128, 64), (512, 0)] == list(zip(table.tile1, table.tile2, strict=True))
    assert ["bmm", "elementwise"] == table.op_class.tolist()


def test_gzip_and_several_files_make_one_table(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((HEAD + BMM).encode()))

    table = read_op_set(tmp_path / "a.csv.gz", write(tmp_path / "b.csv", HEAD + ADD))

    assert ["bmm", "add"] == table.op.tolist()


@pytest.mark.parametrize("latency", ["0", "-1", "nan", ""])
def test_a_label_that_is_not_above_zero_is_refused_with_row_and_file(tmp_path, latency):
    path = write(tmp_path / "ops.csv", HEAD + BMM + ADD.replace("0.25", latency))

    with pytest.raises(InputError, match="latency_ms must be above zero") as caught:
        read_op_set(path)

    assert f"{path}, line 3" == caught.value.where


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "no rows"),
        ("a,b\n1,2\n", "no column device, op, latency_ms"),
        (HEAD + BMM.replace("390", "many"), "K is no number: 'many'"),
        (HEAD + BMM.replace("390", "0"), "K must be above zero"),
        (HEAD + "short,row\n", "2 fields under 14 names"),
    ],
)
def test_what_is_no_op_set_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_op_set(write(tmp_path / "ops.csv", text))


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot read the file"):
        read_op_set(tmp_path / "none.csv")
    with pytest.raises(InputError, match="there is no train_"):
        read_published(tmp_path, "train")


def test_an_op_set_that_unpacks_without_end_is_refused(tmp_path):
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(bytes(80 << 20), compresslevel=1))

    with pytest.raises(InputError, match="the limit is"):
        read_op_set(tmp_path / "bomb.csv.gz")


def test_the_sheet_keeps_binary_and_decimal_units_apart(tmp_path):
    head = "device,kind,vendor,arch,num_units,cores_per_unit,clock_mhz,fp32_tflops,fp16_matrix_tflops_dense"
    head += ",mem_gb,mem_bw_gbs,l2_mb,smem_kb_per_unit,source\n"
    rows = "g,gpu,nv,ampere sm_80,108,64,1410,19.5,312,40,1555,40,164,x\nc,cpu,nv,x,4,,2000,1,,8,10,1,,x\n"

    sheet = read_sheet(write(tmp_path / "devices.csv", head + rows))

    assert ["g"] == list(sheet)
    one = sheet["g"]
    assert (40 * 2**30, 40 * 2**20, 164 * 2**10) == (one.memory_bytes, one.l2_bytes, one.shared_bytes)
    assert (1.555e12, 1.95e13, 1.41e9) == (one.bandwidth_bytes_per_s, one.flops_per_s("fp32"), one.clock_hz)


def test_n_is_the_contraction_and_elements_have_four_bytes():
    table = OpTable.of_rows([("toy", "bmm", (2, 3, 5, 7)), ("toy", "add", (2, 10)), ("toy", "addu", (2, 10))])

    assert [2 * 2 * 3 * 5 * 7, 20, 20] == flops_of(table).tolist()
    assert [4 * 2 * (3 * 5 + 5 * 7 + 3 * 7), 4 * 3 * 20, 4 * 2 * 20] == bytes_of(table).tolist()
    assert (bytes_of(table) / 2).tolist() == bytes_of(table, "fp16").tolist()
    with pytest.raises(PriceError, match="fp3"):
        bytes_of(table, "fp3")


def test_the_published_roofline_is_in_milliseconds_and_mixes_its_units():
    table = OpTable.of_rows(
        [("toy", "bmm", (1, 100, 1, 100)), ("toy", "relu", (1, 1000)), ("toy", "bmm", (1, 8, 10**6, 8))]
    )
    moved_gib = 4 * (100 + 100 + 100 * 100) / 2**30

    found = roofline_ms(table, {"toy": TOY})

    np.testing.assert_allclose(found[0], 1e3 * moved_gib / 1.0)  # GiB over GB/s, memory binds
    np.testing.assert_allclose(found[1], 1e3 * 8000 / 1e9)
    np.testing.assert_allclose(found[2], 1e3 * 4 * (16e6 + 64) / 2**30)


def test_units_are_counted_in_sixty_four_lanes_and_peaks_by_type():
    table = OpTable.of_rows([("toy", "relu", (1, 8))])

    assert 8 == chips_of(table, {"toy": TOY}).num_units[0]
    assert 4e12 == chips_of(table, {"toy": TOY}, "fp16").flops_per_s[0]
    with pytest.raises(InputError, match="no peak rate for 'bf16'"):
        chips_of(table, {"toy": TOY}, "bf16")
    with pytest.raises(InputError, match="no device is called 'toy'"):
        chips_of(table, {})


def test_the_first_tile_lies_along_k():
    table = OpTable.of_rows([("toy", "linear", (1, 488, 128, 38976))])

    num_tiles, padding = grid_of(table, 32, 128)

    assert [4872] == num_tiles.tolist()  # a kernel of this name had this grid on a P4
    np.testing.assert_allclose(padding, 1218 * 32 * 512 / (488 * 38976))


def test_classes_of_operators():
    assert ["elementwise", "bmm", ""] == [op_class("powu"), op_class("bmm"), op_class("conv2d")]


def rows(devices, sizes):
    table = OpTable.of_rows([(device, "relu", (size, 64)) for device in devices for size in sizes])
    return OpTable(table.device, table.op, np.ones(len(table)), *(getattr(table, name) for name in "BMNKH"),
                   table.tile1, table.tile2)  # fmt: skip


def test_a_held_out_device_is_nowhere_in_training():
    split = OpSplit.without_device(rows("abc", (1, 2, 3)), "b")

    assert ("a", "c") == split.train.devices
    assert ("b",) == split.held_out.devices
    with pytest.raises(InputError, match="cannot hold out 'z'"):
        OpSplit.without_device(rows("abc", (1, 2)), "z")


def test_a_split_by_size_trains_on_the_small_and_may_hold_a_device_out_too():
    table = rows("ab", range(1, 11))

    by_size = OpSplit.by_size(table, 0.7)
    both = OpSplit.by_size(table, 0.7, held_out="a")

    assert by_size.train.B.max() < by_size.held_out.B.min()
    assert (("b",), ("a",)) == (both.train.devices, both.held_out.devices)
    assert both.train.B.max() < both.held_out.B.min()


def test_equal_tables_have_equal_digests():
    assert rows("ab", (1, 2)).digest() == rows("ab", (1, 2)).digest()
    assert rows("ab", (1, 2)).digest() != rows("ab", (1, 3)).digest()


@pytest.mark.slow
def test_the_published_data_are_read():
    table = read_op_set(shared_path("cost/neusight/test_ops.csv.gz"))

    assert 19859 == len(table)
    assert "a100-80g-pcie" in table.devices
