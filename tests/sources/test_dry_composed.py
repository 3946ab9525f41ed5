"""Composed jobs traced without hardware: a rank has its own work only, and every stage of a pipeline its own time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.sources.test_dry_run import AVERAGED, SPLIT, messages, traced  # noqa: E402
from windtunnel import Kind, Phase  # noqa: E402
from windtunnel.graph import EdgeKind  # noqa: E402
from windtunnel.hardware import machine  # noqa: E402
from windtunnel.simulate import replay  # noqa: E402
from windtunnel.sources.dry.run import dry_run  # noqa: E402
from windtunnel.whatifs.forecast import forecast  # noqa: E402

PRODUCTS = r".*(aten::addmm|aten::mm|flash_attention).*"
# attention between 8 heads of 16 numbers, in equal parts of a sequence of 256
CONTEXT = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        heads = [part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.project(x).chunk(3, -1)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


model = Attention().to(device, torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    x = torch.randn(2, 256, 64, device=device, dtype=torch.bfloat16)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1], no_restore_buffers={x}):
        model(x).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STAGES = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

stages = [
    PipelineStage(nn.Linear(64, 64).to(device), number, NUM_CHUNKS * dist.get_world_size(), device)
    for number in range(rank, NUM_CHUNKS * dist.get_world_size(), dist.get_world_size())
]
schedule = SCHEDULE(
    stages if NUM_CHUNKS > 1 else stages[0], n_microbatches=8, loss_fn=lambda out, target: (out - target).pow(2).mean()
)
optimizer = torch.optim.SGD([one for stage in stages for one in stage.submod.parameters()])
batch = torch.randn(16, 64, device=device, requires_grad=True)
for _ in range(5):
    optimizer.zero_grad()
    schedule.step(*([batch] if rank == 0 else []), **({"target": batch} if rank == dist.get_world_size() - 1 else {}))
    optimizer.step()
"""
COMPOSED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cuda", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "inner"))
number, model = mesh["pp"].get_local_rank(), nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
SHARD
stage = PipelineStage(model, number, 2, device, group=mesh.get_group("pp"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).pow(2).mean())
optimizer = torch.optim.SGD(model.parameters())
batch = torch.randn(8, 64, device=device)
for _ in range(5):
    optimizer.zero_grad()
    schedule.step(*([batch] if number == 0 else []), **({"target": batch} if number == 1 else {}))
    optimizer.step()
"""
SUMMED = """
import torch.distributed._functional_collectives as functional


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        REDUCE


weight = nn.Parameter(torch.randn(64, 64, device=device))
optimizer = torch.optim.SGD([weight])
for _ in range(5):
    for _ in range(2):
        Summed.apply(weight).exp().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OVERLAPPED = """
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

size = dist.get_world_size()
split = parallelize_module(
    nn.Linear(64, 64).to(device), init_device_mesh("cuda", (size,)), RowwiseParallel(use_local_output=False)
)
beside = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD([*split.parameters(), *beside.parameters()], foreach=False)
for _ in range(5):
    x = torch.randn(4, 64, device=device)
    reduced = split(x[:, : 64 // size])WAIT
    (beside(x).exp() + reduced.to_local().sin()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SHARDS = {
    "tensor parallel": 'parallelize_module(model, mesh["inner"], {"0": ColwiseParallel(), "2": RowwiseParallel()})',
    "sharded": 'fully_shard(model, mesh=mesh["inner"])',
}


def product_flops(graph, **selected):
    return int(graph.tasks["flops"][graph.select(op=PRODUCTS, **selected)].sum())


def sources(graph, row, kind):
    """Where edges of a kind come from that lead to a task."""
    return graph.edges["src"][(graph.edges["dst"] == row) & (graph.edges["kind"] == kind)].tolist()


def test_a_tensor_parallel_rank_has_its_part_of_every_product(tmp_path):
    """Three blocks of two products on a quarter of 256 columns, and twice that in the backward pass."""
    graph = traced(tmp_path, SPLIT, 8)
    forward = 3 * 2 * (2 * 4 * 64 * (256 // 4))

    assert forward == product_flops(graph, phase=Phase.FORWARD)
    assert 3 * forward == product_flops(graph)


def test_gradients_are_added_up_by_tasks_that_read_both(tmp_path):
    """Of what a block passes on and of what its layers give: autograd adds in place."""
    graph = traced(tmp_path, AVERAGED, 8)
    sums = graph.select(op=r"aten::add_\.Tensor", phase=Phase.BACKWARD).nonzero()[0]

    assert 2 == len(sums)  # nobody asks for a gradient of the first block's input
    for row in sums:
        assert 2 == len(sources(graph, row, EdgeKind.DATA))
        assert 2 * 4 * 4 * 64 == graph.tasks["bytes_read"][row]


@pytest.mark.parametrize("reduce", [
    "dist.all_reduce(grad := grad.clone()); return grad",
    "return functional.all_reduce(grad, 'sum', dist.group.WORLD)",
])  # fmt: skip
def test_a_gradient_is_added_up_when_its_collective_is_done(tmp_path, reduce):
    graph = traced(tmp_path, SUMMED.replace("REDUCE", reduce), 8)
    [added] = graph.select(op=r"aten::add_\.Tensor", phase=Phase.BACKWARD).nonzero()[0]
    reductions = graph.select(op="all_reduce").nonzero()[0]

    assert 2 == len(reductions)
    assert set(reductions) == set(sources(graph, added, EdgeKind.DATA))
    assert reductions[-1] in sources(graph, added, EdgeKind.SYNC)


@pytest.mark.parametrize(("wait", "overlaps"), [
    ("", True),
    ("; functional.wait_tensor(reduced.to_local())", False),
    ("; reduced.to_local().wait()", False),
])  # fmt: skip
def test_a_stream_waits_for_a_collective_at_its_first_use_or_where_told_to(tmp_path, wait, overlaps):
    """A distributed tensor waits when an operator reads it; what is queued before runs beside the collective."""
    graph = traced(tmp_path, OVERLAPPED.replace("WAIT", wait), 4)
    is_run = graph.select(kind=(Kind.COMPUTE, Kind.COMM))
    [reduced], [independent], [reader] = (
        (graph.select(op=op) & is_run).nonzero()[0] for op in ("all_reduce", "aten::exp", "aten::sin")
    )
    priced = graph.set_duration(is_run, 1000).set_duration(graph.select(kind=Kind.COMM), 9000)
    start_ns = replay(priced).start_ns
    end_ns = start_ns[reduced] + 9000

    assert overlaps == (start_ns[independent] < end_ns)
    assert start_ns[reader] >= end_ns


def test_a_context_parallel_rank_has_its_part_of_the_sequence(tmp_path):
    """Its rows meet all of the keys, in the mean half of them, those on the diagonal more than half."""
    graph = traced(tmp_path, CONTEXT, 4)
    rows = 2 * 256 // 4
    products = 2 * rows * 64 * (192 + 64)
    causal = 4 * 4 * 16 * rows * 256 // 2
    attention = graph.tasks["flops"][graph.select(op=r".*flash_attention")].sum()

    assert products == product_flops(graph, phase=Phase.FORWARD) - attention
    assert causal <= attention <= causal * 1.01


@pytest.mark.parametrize("inner", SHARDS)
def test_all_stages_of_a_composed_pipeline_are_traced(tmp_path, inner):
    graph = traced(tmp_path, COMPOSED.replace("SHARD", SHARDS[inner]), 8)
    found = messages(graph)

    assert {"0": 4, "4": 4} == graph.meta.distributed["stands_for"]
    assert 2 * 4 == found["send", 2] == found["recv", 2]
    assert {2, 4} == {size for _, size in found}


@pytest.mark.parametrize(
    ("schedule", "num_chunks", "num_ranks"),
    [("GPipe", 1, 2), ("GPipe", 1, 5), ("1F1B", 1, 2), ("1F1B", 1, 5), ("Interleaved1F1B", 2, 4)],
)
def test_equal_stages_wait_for_each_other(tmp_path, schedule, num_chunks, num_ranks):
    """Eight microbatches of one product forward and two backward, behind p - 1 others, where messages take no time."""
    body = STAGES.replace("SCHEDULE", f"Schedule{schedule}").replace("NUM_CHUNKS", str(num_chunks))
    graph = traced(tmp_path, body, num_ranks)
    busy = graph.set_duration(graph.select(op=PRODUCTS, kind=Kind.COMPUTE), 1000)

    assert dict.fromkeys(map(str, range(num_ranks)), 1) == graph.meta.distributed["stands_for"]
    assert 3 * 1000 * (8 * num_chunks + num_ranks - 1) == replay(busy).makespan_ns


FILLED_AND_DRAINED = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("nccl")
rank, last = dist.get_rank(), dist.get_world_size() - 1
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).to(device)
stage = PipelineStage(model, rank, last + 1, device)
schedule = ScheduleGPipe(stage, n_microbatches=8, loss_fn=lambda out, target: (out - target).pow(2).mean())
optimizer, x = torch.optim.SGD(model.parameters(), 0.1), torch.randn(8 * 1024, 4096, device=device)
for _ in range(8):
    optimizer.zero_grad()
    schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == last else {}))
    optimizer.step()
"""


@pytest.mark.parametrize(("num_stages", "step_ms"), [(4, 71.4), (8, 97.5)])
def test_every_further_stage_of_a_gpipe_adds_one_microbatch_to_its_step(tmp_path, num_stages, step_ms):
    """Four stages wait 3 microbatches of 6.5 ms for each other, eight stages 7."""
    script = tmp_path / "train.py"
    script.write_text(FILLED_AND_DRAINED)
    found = forecast(dry_run(script, num_ranks=num_stages), machine("dgx-h100"), model="roofline")

    assert found.makespan_ns == pytest.approx(step_ms * 1e6, rel=0.01)
