"""Why a program is predicted to be slower than another: shares of the difference by feature group and leaf.

In: a predictor and two programs of one task with equally many stores. Out: ``Attribution``: what each group of features
adds to the logarithm of the ratio of their times (integrated gradients along the line between them, so the parts sum to
the whole), and which primitive of a schedule changes it. Not here: prices, schedules.

Source: Sundararajan et al., Axiomatic Attribution for Deep Networks, ICML 2017; the groups are Ansor's (OSDI 2020).
"""

# N leaves, F features, K steps

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.systems.tensor_programs.model.code_features import CODE_NAMES
from windtunnel.systems.tensor_programs.model.features import FEATURE_NAMES
from windtunnel.systems.tensor_programs.model.samples import Buckets
from windtunnel.systems.tensor_programs.program_set import ProgramSet

if TYPE_CHECKING:
    import torch

    from windtunnel.systems.tensor_programs.model.predictor import Predictor
else:
    torch = require("torch", extra="learn")

__all__ = ["GROUPS", "Attribution", "fastest_alike", "why_slower"]

GROUPS: dict[str, tuple[tuple[str, ...], str]] = {
    "vectors": (("vec_",), "vectorize"),
    "unrolling": (("unroll_", "auto_unroll"), "unroll"),
    "threads": (("parallel_",), "parallel"),
    "memory accesses": (("B0.", "B1.", "B2.", "B3.", "B4."), "split and reorder"),
    "intensity by loop": (("arith_intensity",), "split and reorder"),
    "temporaries": (("alloc_",), "cache_write or compute_at"),
    "loops": (("outer_prod", "num_loops"), "split and fuse"),
    "arithmetic": (("float_", "int_", "bool_", "select_"), "inline"),
    "registers and units": (("code.",), "split, reorder and vectorize"),
    "other": (("is_gpu", "blockIdx", "threadIdx", "vthread"), ""),
}
"""Feature groups: how their names begin, and the primitive of a schedule that changes them most."""
NUM_STEPS = 64


@dataclass(frozen=True)
class Attribution:
    """What a difference between two predicted times is made of.

    Parameters
    ----------
    seconds, reference_s : float
        Predicted for the program and for the one that it is compared with.
    groups : dict of str to float
        Parts of ``log(seconds / reference_s)``, largest first; they sum to it but for the error of integration.
    leaves : tuple of float
        The same by store statement.
    """

    seconds: float
    reference_s: float
    groups: dict[str, float]
    leaves: tuple[float, ...]

    @property
    def advice(self) -> str:
        """The primitive whose features cost most beside the reference; empty where none costs anything."""
        name = max(self.groups, key=self.groups.__getitem__)
        return GROUPS[name][1] if self.groups[name] > 0 else ""


def why_slower(predictor: Predictor, programs: ProgramSet, program: int, reference: int, device: str) -> Attribution:
    """Compare two programs of one task on a device.

    Raises
    ------
    InputError
        They are of different tasks, or have different numbers of stores.
    """
    counts = programs.num_leaves[[program, reference]]
    if programs.task[program] != programs.task[reference] or counts[0] != counts[1]:
        raise InputError(
            f"programs {program} and {reference} cannot be compared feature by feature",
            where=f"tasks {programs.task[program]} and {programs.task[reference]}, {counts[0]} and {counts[1]} stores",
            fix="choose two programs of one task with equally many stores",
        )
    column = programs.column(device)
    samples = np.array([[program, column], [reference, column]])
    seconds, reference_s = predictor.predict(programs, samples).tolist()
    buckets = Buckets(programs, samples, predictor.normalizer, has_labels=False)
    batch = buckets.batch(np.arange(2))
    parts_NF = _integrated(predictor.network, batch.leaves, batch.context)
    whole, found = float(np.log(seconds / reference_s)), float(parts_NF.sum())
    parts_NF = parts_NF * (whole / found) if abs(found) > 1e-12 else parts_NF  # from labels to logarithms of seconds
    by_feature = parts_NF.sum(axis=0)
    groups = {name: float(by_feature[_columns(starts, len(by_feature))].sum()) for name, (starts, _) in GROUPS.items()}
    ordered = dict(sorted(groups.items(), key=lambda one: -one[1]))
    return Attribution(seconds, reference_s, ordered, tuple(parts_NF.sum(axis=1).tolist()))


def fastest_alike(predictor: Predictor, programs: ProgramSet, program: int, device: str) -> int:
    """The program of the same task and number of stores that is predicted to be the fastest."""
    is_alike = (programs.task == programs.task[program]) & (programs.num_leaves == programs.num_leaves[program])
    rows = np.flatnonzero(is_alike)
    seconds = predictor.predict(programs, np.column_stack([rows, np.full(len(rows), programs.column(device))]))
    return int(rows[seconds.argmin()])


def _integrated(network: Any, leaves_2NF: Any, context_2C: Any) -> Any:
    """Integrated gradients [N, F] of the network's number, from the second program to the first."""
    network.eval()
    first, second = leaves_2NF[0], leaves_2NF[1]
    steps_K = (torch.arange(NUM_STEPS) + 0.5) / NUM_STEPS
    path_KNF = (second + steps_K[:, None, None] * (first - second)).requires_grad_()
    context_KC = None if context_2C is None else context_2C[:1].expand(NUM_STEPS, -1)
    network(path_KNF, context_KC)[0].sum().backward()
    gradient: Any = path_KNF.grad
    return ((first - second) * gradient.mean(dim=0)).double().numpy()


def _columns(starts: tuple[str, ...], num_features: int) -> list[int]:
    names = (*FEATURE_NAMES, *CODE_NAMES)[:num_features]
    return [column for column, name in enumerate(names) if name.startswith(starts)]
