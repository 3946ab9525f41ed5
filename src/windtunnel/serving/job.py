"""A model that is served, and what it is asked (room serving).

In: the name of a workload with parameters, or ``file.py:function``. Out: ``Served``: the model in evaluation mode and
inputs of any batch. Not here: processes and times (``run``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["Served", "served"]


@dataclass(frozen=True)
class Served:
    """What a server runs.

    Parameters
    ----------
    model : Module
    inputs : callable
        Batch -> what the model is called with, a tuple of tensors.
    """

    model: torch.nn.Module
    inputs: Callable[[int], tuple[Any, ...]]


def served(job: str, most_inputs: int) -> Served:
    """Build what is served.

    Parameters
    ----------
    job : str
        ``resnet50:size=tiny``, or ``my_model.py:make``, whose function returns a ``Served``.
    most_inputs : int
        The largest batch that will be asked for.

    Raises
    ------
    InputError
        There is no such workload, its step is more than a model and a loss, or the file has no such function.
    """
    from windtunnel.sources.targets import build_workload, made_by
    from windtunnel.whatifs import parse_step

    path, _, function = job.rpartition(":")
    if path.endswith(".py"):
        made = made_by(Path(path), function, Served)
    else:
        chosen = parse_step(job, kind="workload")
        built = build_workload(chosen.name, {**chosen.parameters, "batch_size": most_inputs})
        if built.supervised is None:
            raise InputError(
                f"a step of {chosen.name} is more than a model and a loss",
                where=job,
                fix="serve resnet50, vit or decoder-lm, or a file.py:function that returns a Served",
            )
        given, _ = built.supervised.draw()
        made = Served(built.model, lambda batch: tuple(one[:batch] for one in given))
    made.model.eval()
    return made
