"""Scripts as they are written for GPUs are traced without any: what they ask of torch is answered."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.sources.test_dry_run import AVERAGED, BEGIN, LOADED, messages, traced  # noqa: E402
from windtunnel import Kind  # noqa: E402
from windtunnel.errors import InputError  # noqa: E402
from windtunnel.graph import EdgeKind  # noqa: E402

# torch's own, of what the scripts use
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
    pytest.mark.filterwarnings("ignore:Using .torch.compile"),
]
AVERAGING = """
from torch.nn.parallel import DistributedDataParallel


def averaged(model):
    return DistributedDataParallel(model, device_ids=[device.index])
"""
COMPILED = "train(torch.compile(averaged(nn.Sequential(*[Block() for _ in range(3)]).to(device))))"
FORMATTED = 'train(averaged(Block().to(device)), then=lambda loss: print(f"{loss:.4f}"))'
BY_NUMBER = "train(averaged(Block().to(device.index or 0)))"
DRAWN = """
model = Block().to(device)
nn.init.trunc_normal_(model.up.weight, std=0.02)
train(averaged(model))
"""
SCALED = """
model, scaler = averaged(Block().to(device)), torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = model(torch.randn(4, 64, device=device)).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
ACCELERATED = """
accelerator = torch.accelerator.current_accelerator()
assert torch.accelerator.is_available() and accelerator.type == "cuda"
torch.accelerator.set_device_index(device.index or 0)
model = averaged(Block().to(accelerator))
train(model, then=lambda loss: (torch.accelerator.synchronize(), torch.accelerator.max_memory_allocated()))
"""
SPAWNED = """
import torch.multiprocessing


def work(local, steps):
    torch.cuda.set_device(local)
    train(averaged(Block().to(local)), steps)


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(5,), nprocs=torch.accelerator.device_count())
"""
SYNCHRONIZED = """
model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).to(device)
model, optimizer = averaged(model), torch.optim.SGD(model.parameters())
for _ in range(5):
    model(torch.randn(4, 3, 8, 8, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FULLY_SHARDED = """
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(16)]).to(device)
if VERSION == 1:
    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=device)
else:
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range(5):
    model(torch.randn(4, 256, device=device)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "body", [COMPILED, FORMATTED, BY_NUMBER, DRAWN, SCALED, ACCELERATED, SPAWNED],
    ids=["compiled", "formatted", "by number", "drawn", "scaled", "accelerator", "spawned"],
)  # fmt: skip
def test_a_script_for_gpus_is_traced(tmp_path, body):
    graph = traced(tmp_path, AVERAGING + body, 8)

    assert {("all_reduce", 8): 1} == messages(graph)
    assert {"0": 8} == graph.meta.distributed["stands_for"]


def test_compiled_parts_are_traced_as_they_are_written(tmp_path):
    compiled, plain = (
        traced(tmp_path, AVERAGING + text, 8) for text in (COMPILED, COMPILED.replace("torch.compile", ""))
    )

    computed = [
        graph.tasks.strings("op").take(graph.select(kind=Kind.COMPUTE).nonzero()[0]) for graph in (compiled, plain)
    ]
    assert computed[0].to_numpy().tolist() == computed[1].to_numpy().tolist()


def test_statistics_of_all_ranks_are_gathered(tmp_path):
    found = messages(traced(tmp_path, AVERAGING + SYNCHRONIZED, 8))

    assert 1 == found["all_gather", 8]
    assert 2 <= found["all_reduce", 8]


@pytest.mark.parametrize("version", [1, 2])
def test_layers_that_are_gathered_are_held_until_they_are_freed(tmp_path, version):
    """A rank holds its share of parameters, gradients and state, and a few whole layers of sixteen, not all of them."""
    graph = traced(tmp_path, FULLY_SHARDED.replace("VERSION", str(version)), 8)
    whole = 4 * 16 * 256 * 256

    assert {("all_gather", 8): 32, ("reduce_scatter", 8): 16}.items() <= messages(graph).items()
    assert 4 / 8 * whole < graph.meta.memory["peak_bytes"] < whole


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_a_model_that_is_sharded_as_one_is_held_whole(tmp_path, num_ranks):
    """Its one flat parameter, gathered once for both passes, and at the end of the backward pass the gradients of all
    layers beside the flat gradient that they are copied into; of a rank's own its share and Adam's two states of it.
    """
    body = FULLY_SHARDED.replace("VERSION", "1").replace("auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), ", "")
    graph = traced(tmp_path, body, num_ranks)
    whole = 4 * 16 * 256 * 256
    numbers = 3 * 4  # Adam's step, the loss and its gradient

    assert messages(graph) == {("all_gather", num_ranks): 1, ("reduce_scatter", num_ranks): 1}
    assert 3 * whole // num_ranks + whole + 2 * whole + numbers == graph.meta.memory["peak_bytes"]


STREAMS = """
model, side = Block().to(device), SIDE
main = torch.accelerator.current_stream()


def beside(loss):
    BEGIN
    loss.detach().exp()
    END
    loss.detach().sin()
    main.wait_stream(side)
    loss.detach().cos()


train(model, then=beside)
"""


@pytest.mark.parametrize(("side", "begin", "end"), [
    ("torch.Stream(device)", "side.__enter__()", "side.__exit__(None, None, None)"),
    ("torch.Stream('cuda')", "torch.accelerator.set_stream(side)", "torch.accelerator.set_stream(main)"),
    ("torch.cuda.Stream()", "torch.cuda.set_stream(side)", "torch.cuda.set_stream(main)"),
    ("torch.cuda.Stream()", "block = torch.cuda.StreamContext(side); block.__enter__()",
     "block.__exit__(None, None, None)"),
])  # fmt: skip
def test_calls_are_queued_on_the_stream_that_a_script_sets(tmp_path, side, begin, end):
    graph = traced(tmp_path, STREAMS.replace("SIDE", side).replace("BEGIN", begin).replace("END", end), 1)
    on_side, beside, joined = (graph.select(op=f"aten::{name}").nonzero()[0][-1] for name in ("exp", "sin", "cos"))
    resource, waits = graph.tasks["resource"], graph.edges["kind"] == EdgeKind.SYNC
    waited = set(zip(graph.edges["src"][waits].tolist(), graph.edges["dst"][waits].tolist(), strict=True))

    assert resource[beside] == resource[joined] != resource[on_side]
    assert (on_side, joined) in waited
    assert (on_side, beside) not in waited


def test_nothing_is_saved(tmp_path):
    target = tmp_path / "model.pt"
    target.write_text("mine")
    body = AVERAGED.replace(
        "bucket_cap_mb=0.1))", f"), then=lambda loss: torch.save(model.state_dict(), {str(target)!r}))"
    )
    traced(tmp_path, body, 8)

    assert "mine" == target.read_text()


def test_too_few_batches_for_so_many_ranks_are_said(tmp_path):
    with pytest.raises(InputError, match="too early") as refusal:
        traced(tmp_path, LOADED.replace("4096", "256"), 8)

    assert "more data or epochs, or the job fewer ranks" in refusal.value.fix


def test_a_loader_of_many_rows_is_shuffled_at_once(tmp_path):
    """Its order is a list of numbers that are made together, not by an operator for each of them."""
    script = tmp_path / "train.py"
    script.write_text(BEGIN + "assert len({type(one) for one in torch.randperm(2_000_000).tolist()}) == 1\n" + AVERAGED)
    from windtunnel.sources.dry.run import dry_run

    assert dry_run(script, num_ranks=8).num_tasks


def test_sparse_gradients_are_refused_in_words(tmp_path):
    """ "NotImplementedError: Cannot access storage of SparseTensorImpl" was once the answer."""
    from windtunnel.sources.dry.run import dry_run

    script = tmp_path / "train.py"
    script.write_text("""
import torch
table = torch.nn.Embedding(1000, 16, sparse=True)
optimizer = torch.optim.SparseAdam(table.parameters())
for _ in range(8):
    optimizer.zero_grad()
    table(torch.randint(0, 1000, (8,))).sum().backward()
    optimizer.step()
""")
    with pytest.raises(InputError, match="computes with sparse_coo tensors") as refusal:
        dry_run(script, num_ranks=1)

    assert str(refusal.value.where).endswith(("train.py:6", "train.py:7", "train.py:8"))
