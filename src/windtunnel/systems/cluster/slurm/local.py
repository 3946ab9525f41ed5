"""A complete Slurm on this host: a controller, and one daemon per machine.

In: a cluster, a folder. Out: an environment in which Slurm's commands talk to it. Needs Debian's ``slurm-wlm`` and
``munge``, and the rights of root. Not here: what is submitted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from windtunnel.errors import FlightError, InputError
from windtunnel.measure.workers import run_to_end
from windtunnel.systems.cluster.layout import Cluster
from windtunnel.systems.cluster.slurm.files import machine_names, slurm_conf, topology_conf

__all__ = ["can_run_slurm", "local_slurm", "run_slurm"]

_TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
_PATIENCE_S, _POLL_S = 30.0, 0.2


@cache
def can_run_slurm() -> bool:
    """Whether Slurm is installed, and this process may start it."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in _TOOLS)


@contextlib.contextmanager
def local_slurm(cluster: Cluster, folder: Path) -> Iterator[dict[str, str]]:
    """Run Slurm for as long as the block does; gives the environment of its commands.

    Parameters
    ----------
    cluster : Cluster
    folder : Path
        Where its files and logs go.

    Raises
    ------
    InputError
        Slurm is not installed, or this process may not start it.
    FlightError
        Not all machines came up.
    """
    if not can_run_slurm():
        raise InputError(
            "Slurm cannot be started here", where=", ".join(tool for tool in _TOOLS if not shutil.which(tool)),
            fix="as root: apt-get install slurm-wlm munge; or windtunnel cluster predict, which needs neither",
        )  # fmt: skip
    for name in ("state", "munge"):
        (folder / name).mkdir(parents=True)
    (folder / "munge").chmod(0o700)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    conf, host = folder / "slurm.conf", socket.gethostname().partition(".")[0]
    conf.write_text(slurm_conf(cluster, host, folder, _free_ports(cluster.num_machines + 1)), encoding="utf-8")
    (folder / "topology.conf").write_text(topology_conf(cluster), encoding="utf-8")
    environment = {"SLURM_CONF": str(conf)}
    with contextlib.ExitStack() as stack:
        munge = folder / "munge"
        files = [f"--{name}={munge / name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        run_slurm(["munged", "--force", f"--key-file={key}", *files], environment)
        stack.callback(_wait_or_kill, munge / "pid-file")
        run_slurm(["slurmctld", "-f", str(conf)], environment)
        stack.callback(_shut_down, folder, environment)
        for name in machine_names(cluster):
            run_slurm(["slurmd", "-N", name, "-f", str(conf)], environment)
        _wait_for_machines(cluster, folder, environment)
        yield environment


def run_slurm(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a Slurm command to its end and return its output.

    Raises
    ------
    FlightError
        The command failed; the message contains its output.
    """
    done = run_to_end(command, environment=environment)
    if done is None or done.code:
        reported = "it could not be started" if done is None else (done.stderr or done.stdout).strip()
        raise FlightError(f"Slurm refuses: {reported[-300:]}", where=" ".join(command), fix="its logs say more")
    return done.stdout


def _wait_for_machines(cluster: Cluster, folder: Path, environment: Mapping[str, str]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        done = run_to_end(["sinfo", "-h", "-N", "-o", "%T"], environment=environment)
        if done is not None and done.stdout.split().count("idle") == cluster.num_machines:
            return
        time.sleep(_POLL_S)
    raise FlightError(f"not all {cluster.num_machines} machines came up", where=str(folder), fix="see its logs")


def _shut_down(folder: Path, environment: Mapping[str, str]) -> None:
    run_to_end(["scancel", "--user", "root", "--full"], environment=environment)
    run_to_end(["scontrol", "shutdown"], environment=environment)
    for path in folder.glob("*.pid"):
        _wait_or_kill(path)


def _wait_or_kill(pid_file: Path) -> None:
    """Wait until the process of a PID file has ended, and kill it after five seconds."""
    until_s = time.monotonic() + 5.0
    with contextlib.suppress(OSError, ValueError):
        number = int(pid_file.read_text(encoding="ascii"))
        if "munge" in str(pid_file):
            os.kill(number, signal.SIGTERM)
        while time.monotonic() < until_s:
            os.kill(number, 0)
            time.sleep(_POLL_S)
        os.kill(number, signal.SIGKILL)


def _free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports."""
    for first in range(17_800, 30_000, 100):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise FlightError(f"there are no {count} consecutive free ports", fix="end the processes that listen on them")
