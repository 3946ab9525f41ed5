"""Steps as CUDA graphs: torch's own capture, with a recorder in the place of the device."""

from __future__ import annotations

import importlib

import pytest

from windtunnel import registry
from windtunnel.errors import FlightError, InputError
from windtunnel.flights import fly
from windtunnel.sources.targets import WorkloadName

torch = pytest.importorskip("torch", reason="needs the extra torch")

from tests.flights.recorded_graphs import install  # noqa: E402
from windtunnel.flights.proof import Witness  # noqa: E402
from windtunnel.sources.torch.live import LiveProgram  # noqa: E402

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not here")


@pytest.fixture
def recorded(monkeypatch):
    install(monkeypatch)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    def forward(self, inputs, *, scale=1.0):
        return self.layers(inputs) * scale


def program(optimizer=torch.optim.Adam, *, accumulates=False, schedules=False, **given):
    torch.manual_seed(0)
    model, batches = Network(), torch.randn(12, 5, 4)
    optimizer = optimizer(model.parameters(), lr=0.05)
    labels, number = torch.tensor([0, 1, 2, 0, 1]), iter(range(12))

    def step():
        if not accumulates:
            optimizer.zero_grad()
        if schedules:
            optimizer.param_groups[0]["lr"] *= 0.9
        loss = torch.nn.functional.cross_entropy(model(batches[next(number)], **given), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return LiveProgram([model], [optimizer]), step


def flight(live, **given):
    return registry.get("flight", "cuda-graphs").function(live, **given)


@pytest.mark.parametrize(("with_update", "num_replays"), [(True, 3), (False, 2)])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_replayed_passes_and_updates_train_as_before(recorded, monkeypatch, optimizer, with_update, num_replays):
    # a capturable Adam insists on a GPU
    module = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu"])
    plain, plain_step = program(optimizer)
    live, step = program(optimizer)
    expected = [plain_step() for _ in range(6)]
    counts = {}
    with flight(live, with_update=with_update):
        losses = [step() for _ in range(5)]
        with Witness(live).watching(1, counts):
            losses.append(step())

    assert expected == pytest.approx(losses, rel=1e-4)
    assert num_replays == counts["replayed graphs"]
    for before, after in zip(plain.models[0].parameters(), live.models[0].parameters(), strict=True):
        torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"accumulates": True}, "accumulated, or zeroed in place"),
        ({"scale": 2.0}, "other arguments than tensors"),
        ({"schedules": True}, "gradients or options of SGD have more than 4 forms"),
    ],
)
def test_what_no_graph_can_hold_is_refused_with_the_reason(recorded, given, message):
    live, step = program(torch.optim.SGD, **given)
    with flight(live), pytest.raises(FlightError, match=message):
        [step() for _ in range(10)]


def test_a_model_on_the_host_is_not_captured(recorded, monkeypatch):
    from windtunnel.flights import cuda_graphs

    monkeypatch.setattr(cuda_graphs, "GRAPH_DEVICES", ("cuda",))
    live, _ = program()
    with pytest.raises(FlightError, match="Network does not lie on a GPU"), flight(live):
        pass


def test_evaluation_runs_as_before(recorded):
    live, step = program(torch.optim.SGD)
    with flight(live):
        step()
        live.models[0].eval()
        counts = {}
        with Witness(live).watching(1, counts), torch.no_grad():
            live.models[0](torch.randn(2, 4))

    assert "replayed graphs" not in counts


@needs_no_gpu
@pytest.mark.parametrize("request_text", ["cuda-graphs", "compile:mode=reduce-overhead"])
def test_without_a_gpu_the_reason_is_said(request_text):
    with pytest.raises(FlightError, match="need a GPU"):
        fly(WorkloadName("mlp", {"batch_size": 4, "width": 8, "depth": 1}), request_text)


def test_unknown_modes_of_the_compiler_are_named():
    flight_of_compile = registry.get("flight", "compile").function
    with (
        pytest.raises(InputError, match="no mode 'max-autotune'"),
        flight_of_compile(LiveProgram(), mode="max-autotune"),
    ):
        pass
