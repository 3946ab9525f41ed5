"""What is zero in a training that really runs, kept in a file and read again."""

import json

import numpy as np
import pytest

from tests.sources.watched import watched
from windtunnel.base import bitmaps
from windtunnel.errors import InputError, NotApplicableError, SchemaVersionError
from windtunnel.sources.zeros.records import LayerRecord, ZeroRecords, read_zeros

torch = pytest.importorskip("torch")

from windtunnel.sources.zeros.watch import ZeroWatch, capture_with_zeros  # noqa: E402

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(inplace=True), torch.nn.Flatten(),
                            torch.nn.Linear(144, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(2, 1, 8, 8)).square().mean()
    loss.backward()
    optimizer.step()
"""


def network(*, has_norm=False, is_inplace=True):
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(8) if has_norm else torch.nn.Identity()
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), norm, torch.nn.ReLU(inplace=is_inplace), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 12, 3, stride=2, padding="valid" if has_norm else 1), torch.nn.ReLU(inplace=is_inplace),
        torch.nn.Flatten(), torch.nn.LazyLinear(5),
    )  # fmt: skip


def training(model):
    images, targets = torch.randn(6, 3, 16, 16), torch.randint(5, (6,))
    model(images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()

    return step, images, targets


def test_layers_are_named_as_in_a_graph_and_the_first_has_nobody_to_send_a_gradient_to():
    model = network()
    step, *_ = training(model)
    records = watched(step, [model], [0])

    by_layer = {one.layer: one for one in records.at(0)}
    assert ["0", "4", "7"] == list(by_layer)
    assert (4, 3, 16, 16) == by_layer["0"].inputs
    assert by_layer["0"].is_first
    assert not by_layer["4"].is_first
    assert by_layer["4"].is_masked


@pytest.mark.parametrize("is_inplace", [True, False])
def test_the_zeros_of_a_gradient_are_those_that_its_own_relu_masks(is_inplace):
    model = network(is_inplace=is_inplace)
    step, images, _ = training(model)
    with torch.no_grad():
        before = torch.nn.functional.conv2d(images[:4], model[0].weight, model[0].bias, padding=1)
    found = watched(step, [model], [0]).at(0)
    gradient = bitmaps.unpack(found[0].dY_bits, 8)
    is_positive = np.moveaxis((before > 0).numpy(), 1, -1).reshape(-1, 8)

    assert not (gradient & ~is_positive).any()
    assert 0 < found[0].gradient_density <= 0.25  # of each window the largest alone
    pooled = np.moveaxis(torch.nn.functional.max_pool2d(before.relu(), 2).numpy(), 1, -1).reshape(-1, 8)
    assert ((pooled != 0) == bitmaps.unpack(found[1].X_bits, 8)).all()


def test_behind_batch_normalization_gradients_are_dense():
    model = network(has_norm=True)
    step, *_ = training(model)
    first = watched(step, [model], [2]).at()[0]

    assert first.gradient_density > 0.95


def test_masks_are_kept_of_chosen_iterations_only():
    model = network()
    step, *_ = training(model)
    records = watched(step, [model], [3, 1], samples=2, program="test")

    assert (1, 3) == records.iterations
    assert 6 == len(records.records)
    assert {2} == {one.inputs[0] for one in records.records if one.kind == "convolution"}
    with pytest.raises(InputError, match="no masks of iteration 2 were kept"):
        records.at(2)


def test_a_file_of_masks_is_read_as_it_was_written(tmp_path):
    model = network()
    step, *_ = training(model)
    records = watched(step, [model], [0, 1], program="net")
    records.save(tmp_path / "net.zeros.npz")
    found = read_zeros(tmp_path / "net.zeros.npz")

    assert records.summary() == found.summary()
    for one, other in zip(records.records, found.records, strict=True):
        assert (one.X_bits == other.X_bits).all()
        assert (one.dY_bits == other.dY_bits).all()
        assert {k: v for k, v in vars(one).items() if "bits" not in k} == {
            k: v for k, v in vars(other).items() if "bits" not in k
        }


def test_a_script_is_captured_with_the_zeros_of_a_later_iteration(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    graph, records = capture_with_zeros(script, iterations=4, warmup=1, extra=2)

    assert ["0", "3"] == list(graph.meta.own["zeros"])
    assert records.summary() == graph.meta.own["zeros"]
    assert {"0", "3"} <= set(graph.tasks.strings("layer").values)
    assert graph.meta.own["zeros"]["3"]["is_masked"]


def test_a_script_without_layers_to_watch_says_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(inplace=True), torch.nn.Flatten(),", "")
                      .replace("torch.nn.Linear(144, 3)", "torch.nn.LayerNorm(8)"))  # fmt: skip
    with pytest.raises(NotApplicableError, match="no convolution and no linear layer"):
        capture_with_zeros(script, iterations=4, warmup=1)


def test_what_cannot_be_watched_is_refused():
    model = network()
    with pytest.raises(InputError, match="masks of 0 images"):
        ZeroWatch([model], samples=0)
    with pytest.raises(NotApplicableError, match="differentiated"):
        watched(lambda: None, [model], [0])


def record(**more):
    given = {
        "layer": "conv", "iteration": 0, "kind": "convolution", "inputs": (1, 2, 2, 2), "weight": (3, 2, 1, 1),
        "outputs": (1, 3, 2, 2), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1,
        "is_masked": True, "is_first": False, "X_bits": bitmaps.pack(np.ones((1, 2, 2, 2))),
        "dY_bits": bitmaps.pack(np.zeros((1, 3, 2, 2))), **more,
    }  # fmt: skip
    return LayerRecord(**given)


def changed(path, change):
    """The same file with another header."""
    with np.load(path) as stored:
        arrays = dict(stored)
    header = json.loads(str(arrays["header"]))
    change(header, arrays)
    np.savez_compressed(path, **{**arrays, "header": np.array(json.dumps(header))})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda header, _: header.update(schema="windtunnel.zeros/9"), SchemaVersionError, "this version reads"),
        (lambda header, _: header.update(schema="other"), InputError, "no file of masks"),
        (lambda header, _: header["layers"].clear(), InputError, "holds no masks"),
        (lambda header, _: header["layers"][0].update(inputs=[1, 2, 4, 4]), InputError, r"\(4, 4\), not \(16, 4\)"),
        (lambda header, _: header["layers"][0].update(kind="pool"), InputError, "unknown kind 'pool'"),
        (lambda header, _: header["layers"][0].pop("groups"), InputError, "no masks can be read"),
        (lambda header, _: header["layers"][0].update(inputs=[]), InputError, "no masks can be read"),
        (lambda _, arrays: arrays.pop("0/X_bits"), InputError, "no masks can be read"),
    ],
)
def test_a_file_that_somebody_changed_is_refused_in_words(tmp_path, change, error, message):
    path = tmp_path / "a.zeros.npz"
    ZeroRecords("a", (record(),), {}).save(path)
    changed(path, change)
    with pytest.raises(error, match=message):
        read_zeros(path)


def test_what_is_no_file_of_masks_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_zeros(tmp_path / "none.npz")
    for content in (b"", b"PK\x03\x04 no zip", b"text"):
        path = tmp_path / "bad.npz"
        path.write_bytes(content)
        with pytest.raises(InputError, match="no masks can be read"):
            read_zeros(path)
