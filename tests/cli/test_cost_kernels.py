"""``cost train kernels`` and ``cost eval kernels`` on a small net that is really run."""

import json

import pytest

from windtunnel.cli import main

for module in ("torch", "sklearn", "safetensors", "pytorchcv"):
    pytest.importorskip(module)

SMALL = ("--nets", "resnet10", "--size", "32")


def run(capsys, *arguments):
    code = main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
def test_a_runtime_is_learned_and_a_net_of_it_flown(capsys, tmp_path):
    path = tmp_path / "kernels.safetensors"

    code, out, err = run(capsys, "cost", "train", "kernels", *SMALL, "--kernels", 60, "--out", path)

    assert (0, True) == (code, path.exists()), err
    assert "fused: conv-bn" in out
    code, out, err = run(capsys, "cost", "eval", "kernels", path, *SMALL, "--json")
    document = json.loads(out)
    assert 0 == code, err
    assert document["runtime"] == "onednn"
    assert document["nets"][0]["num_kernels"] > 10
    assert document["nets"][0]["predicted_ns"] > 0 < document["nets"][0]["measured_ns"]
    code, out, _ = run(capsys, "cost", "eval", "kernels", path, *SMALL, "--no-run")
    assert "resnet10" in out
    assert "measured" not in out
    code, out, _ = run(capsys, "cost", "info", path)
    assert "runtime: onednn" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there are no kernels to learn from"),
        (("--nets", "resnet1"), "resnet1"),
        (("--prior", "conv.csv"), "does not say what its rows are"),
        (("--prior", "conv=nowhere.csv"), "the prior cannot be read"),
        (("--preset", "best", *SMALL), "no preset is called 'best'"),
        (("--runtime", "other", *SMALL), "no runtime is called 'other'"),
    ],
)
def test_wrong_wishes_are_answered_with_two(capsys, tmp_path, arguments, message):
    code, _, err = run(capsys, "cost", "train", "kernels", *arguments, "--out", tmp_path / "kernels.safetensors")

    assert 2 == code
    assert message in err
