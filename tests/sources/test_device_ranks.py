"""Ranks that compute on GPUs: each is captured with its kernels, and they meet in their collectives."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.shared_data import shared_path
from tests.sources.kineto_traces import write
from tests.sources.test_kineto_ranks import rank_events
from windtunnel.errors import TraceError
from windtunnel.graph import Kind
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto

torch = pytest.importorskip("torch", reason="needs the extra torch")

from windtunnel.sources.torch.join_ranks import join_step_ranks  # noqa: E402
from windtunnel.sources.torch.launch import Ranks  # noqa: E402
from windtunnel.sources.torch.ranks import capture_ranks  # noqa: E402

NAMES = ("rank 0 of train.py", "rank 1 of train.py")
SCRIPT = """
import torch
import torch.distributed
from windtunnel.sources.torch import recorder

recorder.lies_on_device = lambda _: True  # the host stands in for a GPU
torch.distributed.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
model = torch.nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""


def ranks_of(folder, *ranks):
    """The graph of each rank by itself, as a capture of it gives."""
    info = {"world_size": 2}
    return [
        load_kineto(write(folder / f"trace{rank}.json", events, distributedInfo={"rank": rank, **info}))
        for rank, events in enumerate(ranks)
    ]


def test_ranks_wait_for_the_kernels_of_the_slowest(tmp_path):
    """Rank 1 computes 400 µs longer; its collective takes 48 µs, and 10 of other work follow."""
    graphs = ranks_of(tmp_path, rank_events(100, 112, 560), rank_events(500, 512, 560))
    joined = join_step_ranks(graphs, NAMES)
    straggler = joined.select(name="gemm", rank=1)

    assert 570_000 == replay(joined).makespan_ns
    assert [48_000] * 2 == joined.duration_ns[joined.select(kind=Kind.COMM)].tolist()
    assert 170_000 == replay(joined.set_duration(straggler, 100_000)).makespan_ns
    assert {"0": NAMES[0], "1": NAMES[1]} == joined.meta.ranks


def test_a_recorded_rank_and_its_twin_meet_in_every_collective_of_nccl(tmp_path):
    path = shared_path("replay/kineto/nccl_collectives_rank0_of_2.json.gz")
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["distributedInfo"]["rank"] = 1
    twin = tmp_path / "rank1.json"
    twin.write_text(json.dumps(document))
    graphs = [load_kineto(path), load_kineto(twin)]
    joined = join_step_ranks(graphs, NAMES)
    collectives = [int(graph.select(kind=Kind.COMM).sum()) for graph in (*graphs, joined)]

    assert [21, 21, 42] == collectives
    assert replay(graphs[0]).makespan_ns == replay(joined).makespan_ns
    assert (2, 3) == (joined.num_ranks, joined.num_iterations)


def test_ranks_that_were_traced_for_different_times_are_refused(tmp_path):
    first, second = ranks_of(tmp_path, rank_events(100, 112, 560), rank_events(500, 512, 560))

    with pytest.raises(TraceError, match="traces of 1, 2 iterations"):
        join_step_ranks([first, second.concat(2)], NAMES)


def test_processes_that_compute_on_devices_are_captured_together(tmp_path):
    """The host stands in for both devices, and gloo for NCCL."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    graph = capture_ranks(path, ranks=Ranks(2), iterations=2, warmup=2)
    messages = graph.select(kind=Kind.COMM)

    assert (2, 2) == (graph.num_ranks, graph.num_iterations)
    assert [2, 2] == [int((messages & graph.select(rank=rank)).sum()) for rank in range(2)]
    assert len(graph.meta.program["calls"]) > 5
    assert graph.select(op="aten::addmm", layer="module.0|0").any()
    assert replay(graph).makespan_ns > 0
