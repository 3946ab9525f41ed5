"""``cost train tile`` and ``cost eval tile`` on a small op set."""

import json

import numpy as np
import pytest

from windtunnel.cli import main

for module in ("xgboost", "safetensors", "scipy"):
    pytest.importorskip(module)

SHEET = """device,kind,vendor,arch,num_units,cores_per_unit,clock_mhz,fp32_tflops,fp16_matrix_tflops_dense,\
mem_gb,mem_bw_gbs,l2_mb,smem_kb_per_unit,source
a,gpu,nv,x,40,64,1000,6,,16,200,2,64,test
b,gpu,nv,x,80,64,1000,14,,16,900,6,64,test
"""
HEAD = "split,device,op,latency_ms,grid,block,warps_per_sm,tile1,tile2,B,M,N,K,H\n"


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    rates = {"a": 2e8, "b": 9e8}  # bytes per millisecond
    lines = []
    for device, rate in rates.items():
        for rows, width in rng.integers(8, 2000, (60, 2)):
            latency = 0.02 + 8 * rows * width / rate
            lines.append(f"train,{device},relu,{latency},1,128,1,256,0,{rows},,,,{width}\n")
    (tmp_path / "devices.csv").write_text(SHEET)
    (tmp_path / "train_vector.csv").write_text(HEAD + "".join(lines))
    (tmp_path / "test_ops.csv").write_text(HEAD + "".join(line.replace("train", "test") for line in lines[::5]))
    return tmp_path


def run(capsys, *arguments):
    code = main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_model_is_trained_and_judged(capsys, folder):
    path = folder / "tile.safetensors"

    code, out, err = run(capsys, "models", "train", "tile", "--data", folder, "--out", path)

    assert (0, True) == (code, path.exists()), err
    assert "trained on 120 operators" in out
    assert "elementwise" in out
    assert f"next: windtunnel models eval tile {path}" in err
    code, out, err = run(capsys, "models", "eval", "tile", path, "--data", folder, "--json")
    document = json.loads(out)
    assert 0 == code
    assert ["a", "b"] == [row["device"] for row in document["errors"]]
    assert all(row["mape"] < 0.2 for row in document["errors"])
    code, out, _ = run(capsys, "models", "eval", "tile", path, "--data", folder)
    assert "mean error" in out


def test_a_device_is_left_out_by_name(capsys, folder):
    arguments = ("models", "train", "tile", "--data", folder, "--without", "a", "--no-calibrate", "--json")

    code, out, _ = run(capsys, *arguments, "--out", folder / "one.safetensors")

    assert 0 == code
    assert ["b"] == json.loads(out)["devices"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--without", "z"), "cannot hold out 'z'"),
        (("--out", "devices.csv"), "is there already"),
        (("--data", "nowhere"), "there is no train_"),
    ],
)
def test_wrong_wishes_are_answered_with_two(capsys, folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)

    code, _, err = run(capsys, "models", "train", "tile", "--data", ".", "--out", "x.safetensors", *arguments)

    assert 2 == code
    assert message in err


def test_a_file_that_is_no_model_is_refused(capsys, folder):
    code, _, err = run(capsys, "models", "eval", "tile", folder / "devices.csv", "--data", folder)

    assert 2 == code
    assert "no cost model" in err
