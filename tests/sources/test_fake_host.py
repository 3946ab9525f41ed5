"""What a script does on the host of a GPU shows in a capture on fake tensors, as it takes the step's time."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from windtunnel.cost.host_times import HANDOVER_NS, host_times_ns  # noqa: E402
from windtunnel.graph import EdgeKind, Kind, Phase  # noqa: E402
from windtunnel.hardware import device  # noqa: E402
from windtunnel.sources.torch.fake import fake_capture, fake_capture_script  # noqa: E402
from windtunnel.whatifs.placing import place_on  # noqa: E402

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(64, 8).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.randn(640, 64), torch.randint(8, (640,)))
for inputs, labels in DataLoader(data, 32, LOADER):
    inputs, labels = inputs.to("cuda", COPY), labels.cuda()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs.to("cuda")), labels)
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def captured(tmp_path, loader="num_workers=2", copy="non_blocking=False"):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("LOADER", loader).replace("COPY", copy))
    return fake_capture_script(script, guesses=True, has_device=True)


def names_of(graph, **criteria):
    return graph.tasks.strings("name").to_numpy()[graph.select(**criteria)].tolist()


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return captured(tmp_path_factory.mktemp("script"))


def test_a_batch_is_copied_to_the_device_once(graph):
    """What lies there already is not copied again."""
    assert 2 * ["Memcpy HtoD (Pageable -> Device)"] == names_of(graph, kind=Kind.COPY)
    assert [32 * 64 * 4, 32 * 8] == graph.tasks["bytes_written"][graph.select(kind=Kind.COPY)].tolist()


def test_workers_load_beside_the_thread_which_only_takes_the_batch(graph):
    loading = graph.select(phase=Phase.DATA)
    took_ns = host_times_ns(graph)[loading].sum()

    assert not (loading & graph.select(kind=Kind.COMPUTE)).any()
    assert 2 == graph.meta.loader["num_workers"]
    assert HANDOVER_NS < took_ns < 3 * HANDOVER_NS


def test_without_workers_the_thread_loads(tmp_path):
    graph = captured(tmp_path, loader="num_workers=0")
    operators = [name for name in names_of(graph, phase=Phase.DATA) if name.startswith("aten::")]

    assert len(operators) >= 32
    assert not (graph.select(phase=Phase.DATA) & graph.select(kind=Kind.COMPUTE)).any()


def test_pinned_batches_are_copied_without_a_wait(tmp_path):
    graph = captured(tmp_path, loader="num_workers=2, pin_memory=True", copy="non_blocking=True")

    first, second = names_of(graph, kind=Kind.COPY)
    assert "Memcpy HtoD (Pinned -> Device) non-blocking" == first
    assert "Memcpy HtoD (Pinned -> Device)" == second


def test_the_thread_waits_where_it_copies_and_where_it_reads(graph):
    placed = place_on(graph, device("h100"))
    waits = placed.edges["dst"][placed.edges["kind"] == EdgeKind.SYNC]

    assert ["aten::_local_scalar_dense#device"] == [placed.tasks.strings("name").decode(row) for row in waits.tolist()]
    assert 0 < placed.duration_ns[placed.select(kind=Kind.COPY)].min()


def test_what_numpy_takes_to_draw_a_batch_is_counted():
    def build():
        model = torch.nn.Linear(100, 1).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        random = np.random.default_rng(0)

        def step():
            batch = torch.from_numpy(np.sort(random.random((1000, 100)), axis=0).astype(np.float32)).to("cuda")
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

        return step

    graph = fake_capture(build, has_device=True)
    codes = [name for name in graph.tasks.strings("name").to_numpy() if name.startswith("host code#")]

    assert 1 == len(codes)
    assert int(codes[0].partition("#")[2]) == host_times_ns(graph)[graph.select(name="host code#.*")].sum()


def test_a_tensor_that_comes_back_from_the_device_is_waited_for_and_copied_again():
    def build():
        model = torch.nn.Linear(4, 4).to(torch.device("cuda"))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step():
            optimizer.zero_grad()
            outputs = model(torch.ones(8, 4).to(torch.device("cuda")))
            outputs.detach().cpu().to("cuda")
            outputs.sum().backward()
            optimizer.step()

        return step

    graph = fake_capture(build, has_device=True)

    assert 2 == len(names_of(graph, kind=Kind.COPY))
    assert graph.select(op="aten::_local_scalar_dense#device").any()


def test_a_program_without_a_device_has_no_copies():
    def build():
        model = torch.nn.Linear(4, 4)
        return lambda: model(torch.ones(8, 4)).sum().backward()

    graph = fake_capture(build, has_device=True)
    assert not graph.select(kind=Kind.COPY).any()
    assert graph.select(kind=Kind.COMPUTE).any()
