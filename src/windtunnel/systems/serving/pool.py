"""The processes of a long-running server: those kept for another split, new ones, and their warm-up.

In: a split, who runs. Out: a process for each of its instances, on cores that no other of them has. Not here: when new
ones are used (``live``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.measure.together import moment_in, wait_for
from windtunnel.measure.workers import Workers
from windtunnel.systems.serving.instances import Order, instances, server_cores
from windtunnel.systems.serving.model import Split

__all__ = ["Running", "close_all", "is_warm", "match_running", "start_instances"]

_WARMUP = 2
_LOOK_NS = 5_000_000


@dataclass(eq=False)
class Running:
    """A running instance on exclusive cores."""

    cores: tuple[int, ...]
    workers: Workers


def start_instances(job: str, split: Split, alive: Sequence[Running], max_inputs: int) -> list[Running]:
    """Start processes for the instances of a split that no running process matches.

    Parameters
    ----------
    job : str
        As for ``build_served_model``.
    split : Split
    alive : sequence of Running
        Running processes. One with as many threads as an instance is reused; new ones may share cores with the rest.
    max_inputs : int
        The largest batch.
    """
    indices = match_running(split, alive)
    held = {core for item in indices if item is not None for core in item.cores}
    free = iter([core for core in server_cores() if core not in held])
    new: list[Running] = []
    try:
        for instance, index in zip(split.instances, indices, strict=True):
            if index is None:
                cores = tuple(next(free) for _ in range(instance.threads))
                new.append(Running(cores, instances(job, [cores], max_inputs).__enter__()))
    except BaseException:
        close_all(new)
        raise
    return new


def match_running(split: Split, alive: Sequence[Running]) -> list[Running | None]:
    """Return, for each instance, a running process with as many threads, or None."""
    left = list(alive)
    result: list[Running | None] = []
    for instance in split.instances:
        same = next((item for item in left if len(item.cores) == instance.threads), None)
        if same is not None:
            left.remove(same)
        result.append(same)
    return result


def is_warm(new: Sequence[Running], split: Split, is_wanted: Callable[[], bool]) -> bool:
    """Warm up all processes with batches of powers of two and full batches; return False if ``is_wanted`` ends.

    No more than that: who serves meanwhile has the same cores.

    Raises
    ------
    WorkerError
        One has ended.
    """
    most = max(instance.batch for instance in split.instances)
    sizes = [*(1 << power for power in range((most - 1).bit_length())), *[most] * _WARMUP]
    for item in new:
        for inputs in sizes:
            item.workers.send(Order(inputs, moment_in(0)))
    left = {id(entry): len(sizes) + 1 for entry in new}  # "ready", then an answer to each
    while any(left.values()):
        if not is_wanted():
            return False
        for item in new:
            while left[id(item)] and item.workers.has_answer():
                item.workers.receive()
                left[id(item)] -= 1
        wait_for(moment_in(_LOOK_NS))
    return True


def close_all(processes: Sequence[Running]) -> None:
    """End the processes."""
    for process in processes:
        process.workers.close()
