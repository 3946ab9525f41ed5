"""The job whose stalls are measured.

In: a registered workload's name with parameters, or a file and a function of one's own. Out: a ``Workload`` that says
what a batch and the loss are.
"""

from __future__ import annotations

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.sources.job_file import call_user_function, is_job_file
from windtunnel.whatifs.request import parse_step
from windtunnel.workloads.workload import Workload

__all__ = ["job_of"]


def job_of(text: str) -> Workload:
    """Return the workload of a job.

    Raises
    ------
    InputError
        There is none, or its step is more than one model and one loss.
    """
    job: Workload
    if is_job_file(text):
        job = call_user_function(text, Workload)
    else:
        step = parse_step(text, kind="workload")
        job = registry.get("workload", step.name).function(**step.parameters)
    if job.supervised is None or len(job.models) != 1 or len(job.optimizers) != 1:
        raise InputError(
            f"a step of {job.name} is more than one model, one loss and one optimizer",
            where=text,
            fix="take such as mlp, relu-network, resnet50 or decoder-lm, or a function of your own: my_job.py:make",
        )
    return job
