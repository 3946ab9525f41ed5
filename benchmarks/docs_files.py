"""Files that pages of the docs call the reader's own, for the bar ``docs_run``.

In: a page's text and a folder. Out: the folder with whatever the page names and no command of it makes: written down
here, taken from a page that prints it, or made by the commands that pages name for it. Not here: running the page.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.systems.kernels.texts import SCALE

from benchmarks.bar import ROOT

__all__ = ["furnish"]

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CAPTURED = ("train.wt", "before.wt", "after.wt")

TRAINING = """import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=400)
epochs = parser.parse_args().epochs
layers = torch.nn.Linear(64, 256), torch.nn.LayerNorm(256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(65536, 64), torch.randint(0, 10, (65536,)))
for _ in range(epochs):
    for x, y in torch.utils.data.DataLoader(data, batch_size=32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
TRAINING_OF_RANKS = """import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4000):
    optimizer.zero_grad()
    model(torch.randn(2048, 512)).square().mean().backward()
    optimizer.step()
distributed.destroy_process_group()
"""
PROFILED = """import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
with torch.profiler.profile() as profiler:
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace("trace.json.gz")
"""
BLUR = """import numba


@numba.njit
def blur(x, y, n):
    for i in range(n):
        left, right = max(i - 1, 0), min(i + 1, n - 1)
        y[i] = (x[left] + x[i] + x[right]) / 3
"""
PROFILE = "".join(
    f"node{at} -- Linear -- forward_compute_time={at}.0, backward_compute_time={2 * at}.0, activation_size=16.0, "
    "parameter_size=1000.0\n"
    for at in range(1, 9)
) + "".join(f"\tnode{at} -- node{at + 1}\n" for at in range(1, 8))
JOBS = "job_id,arrival_s,gpus,model,iterations,s_per_iteration\n" + "".join(
    f"{row},{row * 600},{(1, 2, 4, 16)[row % 4]},{('vgg', 'resnet')[row % 2]},{500 + 90 * row},10\n"
    for row in range(40)
)
LAYERS = "layer,fwd_ns,input_grad_ns,weight_grad_ns,wg_comm,wg_comm_bytes\n" + (
    "conv,100000000,100000000,100000000,ALLREDUCE,2000000\n" * 4
)
SPEEDS = "t_s,speed\n0,0.5\n10,0.25\n20,0.5\n"


def _problem() -> str:
    """A chain of six operators for three accelerators and a CPU."""
    nodes = [
        {"id": at, "supportedOnFpga": 1, "cpuLatency": 40.0, "fpgaLatency": at + 1.0, "size": 1, "isBackwardNode": 0}
        for at in range(6)
    ]
    edges = [{"sourceId": at, "destId": at + 1, "cost": 0.5} for at in range(5)]
    return json.dumps({"maxSizePerFPGA": 100, "maxFPGAs": 3, "maxCPUs": 1, "nodes": nodes, "edges": edges})


def _layers() -> str:
    """Two layers with what circulant blocks cost them."""
    found = [
        {"name": "fc1", "outputs": 512, "inputs": 784, "losses": {"8": 0.1, "16": 0.3}},
        {"name": "conv2", "outputs": 64, "inputs": 288, "rows": 49, "losses": {"8": 0.2}},
    ]
    return json.dumps({"layers": found})


def _printed(page: str, kind: str, with_: str) -> Callable[[], str]:
    """The block of a page that holds a text: what is printed there has to work."""

    def found() -> str:
        blocks = FENCE.findall((ROOT / "docs" / "howto" / page).read_text(encoding="utf-8"))
        return next(text for name, text in blocks if name == kind and with_ in text)

    return found


WRITTEN: dict[str, Callable[[], str]] = {
    "train.py": lambda: TRAINING,
    "train_ddp.py": lambda: TRAINING_OF_RANKS,
    "problem.json": _problem,
    "inference.json": _problem,
    "profile.txt": lambda: PROFILE,
    "layers.json": _layers,
    "jobs.csv": lambda: JOBS,
    "layers/vgg_b32.csv": lambda: LAYERS,
    "layers/resnet_b32.csv": lambda: LAYERS,
    "cluster.json": _printed("cluster.md", "json", '"tiers"'),
    "cluster.toml": _printed("train.md", "toml", "[[workers]]"),
    "steady.toml": lambda: re.sub(r"speed = .*csv.*", "speed = 0.5", WRITTEN["cluster.toml"]()),
    "speed.csv": lambda: SPEEDS,
    "kernel.ll": lambda: SCALE,
    "tests.py": _printed("kernel.md", "text", "def cases"),
    "loops.py": lambda: BLUR,
    "profiled.py": lambda: PROFILED,
}
"""By the path below the folder; of a folder, its files."""
MADE: dict[str, tuple[str, ...]] = {
    "slow.strategy.json": (
        "windtunnel capture --nproc 2 --bandwidth 60MB/s -o slow.wt train_ddp.py", "windtunnel whatif slow.wt --search",
    ),
    "softmax.evolve": ("windtunnel kernel plan softmax --allow promises --time-limit 10s",),
    "layernorm.evolve": ("windtunnel kernel plan layernorm --allow promises --time-limit 10s",),
    "trace.json.gz": ("python profiled.py",),
    "today": ("windtunnel suite run mlp --size tiny --out today",),
    "yesterday": ("windtunnel suite run mlp --size tiny --out yesterday",),
}  # fmt: skip
NEEDED_FOR = {"profiled.py": "trace.json.gz", "speed.csv": "cluster.toml", "train_ddp.py": "slow.strategy.json"}


def furnish(folder: Path, text: str, commands: str, environment: Mapping[str, str]) -> None:
    """Put into the folder what the page's commands name and do not make.

    Parameters
    ----------
    folder : Path
    text, commands : str
        Of the page, and those of them that are run.
    environment : mapping of str to str
        For what has to be made.

    Raises
    ------
    CalledProcessError
        A command that makes one fails.
    """
    for name, content in WRITTEN.items():
        stem = name.split("/")[0].split(".")[0]
        if re.search(rf"\b{stem}\b", text) or NEEDED_FOR.get(name, name) in text:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content())
    for name, steps in MADE.items():
        if re.search(rf"(?<![\w-]){re.escape(name)}\b", commands) and not _is_made(name, commands):
            for step in steps:
                subprocess.run(
                    ["bash", "-c", step], cwd=folder, env=environment, capture_output=True, text=True, check=True
                )
    captures = [name for name in CAPTURED if name in text and f"capture {Path(name).stem}" not in text]
    if captures:
        _captured(folder, captures, environment)


def _is_made(name: str, commands: str) -> bool:
    """Whether a command of the page itself makes it."""
    stem = name.split(".")[0]
    return f"whatif {stem}.wt --search" in commands or f"--out {name}" in commands


def _captured(folder: Path, names: list[str], environment: Mapping[str, str]) -> None:
    """Graphs that a page takes as given, of the script that stands for the reader's."""
    (folder / "train.py").write_text(TRAINING)
    first = folder / names[0]
    command = ["windtunnel", "capture", "--iterations", "10", "--out", str(first), "train.py"]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    for name in names[1:]:
        shutil.copytree(first, folder / name)
