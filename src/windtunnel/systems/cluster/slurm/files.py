"""Slurm configuration files of a cluster, and the submit options of a job under a policy.

In: a cluster, a job's GPUs, a policy. Out: file contents and options. Not here: running anything (``local``,
``drive``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import InputError
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.policy import Policy

__all__ = ["Submission", "clock_text", "machine_names", "slurm_conf", "submission", "topology_conf"]

_LONGEST_S = 31_536_000  # a year, which Slurm treats as unlimited


@dataclass(frozen=True)
class Submission:
    """The submission of a job.

    Attributes
    ----------
    options : tuple of str
        Of ``sbatch``.
    relax_after_s : float or None
        After which it may take several machines; None where nothing changes.
    max_machines : int
        That it may take then.
    """

    options: tuple[str, ...]
    relax_after_s: float | None
    max_machines: int


def submission(num_gpus: int, cluster: Cluster, policy: Policy) -> Submission:
    """Return the submit options of a job under a policy's timers.

    A job that fits into a machine asks for one, until its rack timer runs out; one that fits into a rack asks for one
    switch, until its network timer does. Slurm counts both from when the job could first have started.

    Raises
    ------
    InputError
        The policy's timers are no fixed ones, or the job is larger than the cluster.
    """
    if policy.timers != "fixed" or policy.placement != "delayed":
        raise InputError(
            "Slurm needs the timers of a job when it is submitted, and this policy decides them later",
            where=f"timers {policy.timers}, placement {policy.placement}",
            fix="windtunnel cluster plan timers finds fixed timers for dally-manual",
        )
    if num_gpus > cluster.num_gpus:
        raise InputError(f"a job asks for {num_gpus} GPUs, the cluster has {cluster.num_gpus}")
    options = ["--ntasks", str(num_gpus)]
    fits_machine, fits_rack = num_gpus <= cluster.gpus_per_machine, num_gpus <= cluster.gpus_per_rack
    relax_after_s: float | None = None
    if fits_machine and policy.rack_timer_s > 0:
        options += ["--nodes", "1"]
        relax_after_s = policy.rack_timer_s if policy.rack_timer_s < math.inf else None
    if fits_rack and policy.network_timer_s > 0:
        options += [f"--switches=1@{clock_text(policy.network_timer_s)}"]
    return Submission(tuple(options), relax_after_s, num_gpus)


def clock_text(seconds: float) -> str:
    """Format a time for Slurm: days-hours:minutes:seconds.

    Examples
    --------
    >>> clock_text(8), clock_text(90_061.5)
    ('0-00:00:08', '1-01:01:02')
    """
    left = math.ceil(min(seconds, _LONGEST_S))
    minutes, second = divmod(left, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}-{hour:02}:{minute:02}:{second:02}"


def machine_names(cluster: Cluster) -> list[str]:
    """Return a node name for each machine, rack by rack."""
    return [f"m{machine}" for machine in range(cluster.num_machines)]


def topology_conf(cluster: Cluster) -> str:
    """Return the topology file: a switch per rack, and one above them."""
    names, per_rack = machine_names(cluster), cluster.machines_per_rack
    racks = [names[rack * per_rack : (rack + 1) * per_rack] for rack in range(cluster.num_racks)]
    lines = [f"SwitchName=rack{number} Nodes={','.join(machines)}" for number, machines in enumerate(racks)]
    if cluster.num_racks > 1:
        lines.append(f"SwitchName=network Switches={','.join(f'rack{number}' for number in range(cluster.num_racks))}")
    return "\n".join(lines) + "\n"


def slurm_conf(cluster: Cluster, host: str, folder: Path, first_port: int) -> str:
    """Return the configuration of a controller and all machines on one host; a GPU is a processor of its machine."""
    ports = range(first_port + 1, first_port + 1 + cluster.num_machines)
    machines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cluster.gpus_per_machine}"
        for name, port in zip(machine_names(cluster), ports, strict=True)
    ]
    return "\n".join(
        [
            "ClusterName=windtunnel",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={first_port}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge/socket",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/controller.pid",
            f"SlurmdPidFile={folder}/%n.pid",
            f"SlurmctldLogFile={folder}/controller.log",
            f"SlurmdLogFile={folder}/%n.log",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "TopologyPlugin=topology/tree",
            "SchedulerType=sched/backfill",
            f"SchedulerParameters=sched_interval=1,bf_interval=1,max_switch_wait={_LONGEST_S}",
            "SlurmdParameters=config_overrides",
            "ReturnToService=2",
            "MinJobAge=1000000",
            "AccountingStorageType=accounting_storage/none",
            *machines,
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        ]
    )
