"""A job of many ranks without hardware gives the operators, messages and memory of its distinct ranks."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from windtunnel import Kind, Phase  # noqa: E402
from windtunnel.errors import InputError, NotApplicableError  # noqa: E402
from windtunnel.graph import EdgeKind, load, save  # noqa: E402
from windtunnel.hardware import machine  # noqa: E402
from windtunnel.simulate import replay  # noqa: E402
from windtunnel.sources.dry.run import dry_run  # noqa: E402
from windtunnel.whatifs.forecast import forecast  # noqa: E402
from windtunnel.whatifs.fully_sharded import zero_3  # noqa: E402

BEGIN = """
import os
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def train(model, steps=5, then=lambda loss: None):
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        loss = model(torch.randn(4, 64, device=device)).float().pow(2).mean()
        assert not torch.isnan(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        then(loss)


"""
SHARDED = """
from torch.distributed.fsdp import fully_shard

model = nn.Sequential(*[Block() for _ in range(3)]).to(device)
for block in model:
    fully_shard(block)
fully_shard(model)
train(model, then=lambda loss: print(f"{loss.item():.3f}"))
"""
AVERAGED = """
from torch.nn.parallel import DistributedDataParallel

model = nn.Sequential(*[Block() for _ in range(3)]).to(device)
train(DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=0.1))
"""
SPLIT = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cuda", (dist.get_world_size() // 4, 4), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    model = nn.Sequential(*[Block() for _ in range(3)])
for block in model:
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
model.to_empty(device="cuda")
train(model)
"""
STAGES = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

last = dist.get_world_size() - 1
model = nn.Sequential(*[Block() for _ in range(1 + (rank == last))]).to(device)
stage = PipelineStage(model, rank, last + 1, device)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).pow(2).mean())
optimizer = torch.optim.SGD(model.parameters())
batch = torch.randn(8, 64, device=device)
for _ in range(5):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(batch)
    elif rank == last:
        schedule.step(target=batch)
    else:
        schedule.step()
    optimizer.step()
"""
CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint


class Mixed(Block):
    def forward(self, x):
        heads = self.norm(x).view(1, 2, 2, 64)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mixed = nn.functional.scaled_dot_product_attention(heads.bfloat16(), heads.bfloat16(), heads.bfloat16())
            return x + self.down(torch.relu(self.up(mixed.flatten(0, 2) + torch.zeros(64, device="cuda"))))


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Mixed()

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


train(Whole().to(device))
"""
GROUPED = """
class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(64, 64), nn.Linear(64, 16), nn.Linear(64, 16)

    def forward(self, x):
        heads = [part(x).to(TYPE).view(1, 4, -1, 8).transpose(1, 2) for part in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, attn_mask=MASK, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(4, 64).to(x.dtype)


train(Grouped().to(device))
"""
LOADED = """
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

data = torch.randn(4096, 64)


class Rows(Dataset):
    def __len__(self):
        return len(data)

    def __getitem__(self, at):
        return data[at]


model = DistributedDataParallel(Block().to(device))
optimizer = torch.optim.SGD(model.parameters())
for x in DataLoader(Rows(), 16, sampler=DistributedSampler(Rows())):
    optimizer.zero_grad()
    model(x.to(device)).pow(2).mean().backward()
    optimizer.step()
"""
WINDOWS = """
import numpy
from torch.nn.parallel import DistributedDataParallel

data = torch.randn(4096)
array = numpy.zeros(4096, "float32")
model = DistributedDataParallel(Block().to(device))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    begins = model.module(torch.ones(16, 64)).argmax(1)
    x = torch.stack([ROW for at in begins])
    optimizer.zero_grad()
    model(x.to(device)).pow(2).mean().backward()
    optimizer.step()
"""
DROPPING = """
class Dropping(Block):
    def forward(self, x):
        return super().forward(nn.functional.dropout(torch.dropout(x, 0.1, train=True), 0.5, self.training))


model = Dropping().to(device)
gradient = torch.zeros(64, 256, device=device)


def accumulate(loss):
    columns = torch.ones(4, 64, dtype=torch.bfloat16, device=device), torch.ones(4, 256, dtype=torch.bfloat16)
    torch.ops.aten.addmm.dtype_out(gradient, columns[0].t(), columns[1], torch.float32, out=gradient)


train(model, then=accumulate)
"""
DECIDES = """
model = Block().to(device)


def stop(loss):
    if loss.item() > 3:
        raise SystemExit


train(model, then=stop)
"""


def traced(folder, body, num_ranks, **options):
    script = folder / "train.py"
    script.write_text(BEGIN + body)
    return dry_run(script, num_ranks=num_ranks, **options)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return traced(tmp_path_factory.mktemp("sharded"), SHARDED, 1024)


def messages(graph):
    ops = graph.tasks.strings("op")
    rows = np.flatnonzero(graph.select(kind=Kind.COMM))
    return Counter((ops.decode(row), len(graph.meta.groups[graph.tasks["group"][row]].ranks)) for row in rows.tolist())


def test_a_sharded_job_gathers_twice_and_scatters_once_per_block(sharded):
    """The last block stays whole between its passes, the root has no parameters of its own."""
    found = messages(sharded)

    assert {("all_gather", 1024): 6, ("reduce_scatter", 1024): 3} == found
    assert {"0": 1024} == sharded.meta.distributed["stands_for"]
    assert 0 == sharded.duration_ns.sum()


def test_a_gathered_message_is_the_whole_block(sharded):
    """33,152 parameters of four bytes, each of six padded to 1,024 equal parts."""
    sent = sharded.select(kind=Kind.COMM, op="all_gather")
    rows = [64, 64, 256, 256, 64, 64]
    columns = [1, 1, 64, 1, 256, 1]
    padded = sum(1024 * -(-row // 1024) * column for row, column in zip(rows, columns, strict=True))

    assert {4 * padded} == set(sharded.tasks["message_bytes"][sent].tolist())


def test_a_gather_waits_for_its_copy_and_its_reader_waits_for_it(sharded):
    name = sharded.tasks.strings("name")
    data = sharded.edges["kind"] == EdgeKind.DATA
    pairs = {
        (name.decode(src), name.decode(dst))
        for src, dst in zip(sharded.edges["src"][data], sharded.edges["dst"][data], strict=True)
    }

    assert ("fsdp::all_gather_copy_in", "c10d::_allgather_base_") in pairs
    assert ("c10d::_allgather_base_", "fsdp::split_with_sizes_copy") in pairs
    assert ("fsdp::chunk_cat", "c10d::_reduce_scatter_base_") in pairs


def test_messages_overlap_with_computation(sharded):
    """The gather of the next block runs while this one computes, as it does in the real job."""
    priced = sharded.set_duration(sharded.select(kind=(Kind.COMPUTE, Kind.COMM)), 1000)
    timeline = replay(priced)

    assert timeline.makespan_ns < priced.duration_ns.sum()


def test_a_dry_run_is_priced_with_its_messages(sharded):
    found = forecast(sharded, machine("dgx-h100"), model="roofline")
    sources = {share.name for share in found.sources}

    assert "ring model" in sources
    assert found.makespan_ns > found.device_ns > 0


def test_another_batch_is_traced_again(sharded):
    with pytest.raises(InputError, match="cannot get another batch") as refusal:
        forecast(sharded, machine("dgx-h100"), batch_size=8)

    assert "dry-run" in refusal.value.fix


def test_zero_3_of_an_averaged_job_is_the_sharded_job(tmp_path):
    """Both gather all parameters for each pass but what is still whole, scatter all gradients, hold a share."""
    on = machine("dgx-h100")
    averaged, sharded = (forecast(traced(tmp_path, body, 8), on).graph for body in (AVERAGED, SHARDED))
    changed = zero_3(averaged)

    for phase, is_whole in ((Phase.FORWARD, True), (Phase.BACKWARD, False)):
        sent = [
            graph.tasks["message_bytes"][graph.select(kind=Kind.COMM, op="all_gather", phase=phase)]
            for graph in (changed, sharded)
        ]
        assert (sent[0].sum() == sent[1].sum()) if is_whole else (0 < sent[0].sum() <= sent[1].sum())
    scattered = [graph.tasks["message_bytes"][graph.select(op="reduce_scatter")].sum() for graph in (changed, sharded)]
    assert scattered[0] == scattered[1]
    units = changed.tasks["message_bytes"][changed.select(op="reduce_scatter")]
    assert sharded.meta.memory_base_bytes == changed.meta.memory_base_bytes - 2 * units.max()


def test_no_gradient_is_all_reduced_where_activations_are(tmp_path):
    graph = forecast(traced(tmp_path, SPLIT, 8), machine("dgx-h100")).graph

    assert graph.select(op="all_reduce", phase=Phase.BACKWARD).any()
    with pytest.raises(NotApplicableError, match="gradients are reduce-scattered here"):
        zero_3(graph)


def test_phases_and_layers_are_those_of_the_program(sharded):
    phases = set(sharded.tasks["phase"][sharded.select(kind=Kind.COMPUTE)].tolist())
    layers = set(sharded.tasks.strings("layer").values)

    assert {Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE} <= phases
    assert {"0.up", "2.down"} <= layers


def test_a_dry_run_is_kept_and_read_again(sharded, tmp_path):
    assert sharded.equals(load(save(sharded, tmp_path / "train.wt")))


def test_buckets_are_those_of_the_reducer_itself(tmp_path):
    """A first one of at most 1 MiB would hold all, so the cap of 0.1 MB closes each: as many bytes as parameters."""
    graph = traced(tmp_path, AVERAGED, 16)
    sent = graph.select(kind=Kind.COMM)

    assert {("all_reduce", 16)} == set(messages(graph))
    assert 3 * 4 * (2 * 64 + 2 * 64 * 256 + 256 + 64) == graph.tasks["message_bytes"][sent].sum()
    assert sent.sum() > 1


def test_tensor_parallel_ranks_talk_in_their_own_group(tmp_path):
    found = messages(traced(tmp_path, SPLIT, 32))

    assert 3 * 2 == found["all_reduce", 4]
    assert 3 == found["reduce_scatter", 8]
    assert {4, 8} == {size for _, size in found}


def test_every_stage_of_a_pipeline_is_traced_and_meets_its_neighbors(tmp_path):
    graph = traced(tmp_path, STAGES, 3)
    found = messages(graph)

    assert {"0": 1, "1": 1, "2": 1} == graph.meta.distributed["stands_for"]
    assert found["send", 3] == found["recv", 3] == 2 * 2 * 4
    assert 2 * 2 * 4 == graph.select(kind=Kind.VIRTUAL).sum()


def test_ranks_that_do_the_same_are_kept_once(tmp_path):
    graph = traced(tmp_path, SHARDED, 8, ranks_to_trace=(0, 3))

    assert {"0": 8} == graph.meta.distributed["stands_for"]
    assert 1 == graph.num_ranks


def test_attention_is_the_device_s_own_and_so_is_what_a_checkpoint_does_again(tmp_path):
    graph = traced(tmp_path, CHECKPOINTED, 2)
    flash = graph.select(op="aten::_scaled_dot_product_flash_attention", kind=Kind.COMPUTE)

    assert [Phase.FORWARD, Phase.BACKWARD] == graph.tasks["phase"][flash].tolist()
    assert 1 == graph.select(op="aten::_scaled_dot_product_flash_attention_backward").sum()


@pytest.mark.parametrize(("dtype", "mask", "kernel"), [
    ("torch.bfloat16", "None", "flash_attention"),
    ("torch.bfloat16", "torch.ones(4, 4, dtype=torch.bool, device=device).tril()", "cudnn_attention"),
    ("torch.float32", "None", "flash_attention_for_cpu"),
])  # fmt: skip
def test_grouped_queries_copy_no_heads_of_keys_and_values(tmp_path, dtype, mask, kernel):
    """Eight heads of queries and two of keys and values, of four positions and width 8 each."""
    graph = traced(tmp_path, GROUPED.replace("TYPE", dtype).replace("MASK", mask), 2)
    forward = graph.select(op=f"aten::_scaled_dot_product_{kernel}")
    backward = graph.select(op=f"aten::_scaled_dot_product_{kernel}_backward")
    shapes = [json.loads(graph.tasks.strings("input_shapes").decode(np.flatnonzero(forward)[0]))[i] for i in range(3)]

    assert [[1, 8, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]] == shapes
    assert [2 * 2 * 8 * 4 * 4 * 8] == graph.tasks["flops"][forward].tolist()
    assert [5 * 2 * 8 * 4 * 4 * 8] == graph.tasks["flops"][backward].tolist()
    copies = graph.select(op="aten::clone") | graph.select(op="aten::repeat_interleave.*")
    assert not (graph.tasks["bytes_written"][copies] >= 8 * 4 * 8 * (2 if "16" in dtype else 4)).any()


@pytest.fixture(scope="module")
def dropping(tmp_path_factory):
    return traced(tmp_path_factory.mktemp("dropping"), DROPPING, 2)


def test_a_device_drops_by_one_operator_with_a_mask_of_bytes(dropping):
    drops = dropping.select(op="aten::native_dropout")

    assert [4 * 64 * (4 + 1)] * 2 == dropping.tasks["bytes_written"][drops].tolist()
    assert not dropping.select(op="aten::bernoulli_.float").any()


def test_a_buffer_that_is_added_to_and_filled_is_read_and_written(dropping):
    added = dropping.select(op="aten::addmm.dtype_out")

    assert 4 * 64 * 256 + 2 * 4 * (64 + 256) == int(dropping.tasks["bytes_read"][added][0])
    assert 4 * 64 * 256 == int(dropping.tasks["bytes_written"][added][0])


def test_a_loader_that_shuffles_draws_rows_of_which_nobody_knows_which(tmp_path):
    graph = traced(tmp_path, LOADED, 8)

    copied = graph.tasks.strings("input_shapes").take(np.flatnonzero(graph.select(phase=Phase.FORWARD))).to_numpy()
    assert any("[16,64]" in text for text in copied)
    assert {("all_reduce", 8): 1} == messages(graph)


@pytest.mark.parametrize(
    "row",
    [
        "data[at : at + 64]", "data[int(at) : int(at) + 64]", "data[(k := at.item()) : k + 64]",
        "torch.from_numpy(array[at : at + 64])", "torch.arange(k := at.item(), k + 64) / 7",
        "data[(k := at.item()) : at.add_(64).item()]",
    ],
)  # fmt: skip
def test_a_window_is_as_long_wherever_it_begins(tmp_path, row):
    graph = traced(tmp_path, WINDOWS.replace("ROW", row), 8)

    assert any("[16,64]" in text for text in set(graph.tasks.strings("input_shapes").to_numpy().tolist()))


@pytest.mark.parametrize(
    "row",
    [
        "data[: at + 1]",
        "data[at : 64]",
        "data[at : begins[0]]",
        "data[at : 2 * at]",
        "data[at : torch.add(at, 64, alpha=2)]",
        "data[(k := at.item()) : at.mul_(2).item()]",
    ],
)
def test_a_window_that_ends_anywhere_has_no_size(tmp_path, row):
    with pytest.raises(InputError, match="has a size that hangs on values"):
        traced(tmp_path, WINDOWS.replace("ROW", row), 8)


def test_values_go_to_numpy_only_as_guesses(tmp_path):
    body = LOADED.replace(
        "    optimizer.step()", "    optimizer.step()\n    model(x.to(device)).detach().cpu().numpy().mean()"
    )

    with pytest.raises(InputError, match="takes values to numpy") as refusal:
        traced(tmp_path, body, 8)
    assert "--guess-values" in refusal.value.fix
    assert {("all_reduce", 8): 1} == messages(traced(tmp_path, body, 8, guesses=True))


def test_values_that_become_lists_are_guessed_in_their_shape(tmp_path):
    body = LOADED.replace(
        "    optimizer.step()",
        "    optimizer.step()\n    [[float(one) for one in row] for row in model(x.to(device)).tolist()]",
    )

    assert {("all_reduce", 8): 1} == messages(traced(tmp_path, body, 8, guesses=True))


def test_a_barrier_sends_nothing(tmp_path):
    graph = traced(tmp_path, AVERAGED.replace("device_ids", "find_unused_parameters=False, device_ids").replace(
        "train(", "barred = lambda loss: dist.barrier()\ntrain("
    ).replace("bucket_cap_mb=0.1))", "bucket_cap_mb=0.1), then=barred)"), 4)  # fmt: skip
    waits = graph.select(op="barrier")

    assert waits.any()
    assert {0} == set(graph.tasks["message_bytes"][waits].tolist())


def test_a_slice_up_to_a_number_that_the_script_has_drawn_is_as_long_as_in_a_real_run(tmp_path):
    script = WINDOWS.replace(
        "model.module(torch.ones(16, 64)).argmax(1)", "torch.tensor([3, 5]).repeat(8).sort().values"
    )

    script = script.replace("torch.stack([ROW", "torch.cat([data[: 8 * (at + 3)]").replace(
        "begins])", "begins]).view(-1, 64)"
    )

    graph = traced(tmp_path, script, 8)

    assert any("[14,64]" in text for text in set(graph.tasks.strings("input_shapes").to_numpy().tolist()))


def test_a_decision_by_a_value_names_its_line(tmp_path):
    with pytest.raises(InputError, match="decides by a value") as caught:
        traced(tmp_path, DECIDES, 2)

    line = (BEGIN + DECIDES).splitlines().index("    if loss.item() > 3:") + 1
    assert f"train.py:{line}" in caught.value.where
    assert "--guess-values" in caught.value.fix


def test_a_decision_may_be_guessed(tmp_path):
    graph = traced(tmp_path, DECIDES, 2, guesses=True)

    assert graph.select(kind=Kind.COMPUTE).any()


@pytest.mark.parametrize("options", [{"num_ranks": 0}, {"num_ranks": 2, "ranks_to_trace": (2,)}])
def test_ranks_that_no_job_has_are_refused(tmp_path, options):
    with pytest.raises(InputError):
        traced(tmp_path, SHARDED, **options)


@pytest.mark.parametrize("size", [1, 3, 8, 10, 17])
@pytest.mark.parametrize("num", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_a_sharded_weight_are_those_of_torch(size, num, dim):
    """Made one by one, as thousands of ranks have thousands of them."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

    from windtunnel.sources.dry.job import _Chunks

    tensor = torch.arange(float(size * 17)).view((size, 17) if dim == 0 else (17, size))
    parts = _Chunks(tensor, num, dim)

    assert len(parts) == num
    for own, torchs in zip(parts, _chunk_with_empty(tensor, num, dim), strict=True):
        assert own.shape == torchs.shape
        assert torch.equal(own, torchs)
