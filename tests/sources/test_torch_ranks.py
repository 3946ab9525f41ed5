"""Scripts that run in several processes: their messages, what waits for them, and jobs that go wrong."""

import os
import signal
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import windtunnel as wt
from tests.averaging_job import averaging_job
from windtunnel.errors import InputError
from windtunnel.graph import Kind, Phase
from windtunnel.measure.workers import WorkerError
from windtunnel.simulate import replay
from windtunnel.sources.torch.join_ranks import _as_long_as_the_step, keep_common_samples
from windtunnel.sources.torch.launch import Ranks
from windtunnel.sources.torch.ranks import capture_ranks
from windtunnel.sources.torch.script import IncompleteCaptureError

torch = pytest.importorskip("torch", reason="needs the extra torch")

SETUP = """
import torch
import torch.distributed as dist
from torch import nn
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
x, y = torch.randn(16, 32), torch.randint(0, 4, (16,))

def train(model, num_steps=400):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
DDP = "train(nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001))"
FSDP = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (size,))
fully_shard(model[0], mesh=mesh)
train(fully_shard(model, mesh=mesh))
"""
TENSOR = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
train(parallelize_module(model, init_device_mesh("cpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}))
"""
PIPELINE = """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
stage = nn.Linear(32, 32) if rank == 0 else nn.Linear(32, 4)
schedule = ScheduleGPipe(PipelineStage(stage, rank, size, torch.device("cpu")), 2, nn.functional.cross_entropy)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
for _ in range(400):
    optimizer.zero_grad()
    schedule.step(x) if rank == 0 else schedule.step(target=y)
    optimizer.step()
"""
BY_HAND = """
gradients = [parameter for parameter in model.parameters()]
optimizer = torch.optim.SGD(gradients, lr=0.1)
for _ in range(400):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    for parameter in gradients:
        dist.all_reduce(parameter.grad)
    optimizer.step()
"""


def script(folder: Path, body: str) -> Path:
    path = folder / "job.py"
    path.write_text(textwrap.dedent(SETUP) + textwrap.dedent(body))
    return path


def captured(folder: Path, body: str, **options: object) -> wt.Graph:
    return capture_ranks(script(folder, body), ranks=Ranks(2), iterations=4, warmup=2, **options)


def messages(graph: wt.Graph) -> dict[int, list[tuple[str, int]]]:
    """What each rank sends: the operator and its bytes, in order."""
    rows = np.flatnonzero(graph.tasks["kind"] == Kind.COMM)
    ops, size = graph.tasks.strings("op").to_numpy(), graph.tasks["message_bytes"]
    found: dict[int, list[tuple[str, int]]] = {0: [], 1: []}
    for row in rows:
        found[int(graph.tasks["rank"][row])].append((ops[row], int(size[row])))
    return found


def test_buckets_of_a_data_parallel_job_are_messages(tmp_path):
    graph = captured(tmp_path, DDP)
    sent = messages(graph)
    assert sent[0] == sent[1]
    assert {op for op, _ in sent[0]} == {"all_reduce"}
    num_parameters = 32 * 64 + 64 + 64 * 4 + 4
    assert sum(size for _, size in sent[0]) == 4 * num_parameters
    assert len(sent[0]) > 1  # more than one bucket
    assert [group.ranks for group in graph.meta.groups] == [(0, 1)]


def test_ranks_wait_for_each_other(tmp_path):
    graph = captured(tmp_path, DDP)
    whole = wt.replay(graph).makespan_ns
    slow = graph.scale(graph.select(rank=1), 1000.0)  # however busy the host was with rank 0
    own = wt.replay(slow)
    of_rank_0 = graph.tasks["rank"][: graph.num_tasks] == 0
    assert own.finish_ns[of_rank_0].max() > whole  # rank 0 is as it was, and late


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(FSDP, {"all_gather", "reduce_scatter"}, id="fully sharded"),
        pytest.param(TENSOR, {"all_reduce"}, id="tensor parallel", marks=pytest.mark.slow),
        pytest.param(BY_HAND, {"all_reduce"}, id="by hand", marks=pytest.mark.slow),
    ],
)
def test_collectives_of_every_kind_of_job(tmp_path, body, expected):
    sent = messages(captured(tmp_path, body))
    assert sent[0] == sent[1]
    assert {op for op, _ in sent[0]} == expected


def test_stages_of_a_pipeline_send_to_each_other(tmp_path):
    graph = captured(tmp_path, PIPELINE)
    sent = messages(graph)
    activation = 16 * 32 * 4 // 2  # of one of two microbatches
    assert sorted(sent[0]) == [("recv", activation)] * 2 + [("send", activation)] * 2
    assert sorted(sent[1]) == sorted(sent[0])
    is_message = graph.tasks["kind"] == Kind.COMM
    assert (graph.tasks["peer"][is_message] == 1 - graph.tasks["rank"][is_message]).all()
    # the graph keeps the program of the first stage, and the last one's own layer is no call of that
    linear = graph.select(op="aten::linear", phase=Phase.FORWARD) & (graph.tasks["call"] >= 0)
    assert {0} == set(graph.tasks["rank"][linear].tolist())
    assert graph.tasks["call"].max() < len(graph.meta.program["calls"])


def test_one_rank_raises_and_is_named(tmp_path):
    body = "import sys\nif rank == 1:\n    raise ValueError('no data here')\n" + DDP
    with pytest.raises(IncompleteCaptureError, match=r"rank 1 of 2.*no data here"):
        captured(tmp_path, body)


def test_one_rank_is_killed_and_nothing_is_left(tmp_path):
    path = script(tmp_path, f"open(r'{tmp_path}/pid' + str(rank), 'w').write(str(__import__('os').getpid()))\n" + DDP)

    def kill() -> None:
        pid = tmp_path / "pid1"
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.05)
        os.kill(int(pid.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises((WorkerError, IncompleteCaptureError)) as error:
        capture_ranks(path, ranks=Ranks(2), iterations=400, warmup=2)
    assert "nothing was heard" not in str(error.value)
    killer.join()
    assert not Path(f"/proc/{(tmp_path / 'pid0').read_text()}").exists()


def test_the_step_of_a_disturbed_job_is_that_of_all_ranks_with_their_messages():
    """One rank's own work alone took half of it, and was shown as the iteration of the job."""
    job = averaging_job()
    job = job.with_columns(samples_ns=np.repeat(job.duration_ns[:, None], 4, axis=1))
    facts = {"median": 3_000, "low": 2_000, "high": 4_000, "samples": [12_000] * 4}
    disturbed = job.note({"iteration_ns": facts, "disturbance": {"lost_ratio": 0.3}})
    joined = _as_long_as_the_step(disturbed, [disturbed, disturbed])

    assert replay(joined).makespan_ns == joined.meta.iteration_ns["median"] > 11_000
    assert joined.meta.iteration_ns["low"] < joined.meta.iteration_ns["median"] < joined.meta.iteration_ns["high"]


def test_no_processes_are_refused(tmp_path):
    with pytest.raises(InputError, match="0 processes"):
        capture_ranks(script(tmp_path, DDP), ranks=Ranks(0))


def test_ranks_that_measured_unequally_often_are_joined(tmp_path):
    """Other programs may disturb one rank only, which then measures again."""
    graph = captured(tmp_path, PIPELINE)
    samples = graph.tasks["samples_ns"]
    twice = graph.with_columns(samples_ns=np.concatenate([samples, samples], axis=1))

    first, second = keep_common_samples([graph, twice])

    assert samples.shape == first.tasks["samples_ns"].shape == second.tasks["samples_ns"].shape
