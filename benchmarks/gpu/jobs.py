"""Workloads on a device, for the stages that run whole training steps (``benchmarks.gpu``).

In: a name. Out: the workload, built where its device makes every new tensor. Needs torch and numpy alone.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

import windtunnel.workloads
from benchmarks.gpu.stages import Job
from windtunnel import registry
from windtunnel.workloads import Workload

# small ones wait for the host, those of the papers' sizes (-paper) for the device. Those that need no further package
# come first; a3c computes on the host by design
WORKLOADS = (
    "decoder-lm",
    "translation-transformer",
    "deep-speech-2",
    "dlrm",
    "seq2seq",
    "diffusion-unet",
    "wgan-gp",
    "moe-lm",
    "ncf",
    "bert",
    "vit",
    "convnext",
    "graph-network",
    "resnet50",
    "inception-v3",
    "translation-transformer-paper",
    "diffusion-unet-paper",
    "seq2seq-paper",
    "dlrm-paper",
    "bert-paper",
    "vit-paper",
    "convnext-paper",
    "resnet50-paper",
    "inception-v3-paper",
)
SMALL = ("mlp", "ncf")
PAPER = "-paper"
BATCH_SIZES = {"bert-paper": 16}  # where a paper's own is that of several devices
__all__ = ["SMALL", "WORKLOADS", "alone_on_host", "build", "names", "parameters", "workload_of"]
assert windtunnel.workloads  # registers them, whatever else is missing


def names(job: Job) -> tuple[str, ...]:
    """Those that are measured."""
    return SMALL if job.is_small else WORKLOADS


def workload_of(name: str) -> str:
    """Whose name it is registered under."""
    return name.removesuffix(PAPER)


def parameters(name: str, job: Job) -> dict[str, Any]:
    """Of the workload; ``tiny`` is for a test."""
    known = inspect.signature(registry.get("workload", workload_of(name)).function).parameters
    if "size" in known:
        size = "tiny" if job.is_small else "paper" if name.endswith(PAPER) else "small"
        return {"size": size, **({"batch_size": BATCH_SIZES[name]} if name in BATCH_SIZES else {})}
    return {"batch_size": 16, "width": 64} if name == "mlp" and job.is_small else {}


def alone_on_host(job: Job) -> None:
    """A host that stands in for a device computes on one thread."""
    if job.device == "cpu":
        torch.set_num_threads(1)


def build(name: str, job: Job) -> Workload:
    """The workload on the job's device; its steps run outside of any mode of torch, as those of users do."""
    alone_on_host(job)
    with torch.device(job.device):
        built: Workload = registry.get("workload", workload_of(name)).function(**parameters(name, job))
    return built
