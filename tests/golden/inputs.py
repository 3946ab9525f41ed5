"""The inputs of the golden commands, written to a folder: all their numbers are fixed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.graphs import step_graph
from tests.systems.chips.test_skipping import record, step
from tests.systems.pipelines.block_models import block_graph
from windtunnel.graph import save
from windtunnel.sources.zeros.records import ZeroRecords

JOBS = "job_id,arrival_s,gpus,model,iterations,s_per_iteration\n" + "".join(
    f"j{row},{row * 60},{(1, 2, 4, 6)[row % 4]},vgg,{500 + 90 * row},10\n" for row in range(40)
)
TIERS = [
    {"name": "machine", "count": 4, "link": {"gbytes_s": 50}},
    {"name": "rack", "count": 2, "link": {"gbytes_s": 1.25, "latency_us": 5, "kind": "ring"}},
    {"name": "network", "count": 2, "link": {"gbytes_s": 0.125, "latency_us": 50}},
]
SPEEDS = "layer,fwd_ns,input_grad_ns,weight_grad_ns,wg_comm,wg_comm_bytes\n" + (
    "conv,1000000,1000000,1000000,ALLREDUCE,2000000\n" * 4
)
SERVED = "num_threads,batch_size,latency_ms\n1,1,3\n1,2,5\n1,4,9\n2,1,2\n2,2,4\n2,4,8\n2,8,30\n"
PROBLEM = {
    "maxSizePerFPGA": 100,
    "maxFPGAs": 3,
    "maxCPUs": 1,
    "nodes": [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 40.0, "fpgaLatency": i + 1.0, "size": 1, "isBackwardNode": 0}
        for i in range(6)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in range(5)],
}
CIRCULANT = {
    "layers": [
        {"name": "fc1", "outputs": 256, "inputs": 784, "rows": 1, "losses": {"8": 0.1, "16": 0.3, "64": 0.9}},
        {"name": "conv", "outputs": 64, "inputs": 128, "rows": 49, "losses": {"4": 0.2, "16": 0.25}},
        {"name": "out", "outputs": 10, "inputs": 256, "rows": 1, "losses": {"2": 0.2, "8": 0.5}},
    ]
}
FLEET = """
step_time = "10 ms"
[server]
up = "1 GB/s"
down = "1 GB/s"
[[workers]]
speed = 1.0
up = "1 MB/s"
down = "1 MB/s"
latency = "1 ms"
[[workers]]
speed = 0.5
up = "1 MB/s"
down = "1 MB/s"
latency = "1 ms"
"""
PERCEPTRON = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    inputs, labels = torch.randn(32, 64), torch.randint(10, (32,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
"""
DATA_PARALLEL = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device, torch.bfloat16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device=device, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
"""


def write_inputs(folder: Path) -> None:
    """Write all of them."""
    save(step_graph(), folder / "step.wt")
    save(step_graph("decoder", 2), folder / "slower.wt")
    save(block_graph(4), folder / "blocks.wt")
    save(step(zeros={"conv": record().summary()}), folder / "zeros.wt")
    early = record(iteration=1, density=0.9)
    ZeroRecords("train.py", (early, record(), record("first", is_first=True)), {}).save(folder / "train.zeros.npz")
    (folder / "layers").mkdir()
    for name, content in {
        "jobs.csv": JOBS,
        "cluster.json": json.dumps({"tiers": TIERS}),
        "layers/vgg_b32.csv": SPEEDS,
        "served.csv": SERVED,
        "problem.json": json.dumps(PROBLEM),
        "fleet.toml": FLEET,
        "circulant.json": json.dumps(CIRCULANT),
        "perceptron.py": PERCEPTRON,
        "data_parallel.py": DATA_PARALLEL,
    }.items():
        (folder / name).write_text(content, encoding="utf-8")
