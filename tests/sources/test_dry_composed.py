"""Composed jobs traced without hardware: a rank has its own work only, and every stage of a pipeline its own time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.sources.test_dry_run import SPLIT, messages, traced  # noqa: E402
from windtunnel import Kind, Phase  # noqa: E402
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
SHARDS = {
    "tensor parallel": 'parallelize_module(model, mesh["inner"], {"0": ColwiseParallel(), "2": RowwiseParallel()})',
    "sharded": 'fully_shard(model, mesh=mesh["inner"])',
}


def product_flops(graph, **selected):
    return int(graph.tasks["flops"][graph.select(op=PRODUCTS, **selected)].sum())


def test_a_tensor_parallel_rank_has_its_part_of_every_product(tmp_path):
    """Three blocks of two products on a quarter of 256 columns, and twice that in the backward pass."""
    graph = traced(tmp_path, SPLIT, 8)
    forward = 3 * 2 * (2 * 4 * 64 * (256 // 4))

    assert forward == product_flops(graph, phase=Phase.FORWARD)
    assert 3 * forward == product_flops(graph)


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
