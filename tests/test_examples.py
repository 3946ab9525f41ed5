"""Every example runs as its own docstring says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.graph import GraphBuilder, save

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name, *arguments):
    """The example's output."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_the_example_transformer_learns():
    losses = [float(line.split()[-1]) for line in run("train_transformer.py", "--steps", 100).splitlines()]

    assert 2 == len(losses)
    assert losses[1] < losses[0] < 2.8


def test_a_step_is_captured_asked_and_reported_from_python(tmp_path):
    shown = run("ask_a_step.py", "--output", tmp_path / "step.html", "--iterations", 4)

    assert "per iteration" in shown
    assert "faster-cpu:factor=1.5  " in shown
    assert (tmp_path / "step.html").stat().st_size > 10_000


def test_a_whatif_of_ones_own_is_asked_like_any_other(tmp_path):
    builder = GraphBuilder()
    cpu = builder.resource("cpu")
    for op in ("aten::mm", "aten::scaled_dot_product_attention"):
        builder.task(op, op=op, duration_ns=300, resource=cpu)
    shown = run("own_whatif.py", save(builder.build(), tmp_path / "train.wt"))

    assert "cheap-attention:factor=0" in shown.splitlines()[0]
    assert "1.50x" in shown.splitlines()[1]


def test_every_example_is_tested_here():
    names = {path.name for path in EXAMPLES.glob("*.py")}

    assert {"train_transformer.py", "ask_a_step.py", "own_whatif.py"} == names
