"""A step on fake tensors gives the graph that a real capture gives, but for its times."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.cli.command import windtunnel  # noqa: E402
from windtunnel.cost.operators.recurrent import Layer, layers_of  # noqa: E402
from windtunnel.errors import InputError  # noqa: E402
from windtunnel.graph import Kind, Phase, load  # noqa: E402
from windtunnel.hardware import device  # noqa: E402
from windtunnel.sources.torch.fake import NOT_RUN, fake_capture, fake_capture_script  # noqa: E402
from windtunnel.sources.torch.step import capture  # noqa: E402
from windtunnel.whatifs import whatif  # noqa: E402
from windtunnel.whatifs.another_batch import batch_of  # noqa: E402
from windtunnel.whatifs.forecast import forecast  # noqa: E402

# what this processor's libraries call within, by the name of the operator that calls them
WITHIN = {"mkldnn_convolution": "convolution", "clamp_min": "relu"}
COMPARED = (
    *("convolution", "convolution_backward", "native_batch_norm", "native_batch_norm_backward", "relu", "mm", "addmm"),
    *("threshold_backward", "native_layer_norm", "native_layer_norm_backward", "gelu", "gelu_backward", "bmm"),
    *("_log_softmax", "nll_loss_forward", "nll_loss_backward", "lerp_", "addcmul_", "addcdiv_", "sqrt"),
)


def job():
    """Images through a convolution, tokens of them through a layer of attention."""
    from torch import nn

    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 8, 3),
            "norm": nn.BatchNorm2d(8),
            "attention": nn.MultiheadAttention(8, 2, batch_first=True),
            "last": nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5)),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        maps = torch.relu(model["norm"](model["conv"](images))).flatten(2).transpose(1, 2)
        mixed, _ = model["attention"](maps, maps, maps)
        loss = nn.functional.cross_entropy(model["last"](mixed.mean(dim=1)), labels)
        loss.backward()
        optimizer.step()

    return step


@pytest.fixture(scope="module")
def graphs():
    return capture(job(), iterations=1, warmup=1), fake_capture(job)


def operators(graph):
    """Operator, shapes of its tensors, phase and layer of what computes."""
    texts = [graph.tasks.strings(name) for name in ("op", "input_shapes", "layer")]
    found = Counter()
    for row in np.flatnonzero(graph.select(kind=Kind.COMPUTE)):
        name, shapes, layer = (one.decode(int(row)) for one in texts)
        plain = name.rpartition("::")[2]
        plain = WITHIN.get(plain, plain)
        if plain in COMPARED:
            tensors = shapes if plain != "convolution" else shapes.split("]],")[0]
            found[plain, tensors.partition(",[],[[")[0], Phase(int(graph.tasks["phase"][row])).name, layer] += 1
    return found


def test_operators_shapes_phases_and_layers_are_those_of_a_real_capture(graphs):
    real, fake = graphs
    mine, theirs = operators(fake), operators(real)

    # relu and its kernel are one operator here and two there
    assert {key: count for key, count in theirs.items() if key[0] != "relu"} == {
        key: count for key, count in mine.items() if key[0] != "relu"
    }
    assert len(mine) > 30


def test_the_work_is_that_of_a_real_capture(graphs):
    real, fake = graphs

    assert real.tasks["flops"].sum() == pytest.approx(fake.tasks["flops"].sum(), rel=0.1)
    assert 4 == batch_of(fake) == batch_of(real)
    assert set(real.meta.program["parameters"].values()) == set(fake.meta.program["parameters"].values())
    assert [one["shapes"] for one in real.meta.optimizers[0]["groups"]] == [
        one["shapes"] for one in fake.meta.optimizers[0]["groups"]
    ]


def added():
    """A layer beside which its input goes on, twice."""
    from torch import nn

    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
    optimizer = torch.optim.SGD(layers.parameters())

    def step():
        x = torch.randn(4, 8)
        for layer in layers:
            x = x + layer(x).relu()
        x.pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_sums_of_gradients_are_work_as_in_a_real_capture():
    """Autograd makes them in place."""
    found = []
    for graph in (capture(added(), iterations=1, warmup=1), fake_capture(added)):
        sums = graph.select(op=r"aten::add_?", phase=Phase.BACKWARD, kind=Kind.COMPUTE).nonzero()[0]
        names = graph.tasks.strings("op").take(sums).to_numpy().tolist()
        found.append(list(zip(names, graph.tasks["bytes_read"][sums].tolist(), strict=True)))

    assert 2 == len(found[0])
    assert found[0] == found[1]


def test_what_was_not_run_has_no_times_but_can_be_priced(graphs):
    from windtunnel.hardware import device

    _, fake = graphs
    found = forecast(fake.validate(), device("h100"), model="roofline")

    assert 0 == fake.duration_ns.sum()
    assert (NOT_RUN, {}) == (fake.meta.source, dict(fake.meta.iteration_ns))
    assert not found.is_host_measured
    assert found.device_ns > 0
    assert "host table" in {one.name for one in found.sources}


def test_data_flows_from_the_forward_pass_to_its_backward(graphs):
    """Storages of fake tensors are worked out: without them nothing would depend on anything."""
    _, fake = graphs
    phase = fake.tasks["phase"]
    data = fake.edges["size_bytes"] > 0
    src, dst = fake.edges["src"][data], fake.edges["dst"][data]

    assert ((phase[src] == Phase.FORWARD) & (phase[dst] == Phase.BACKWARD)).sum() >= 10
    assert ((phase[src] == Phase.BACKWARD) & (phase[dst] == Phase.UPDATE)).sum() >= 10


def test_a_step_without_allocations_states_no_peak(graphs):
    """What-ifs of a fake capture once showed weights and state alone as its peak: 130 MiB for 1.5 GiB."""
    _, fake = graphs
    (answer,) = whatif(forecast(fake, device("h100")).graph, ["faster-device"])

    assert answer.is_applicable
    assert answer.baseline_peak_bytes is None
    assert answer.peak_bytes is None


def test_a_step_that_needs_values_is_refused_in_words():
    def build():
        values = torch.randn(8, requires_grad=True)
        return lambda: torch.nonzero(values > 0)

    with pytest.raises(InputError, match="cannot be predicted without its values"):
        fake_capture(build)


SCRIPT = """
import torch
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(160, 64)), batch_size=16, num_workers=1)
for epoch in range(3):
    for (batch,) in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


def test_a_script_is_captured_without_being_run_and_then_predicted(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    captured = windtunnel("capture", "--fake", script)

    assert 0 == captured.code, captured.stderr
    assert "tasks without times (nothing was run)" in " ".join(captured.stdout.split())
    assert "addmm" in "".join(load(tmp_path / "train.wt").tasks.strings("op").values)
    predicted = windtunnel("predict", tmp_path / "train.wt", "--on", "h100")
    assert 0 == predicted.code, predicted.stderr
    assert "calls and Python as timed on the host of an H200" in " ".join(predicted.stdout.split())


def train(default_device=""):
    """A few layers whose gradients are clipped."""

    def build():
        if default_device:
            torch.set_default_device(default_device)
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
        optimizer = torch.optim.Adam(model.parameters())
        values = torch.randn(4, 8)

        def step():
            optimizer.zero_grad()
            model(values).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        return step

    try:
        return fake_capture(build, has_device=True)
    finally:
        torch.set_default_device(None)


def test_tasks_do_not_depend_on_how_quick_this_host_was():
    first, second = train(), train()
    names = [graph.tasks.strings("op").to_numpy().tolist() for graph in (first, second)]
    assert names[0] == names[1]
    # each call once, and Python before each of the outermost ones
    forward = Counter(np.array(names[0])[first.tasks["phase"] == Phase.FORWARD].tolist())
    assert (3, 3, 6) == tuple(forward[name] for name in ("aten::linear", "aten::addmm", "python"))


def test_gradients_are_clipped_by_one_call_for_all():
    names = Counter(train().tasks.strings("op").to_numpy().tolist())
    assert 1 == names["aten::_foreach_norm"]
    assert 2 == sum(number for name, number in names.items() if name == "aten::_foreach_mul_")


def test_a_default_device_costs_time_and_waits_for_counters():
    from windtunnel.hardware import device

    chip = device("h100")
    plain, default = train(), train("cuda")
    assert (False, True) == (plain.meta.has_default_device, default.meta.has_default_device)
    before, after = (forecast(graph, chip, model="roofline") for graph in (plain, default))
    reads = default.select(op="aten::_local_scalar_dense", phase=Phase.UPDATE).sum()
    assert 12 == reads  # both corrections of the moments, of each of six parameters
    assert after.host_ns - before.host_ns > reads * 10_000


def operators_of(build):
    """Operators that compute, with how many bytes each writes."""
    graph = fake_capture(build, has_device=True)
    computes = graph.tasks["kind"] == Kind.COMPUTE
    names = graph.tasks.strings("op").to_numpy()[computes].tolist()
    return Counter(names), dict(zip(names, graph.tasks["bytes_written"][computes].tolist(), strict=True))


def test_a_norm_of_root_mean_squares_is_one_operator_on_a_device():
    def build():
        norm, values = torch.nn.RMSNorm(16), torch.randn(4, 16)
        return lambda: norm(values).sum().backward()

    counts, _ = operators_of(build)
    assert 1 == counts["aten::native_layer_norm"]  # which stands for it
    assert 1 == counts["aten::native_layer_norm_backward"]
    assert not counts["aten::pow"]


def test_a_sparse_gradient_does_not_rewrite_the_table():
    def build():
        table = torch.nn.EmbeddingBag(1000, 16, mode="sum", sparse=True)
        optimizer, numbers = torch.optim.SGD(table.parameters(), lr=0.1), torch.zeros(8, 1, dtype=torch.long)

        def step():
            optimizer.zero_grad()
            table(numbers).sum().backward()
            optimizer.step()

        return step

    _, written = operators_of(build)
    assert 0 == written["aten::add_"]


def test_a_script_that_needs_a_device_updates_its_parameters_by_lists(tmp_path):
    """It is run again once it fails without one."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
torch.set_default_device("cuda")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""
    )
    graph = fake_capture_script(script)
    assert graph.meta.has_default_device
    names = Counter(graph.tasks.strings("op").to_numpy().tolist())
    assert 1 == names["aten::_foreach_addcdiv_"]
    assert not names["aten::addcdiv_"]


@pytest.mark.parametrize("has_device", [False, True])
@pytest.mark.parametrize(
    ("layer", "options"),
    [(torch.nn.LSTM, {}), (torch.nn.LSTM, {"proj_size": 6}), (torch.nn.GRU, {}), (torch.nn.RNN, {})],
)
def test_packed_sequences_go_through_one_operator(layer, options, has_device):
    """A processor takes every time step apart: hundreds of operators where a device runs one, and minutes to trace."""

    def build():
        net, lengths = layer(8, 16, num_layers=2, bidirectional=True, **options), torch.tensor([10, 9, 5, 2])
        values = torch.randn(10, 4, 8)

        def step():
            output, state = net(torch.nn.utils.rnn.pack_padded_sequence(values, lengths))
            padded, _ = torch.nn.utils.rnn.pad_packed_sequence(output)
            last = state[0] if isinstance(state, tuple) else state
            (padded.sum() + last.sum()).backward()

        return step

    graph = fake_capture(build, has_device=has_device)
    names = graph.tasks.strings("op").to_numpy().tolist()
    gates, width = {torch.nn.LSTM: 64, torch.nn.GRU: 48, torch.nn.RNN: 16}[layer], options.get("proj_size", 16)
    wide = Layer(10, 3, 2 * width, gates, width)  # 26 samples in 10 time steps
    for name in ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"):
        assert 1 == names.count(name)
        task = names.index(name)
        columns = [graph.tasks.strings(column).decode(task) for column in ("op", "input_shapes", "input_args")]
        assert [wide._replace(inner=8)] * 2 + [wide] * 2 == layers_of(*columns)


@pytest.mark.parametrize("layer", [torch.nn.GRU, torch.nn.RNN])
def test_a_recurrent_network_is_one_operator_on_a_device(layer):
    """A processor takes every time step apart, which made a step on a GPU seven times as long."""

    def build():
        net, values = layer(8, 16, num_layers=2, bidirectional=True, batch_first=True), torch.randn(4, 10, 8)
        return lambda: net(values)[0].sum().backward()

    graph = fake_capture(build, has_device=True)
    names = graph.tasks.strings("op").to_numpy().tolist()
    assert (1, 1) == tuple(names.count(f"aten::_cudnn_rnn{ending}") for ending in ("", "_backward"))
    task = names.index("aten::_cudnn_rnn_backward")
    columns = [graph.tasks.strings(name).decode(task) for name in ("op", "input_shapes", "input_args")]
    gates = 48 if layer is torch.nn.GRU else 16
    wide = Layer(10, 4, 32, gates, 16)
    assert [wide._replace(inner=8)] * 2 + [wide] * 2 == layers_of(*columns)
    assert 4 * 10 * 4 * 2 * gates * ((8 + 16) + (32 + 16)) == graph.tasks["flops"][task]
