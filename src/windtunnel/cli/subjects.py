"""What a verb runs, from its first argument: a script with its arguments, or a workload such as ``mlp:width=64``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.sources.targets import Script, WorkloadName
    from windtunnel.sources.torch.launch import Ranks
    from windtunnel.whatifs.request import Step

__all__ = ["is_script", "subject_of", "workload_of"]


def is_script(target: str) -> bool:
    """Whether the argument names a Python file rather than a workload."""
    return target.endswith(".py") or "/" in target or Path(target).is_file()


def subject_of(target: str, arguments: Sequence[str], ranks: Ranks) -> Script | WorkloadName:
    """Return what to run.

    Raises
    ------
    InputError
        There is no such script or workload, or a workload is given arguments or several processes.
    """
    from windtunnel.sources.targets import Script, WorkloadName, target_of

    if is_script(target):
        result = target_of(target if target.endswith(".py") else Path(target), argv=arguments, ranks=ranks)
        assert isinstance(result, Script)
        return result
    step = workload_of(target, arguments)
    if ranks.num_ranks > 1:
        raise InputError("a workload runs in one process", where="--nproc", fix="leave out --nproc")
    return WorkloadName(step.name, step.parameters)


def workload_of(target: str, arguments: Sequence[str]) -> Step:
    """Return the name and the parameters of a workload.

    Raises
    ------
    InputError
        There is no such workload, or it is given arguments.
    """
    from windtunnel.whatifs.request import parse_step

    if arguments:
        fix = f"give parameters of a workload after a colon: {target}:option=value"
        raise InputError(f"a workload takes no arguments, but got {' '.join(arguments)}", fix=fix)
    return parse_step(target, kind="workload")
