"""Failures that GPUs cause: one clear error with exit code 2, whoever meets them, and nothing is lost."""

import pytest

from tests.cli.command import windtunnel
from tests.whatifs.steps import Layer, cpu_step, gpu_step
from windtunnel.base.gpu_failures import gpu_advice
from windtunnel.cli.capture import require_recorded_kernels
from windtunnel.errors import FlightError

torch = pytest.importorskip("torch")

FAILS = """
import torch

model, optimizer = torch.nn.Linear(2, 2), None
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(100):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if step == {step}:
        {failure}
"""
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 9.50 GiB of which 1.21 GiB is free."
)
FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)
MIXED = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
STATE = "state_steps is on cpu, different from other tensors on cuda:0"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (OUT_OF_MEMORY, "smaller batch"),
        (FORKED, "spawn"),
        (MIXED, "to one device"),
        (STATE, "to one device"),
        ("No CUDA GPUs are available", "needs no GPU"),
        ("Torch not compiled with CUDA enabled", "needs no GPU"),
        ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "let users profile"),
        ("CUDA error: invalid device ordinal", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_each_failure_has_its_advice(text, advice):
    assert advice in gpu_advice(f"RuntimeError: {text}")


@pytest.fixture
def script(tmp_path):
    """A script that fails on its step of that number."""

    def write(failure, step):
        path = tmp_path / "train.py"
        path.write_text(FAILS.format(failure=failure, step=step))
        return path

    return write


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        (f"raise torch.OutOfMemoryError({OUT_OF_MEMORY!r})", "smaller batch"),
        (f"raise RuntimeError({FORKED!r})", "spawn"),
        (f"raise RuntimeError({MIXED!r})", "to one device"),
        pytest.param(
            "torch.ones(1, device='cuda')",
            "needs no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU"),
        ),
    ],
)
def test_a_script_that_fails_so_ends_with_one_error(script, tmp_path, failure, advice):
    outcome = windtunnel("capture", "--out", tmp_path / "train.wt", script(failure, 3))

    assert 2 == outcome.code
    assert 1 == outcome.stderr.count("error:")
    assert advice in " ".join(outcome.stderr.split())


def test_a_flight_of_such_a_script_says_the_same(script, tmp_path):
    outcome = windtunnel(
        "verify", script(f"raise torch.OutOfMemoryError({OUT_OF_MEMORY!r})", 60), "--whatif", "foreach-optimizer",
        "--rounds", 3, "--ledger", tmp_path / "receipts.db", "--prices", "paper",
    )  # fmt: skip

    assert 2 == outcome.code
    assert "1.21 GiB is free" in " ".join(outcome.stderr.split())


def test_a_profiler_without_permission_is_said_and_the_host_is_kept(monkeypatch, tmp_path):
    """Drivers that forbid profiling give no kernels, and no error either."""
    monkeypatch.setattr("windtunnel.measure.devices.uses_gpu", lambda *_: True)
    require_recorded_kernels(gpu_step([Layer("a")]), tmp_path / "train.wt")

    with pytest.raises(FlightError, match="recorded no work there") as caught:
        require_recorded_kernels(cpu_step([Layer("a")]), tmp_path / "train.wt")
    assert "NVreg_RestrictProfilingToAdminUsers" in caught.value.fix
    assert 2 == caught.value.exit_code
