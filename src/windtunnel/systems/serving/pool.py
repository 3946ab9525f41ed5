"""Processes of a server that goes on: which stay for another split, which are new, which are warm.

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
    """An instance that runs, on cores that are its own until it ends."""

    cores: tuple[int, ...]
    workers: Workers


def start_instances(job: str, split: Split, alive: Sequence[Running], max_inputs: int) -> list[Running]:
    """New processes for the instances of a split that nobody of those alive is.

    Parameters
    ----------
    job : str
        As for ``served``.
    split : Split
    alive : sequence of Running
        Who stays if the split has an instance of as many threads; the new ones may share cores with the others.
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
    """For each instance one that runs and has as many threads, as long as there are such."""
    left = list(alive)
    result: list[Running | None] = []
    for instance in split.instances:
        same = next((item for item in left if len(item.cores) == instance.threads), None)
        if same is not None:
            left.remove(same)
        result.append(same)
    return result


def is_warm(new: Sequence[Running], split: Split, is_wanted: Callable[[], bool]) -> bool:
    """Wait until all have answered batches of all powers of two, and whole ones; no if they are not wanted any more.

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
    """End them."""
    for process in processes:
        process.workers.close()
