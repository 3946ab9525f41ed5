"""The slots of a real cluster: processes in network namespaces, joined by shaped links.

In: a cluster, tasks of jobs. Out: reports. Not here: who gets which slot when (``drive``).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from windtunnel.measure.links import shape_racks
from windtunnel.measure.workers import Workers
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.real.slot import STOP, Report, Task

__all__ = ["Slots", "real_slots"]


class Slots:
    """All slots of a cluster; see ``real_slots``.

    Attributes
    ----------
    free : dict of int to list of int
        Slots that do nothing, by machine.
    """

    def __init__(self, workers: Workers, cluster: Cluster, folder: Path) -> None:
        self._workers, self._folder = workers, folder
        per_machine = cluster.gpus_per_machine
        self.free = {
            machine: list(range(machine * per_machine, (machine + 1) * per_machine))
            for machine in range(cluster.num_machines)
        }
        self._machine_of = {slot: machine for machine, slots in self.free.items() for slot in slots}
        self._busy: dict[int, list[int]] = {}  # job: slots, by rank
        self._reports: dict[int, list[Report]] = {}
        self._num_tasks = 0

    def can_start(self, job: int, gpus: Mapping[int, int]) -> bool:
        """Whether the job has left its slots, and each machine has the requested number of free slots."""
        return job not in self._busy and all(len(self.free[machine]) >= count for machine, count in gpus.items())

    def start(
        self, job: int, gpus: Mapping[int, int], compute_ns: int, gradient_bytes: int, num_iterations: int
    ) -> None:
        """Start a job on slots of machines; ranks are grouped by machine, so that a ring leaves each machine once."""
        selected = [self.free[machine].pop(0) for machine in sorted(gpus) for _ in range(gpus[machine])]
        self._num_tasks += 1
        meet = str(self._folder / f"task{self._num_tasks}")
        for rank, slot in enumerate(selected):
            task = Task(job, rank, len(selected), meet, compute_ns, gradient_bytes, num_iterations)
            self._workers.send(task, slot)
        self._busy[job], self._reports[job] = selected, []

    def stop(self, job: int) -> None:
        """Ask a job to stop after the current iteration; its report has the progress."""
        if job in self._busy:
            self._workers.send(STOP, self._busy[job][0])

    def reports(self) -> Iterator[Report]:
        """Yield, for each job that all ranks have left since the last call, the report of its last rank."""
        for job, slots in list(self._busy.items()):
            reported = self._reports[job]
            while len(reported) < len(slots) and self._workers.has_answer(slots[len(reported)]):
                reported.append(self._workers.receive(slots[len(reported)]))
            if len(reported) == len(slots):
                del self._busy[job], self._reports[job]
                for slot in slots:
                    self.free[self._machine_of[slot]].append(slot)
                yield max(reported, key=lambda report: report.ended_ns)


@contextlib.contextmanager
def real_slots(cluster: Cluster) -> Iterator[Slots]:
    """Start a process for each GPU of the cluster, on links as fast as the cluster's; ends them afterwards.

    The machine's own link is not shaped: its slots talk over its own loopback.

    Raises
    ------
    InputError
        This process may make no network namespaces.
    """
    _, rack, network = cluster.links
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(
            shape_racks(cluster.num_racks, cluster.machines_per_rack, rack.bandwidth_bytes_per_s,
                         network.bandwidth_bytes_per_s)
        )  # fmt: skip
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windtunnel-cluster-")))
        prefixes = [link.prefixes[slot // cluster.gpus_per_machine] for slot in range(cluster.num_gpus)]
        environment = {"OMP_NUM_THREADS": "1", **link.environment}
        workers = stack.enter_context(
            Workers("windtunnel.systems.cluster.real.slot", num_ranks=cluster.num_gpus, title="slot",
                    environment=environment, prefixes=prefixes)
        )  # fmt: skip
        for slot in range(cluster.num_gpus):
            workers.receive(slot)
        yield Slots(workers, cluster, folder)
