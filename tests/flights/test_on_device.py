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


@pytest.mark.parametrize("name", ["tf32", "pinned-memory", "non-blocking-copies"])
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


@pytest.mark.parametrize("name", ["pinned-memory", "non-blocking-copies"])
def test_loaders_pin_and_copies_go_on_at_once(name):
    program, asked = LiveProgram(is_hooked=True), {}
    moves = torch.Tensor.to
    with registry.get("flight", name).function(program):
        asked = program.loader_arguments({"batch_size": 4})
        moved = torch.ones(2).to("cpu", torch.float64)

    assert {"batch_size": 4, "pin_memory": True} == asked
    assert torch.float64 is moved.dtype
    assert moves is torch.Tensor.to


def test_the_regions_of_a_program_that_uses_autocast_compute_in_float32():
    layer, inputs = torch.nn.Linear(2, 2), torch.ones(1, 2)
    enter = torch.autocast.__enter__

    def dtype():
        with torch.autocast("cpu", torch.bfloat16):
            return layer(inputs).dtype

    with entered("no-amp"):
        changed = dtype()

    assert (torch.float32, torch.bfloat16) == (changed, dtype())
    assert enter is torch.autocast.__enter__


def test_no_amp_needs_a_program_that_uses_autocast():
    with pytest.raises(FlightError, match="changed nothing in this program"):
        fly(TINY, "no-amp", rule=BRIEF)
