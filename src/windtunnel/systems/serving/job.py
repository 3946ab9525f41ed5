"""A served model and its requests.

In: the name of a workload with parameters, or ``file.py:function``. Out: ``Served``: the model in evaluation mode,
inputs of any batch, answers to what requests bring. Not here: processes and times (``run``, ``live``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["Answer", "Served", "build_served_model"]


@dataclass(frozen=True)
class Answer:
    """The reply to one request: a plain value, or an error."""

    output: Any
    error: str = ""


@dataclass(frozen=True)
class Served:
    """A model with the functions that a server needs.

    Parameters
    ----------
    model : Module
    inputs : callable
        Batch -> what the model is called with, a tuple of tensors.
    preprocess : callable, optional
        List of request bodies -> what the model is called with. Without it requests have no body.
    postprocess : callable, optional
        What the model returns -> a list with a plain value for each of them; by default its rows.
    """

    model: torch.nn.Module
    inputs: Callable[[int], tuple[Any, ...]]
    preprocess: Callable[[list[Any]], tuple[Any, ...]] | None = None
    postprocess: Callable[[Any], list[Any]] | None = None

    def answers(self, bodies: Sequence[Any]) -> list[Answer]:
        """Return one reply per request, in order; an invalid request gets an error and does not affect the others.

        Parameters
        ----------
        bodies : sequence
            What the requests have brought.
        """
        try:
            return [Answer(tensor) for tensor in self._outputs(list(bodies))]
        except Exception as error:
            if len(bodies) > 1:
                return [self.answers([body])[0] for body in bodies]
            return [Answer(None, f"{type(error).__name__}: {error}")]

    def _outputs(self, bodies: list[Any]) -> list[Any]:
        if self.preprocess is None:
            raise InputError("what is served takes nothing from a request", fix="give Served a preprocess")
        returned = self.model(*self.preprocess(bodies))
        result = returned.tolist() if self.postprocess is None else self.postprocess(returned)
        if len(result) != len(bodies):
            raise InputError(f"{len(result)} answers came to {len(bodies)} requests", where="postprocess")
        return list(result)


def build_served_model(job: str, max_inputs: int) -> Served:
    """Build the served model of a job.

    Parameters
    ----------
    job : str
        ``resnet50:size=tiny``, or ``my_model.py:make``, whose function returns a ``Served``.
    max_inputs : int
        The largest batch that will be asked for.

    Raises
    ------
    InputError
        There is no such workload, its step is more than a model and a loss, or the file has no such function.
    """
    from windtunnel.sources.job_file import call_user_function, is_job_file
    from windtunnel.sources.targets import build_workload
    from windtunnel.whatifs import parse_step

    if is_job_file(job):
        created = call_user_function(job, Served)
    else:
        selected = parse_step(job, kind="workload")
        built = build_workload(selected.name, {**selected.parameters, "batch_size": max_inputs})
        if built.supervised is None:
            raise InputError(
                f"a step of {selected.name} is more than a model and a loss",
                where=job,
                fix="serve resnet50, vit or decoder-lm, or a file.py:function that returns a Served",
            )
        given, _ = built.supervised.draw()
        created = Served(built.model, lambda batch: tuple(item[:batch] for item in given))
    created.model.eval()
    return created
