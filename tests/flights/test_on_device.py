"""What only a GPU can do: on the host such a flight gives no receipt, and leaves nothing behind."""

from types import SimpleNamespace

import pytest

from windtunnel import registry
from windtunnel.errors import FlightError
from windtunnel.flights import fly
from windtunnel.flights.proof import _rounds_inputs
from windtunnel.measure import StopRule
from windtunnel.sources.targets import WorkloadName
from windtunnel.sources.torch.live import LiveProgram

torch = pytest.importorskip("torch")

BRIEF = StopRule(rounds=3, min_rounds=3, precision=0.5, turn_ns=1_000_000, time_limit_s=5)
TINY = WorkloadName("mlp", {"batch_size": 8, "width": 32, "depth": 1})


def entered(name):
    return registry.get("flight", name).function(LiveProgram())


def on_gpu(dtype=torch.float32):
    return SimpleNamespace(is_cuda=True, dtype=dtype)


@pytest.mark.parametrize("name", ["tf32", "pinned-memory"])
def test_on_the_host_nothing_changes_and_that_is_said(name):
    with pytest.raises(FlightError, match="changed nothing in this program"):
        fly(TINY, name, rule=BRIEF)


def precisions():
    return [one.fp32_precision for one in (torch.backends.cuda.matmul, torch.backends.cudnn.conv)]


@pytest.mark.parametrize("asked", ["neither", "older", "newer"])
def test_tf32_is_left_as_it_was(asked):
    """Torch has two ways of asking, and refuses to tell by the older one what was set by the newer."""
    matmul, first = torch.backends.cuda.matmul, precisions()
    if asked == "older":
        matmul.allow_tf32 = False
    if asked == "newer":
        matmul.fp32_precision = "ieee"
    before = precisions()
    with entered("tf32"):
        inside = precisions()
    after = precisions()
    matmul.fp32_precision = first[0]

    assert ["tf32", "tf32"] == inside
    assert before == after


@pytest.mark.parametrize(
    ("operator", "tensor", "expected"),
    [
        ("addmm", on_gpu(), True),
        ("convolution_backward", on_gpu(), True),
        ("addmm", on_gpu(torch.bfloat16), False),
        ("add", on_gpu(), False),
        ("addmm", torch.zeros(1), False),
    ],
)
def test_only_float32_products_on_a_gpu_are_rounded(operator, tensor, expected):
    with entered("tf32"):
        assert expected is _rounds_inputs(operator, [tensor])


def test_loaders_pin_and_copies_go_on_at_once():
    program, asked = LiveProgram(is_hooked=True), {}
    moves = torch.Tensor.to
    with registry.get("flight", "pinned-memory").function(program):
        asked = program.loader_arguments({"batch_size": 4})
        moved = torch.ones(2).to("cpu", torch.float64)

    assert {"batch_size": 4, "pin_memory": True} == asked
    assert torch.float64 is moved.dtype
    assert moves is torch.Tensor.to
