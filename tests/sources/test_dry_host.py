"""What a host does for its devices costs the same in a dry run of several ranks as in a capture on fake tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windtunnel.cost.host_times import HOST_TABLE, OTHER_NS  # noqa: E402
from windtunnel.graph import EdgeKind, Kind, Phase, ResourceKind  # noqa: E402
from windtunnel.hardware import device  # noqa: E402
from windtunnel.sources.dry.run import dry_run  # noqa: E402
from windtunnel.sources.torch.fake import fake_capture_script  # noqa: E402
from windtunnel.whatifs.forecast import forecast  # noqa: E402
from windtunnel.whatifs.placing import place_on  # noqa: E402

READING = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 8)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    inputs, labels = torch.randn(32, 64, device="cuda"), torch.randint(8, (32,)).to("cuda")
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(loss.item())
"""
LOADING = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(64, 8).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.randn(640, 64), torch.randint(8, (640,)))
for inputs, labels in DataLoader(data, 32, num_workers=WORKERS):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs.to("cuda")), labels.cuda()).backward()
    optimizer.step()
"""
AVERAGED = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to("cuda"))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(8):
    model(torch.randn(32, 64).to("cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SHARDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group()
mesh = init_device_mesh(device, (dist.get_world_size(),))
model = nn.Sequential(*[nn.Linear(256, 256, device=device) for _ in range(4)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(8):
    model(torch.ones(2, 256, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCRIPTS = {
    "read": READING,
    "workers": LOADING.replace("WORKERS", "2"),
    "no workers": LOADING.replace("WORKERS", "0"),
}


def written(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(text)
    return script


def names_of(graph, **criteria):
    return graph.tasks.strings("name").to_numpy()[graph.select(**criteria)].tolist()


@pytest.mark.parametrize("name", SCRIPTS)
def test_one_rank_takes_what_a_capture_on_fake_tensors_takes(tmp_path, name):
    """Autograd's own detaches differ, as a dry run follows memory at the same time."""
    script = written(tmp_path, SCRIPTS[name])
    dry = forecast(dry_run(script, num_ranks=1), device("h100"))
    fake = forecast(fake_capture_script(script, guesses=True, has_device=True), device("h100"))

    assert fake.device_ns == dry.device_ns
    assert fake.host_ns == pytest.approx(dry.host_ns, rel=0.02)
    assert fake.makespan_ns == pytest.approx(dry.makespan_ns, rel=0.02)


def test_a_rank_of_several_launches_copies_and_waits_on_its_thread(tmp_path):
    graph = dry_run(written(tmp_path, AVERAGED), num_ranks=4)
    placed = place_on(graph, device("h100"))
    on_thread = placed.resources["kind"][placed.tasks["resource"]] == ResourceKind.HOST_THREAD
    [copy] = placed.select(kind=Kind.COPY).nonzero()[0].tolist()
    [sent] = placed.select(kind=Kind.COMM).nonzero()[0].tolist()
    launches = placed.edges["kind"] == EdgeKind.LAUNCH
    launch = placed.edges["src"][launches & (placed.edges["dst"] == sent)]

    assert {HOST_TABLE} == set(placed.tasks.strings("cost_source").to_numpy()[on_thread].tolist())
    assert 32 * 64 * 4 == placed.tasks["bytes_written"][copy]
    assert "Memcpy HtoD (Pageable -> Device)" == placed.tasks.strings("name").decode(copy)
    assert "aten::randn" in names_of(graph, kind=Kind.HOST)  # the batch is drawn on the host
    assert "aten::randn" not in names_of(graph, kind=Kind.COMPUTE)
    assert 0.5 * OTHER_NS < placed.duration_ns[launch][0]
    assert "AccumulateGrad" in " ".join(names_of(graph, phase=Phase.BACKWARD, kind=Kind.HOST))


def test_a_given_launch_counts_alone(tmp_path):
    graph = dry_run(written(tmp_path, AVERAGED), num_ranks=2)
    placed = place_on(graph, device("h100"), 700)
    launches = placed.select(op="launch")

    assert {700} == set(placed.duration_ns[launches].tolist())
    assert not placed.duration_ns[~launches].any()


def test_many_tensors_are_updated_by_one_call_as_on_a_device(tmp_path):
    graph = dry_run(written(tmp_path, READING), num_ranks=1)
    updates = names_of(graph, kind=Kind.COMPUTE, phase=Phase.UPDATE)

    assert ["aten::_foreach_addcdiv_.ScalarList"] == [name for name in updates if "addcdiv" in name]


def test_what_sharding_makes_lies_on_the_device(tmp_path):
    """Its meshes stand on the host, for which torch makes gathered weights and gradients there."""
    script = written(tmp_path, SHARDED)
    on_device, on_host = (dry_run(script, num_ranks=4, device=kind) for kind in ("cuda", "cpu"))

    assert not on_device.select(kind=Kind.COPY).any()
    assert on_host.meta.memory["peak_bytes"] == on_device.meta.memory["peak_bytes"]
