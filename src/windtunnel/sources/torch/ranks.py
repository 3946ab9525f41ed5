"""A script that runs in several processes -> one graph of all its ranks (room sources).

In: a script, how many processes, and how fast the link between them shall be. Out: a ``Graph`` whose ranks meet in
their messages. Each process runs the unmodified script as ``torchrun`` would start it and captures itself
(``script``); they are joined afterwards (``sources.ranks``). Not here: jobs over several hosts; there, each process
captures itself under the job's own launcher, and the graphs are joined from their files.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windtunnel.errors import InputError
from windtunnel.extras import require
from windtunnel.graph import Graph, load
from windtunnel.measure.links import KERNEL, ShapedLink, shaped_link
from windtunnel.measure.workers import Workers
from windtunnel.sources.torch._joined import joined_step
from windtunnel.sources.torch.script import IncompleteCaptureError, checked_script

__all__ = ["capture_ranks"]

_LOCAL = "127.0.0.1"


def capture_ranks(
    path: str | Path,
    argv: Sequence[str] = (),
    *,
    num_ranks: int,
    iterations: int = 20,
    warmup: int = 3,
    bandwidth_bytes_per_s: float | None = None,
    latency_ns: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Graph:
    """Run a script in several processes of this host, capture one iteration of each, and join them.

    Parameters
    ----------
    path : path
        The script; it calls ``torch.distributed.init_process_group`` itself.
    argv : sequence of str
        Its arguments.
    num_ranks : int
    iterations, warmup, progress
        As in :func:`windtunnel.sources.torch.step.capture`.
    bandwidth_bytes_per_s, latency_ns : float, int
        Put each process behind a link of this rate and one-way latency, which the kernel shapes; by default they talk
        over the loopback as it is.

    Returns
    -------
    Graph
        One iteration of every rank.

    Raises
    ------
    InputError
        No ranks, no such script, or the kernel does not let this process shape links.
    IncompleteCaptureError
        A rank raised or ended before enough was measured; says which.
    WorkerError
        A process was killed, or nothing was heard of it for minutes.
    """
    require("torch", extra="torch")
    from windtunnel.sources.torch._rank import Orders

    if num_ranks < 1:
        raise InputError(f"a script cannot run in {num_ranks} processes", fix="give at least one (--nproc 2)")
    script = checked_script(path)
    with (
        tempfile.TemporaryDirectory(prefix="windtunnel-ranks-") as folder,
        _link(num_ranks, bandwidth_bytes_per_s, latency_ns) as link,
    ):
        orders = Orders(str(script.resolve()), tuple(argv), iterations, warmup, folder, link.addresses[0], _free_port())
        with Workers(
            "windtunnel.sources.torch._rank",
            orders,
            num_ranks=num_ranks,
            title=script.name,
            environment={"OMP_NUM_THREADS": "1", **_own_threads(), **link.environment},
            prefixes=link.prefixes,
        ) as workers:
            answers = workers.gather(heard=lambda answer: _forward(progress, answer))
            _require_all(answers, script, workers.log_tail())
        graphs = [_placed(load(answer["path"]), rank, num_ranks, link) for rank, answer in enumerate(answers)]
    return joined_step(graphs, [f"rank {rank} of {script.name}" for rank in range(num_ranks)])


def _own_threads() -> dict[str, str]:
    """The number of threads that the user set; torchrun gives each process one otherwise."""
    return {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}


@contextmanager
def _link(num_ranks: int, bandwidth_bytes_per_s: float | None, latency_ns: int) -> Iterator[ShapedLink]:
    if bandwidth_bytes_per_s is None and not latency_ns:
        yield ShapedLink("loopback", ((),) * num_ranks, (_LOCAL,) * num_ranks, {}, float("inf"))
        return
    with shaped_link(num_ranks, bandwidth_bytes_per_s or 1e11, latency_ns) as link:
        if link.how != KERNEL or link.delay_ns:
            what = "delay" if link.how == KERNEL else "shape"
            raise InputError(
                f"the kernel lets this process {what} no links, and an unmodified script cannot be held back otherwise",
                fix="run as root with iproute2 (tc), or leave out --bandwidth and --latency",
            )
        yield link


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((_LOCAL, 0))
        return int(one.getsockname()[1])


def _forward(progress: Callable[[str, int, int], None] | None, answer: dict[str, Any]) -> None:
    if progress is not None and "progress" in answer:
        progress(*answer["progress"])


def _require_all(answers: Sequence[dict[str, Any]], script: Path, log: str) -> None:
    """Refuse if a rank failed, with what the first of them said."""
    failed = [(answer.get("at_ns", 0), rank) for rank, answer in enumerate(answers) if "path" not in answer]
    if not failed:
        return
    rank = min(failed)[1]
    first = answers[rank]
    raise IncompleteCaptureError(
        f"rank {rank} of {len(answers)}: {first.get('error', 'it ended without a word')}",
        where=first.get("where") or str(script),
        fix=first.get("fix") or f"run it by itself first: torchrun --nproc-per-node {len(answers)} {script}",
    ) from InputError(log)


def _placed(graph: Graph, rank: int, num_ranks: int, link: ShapedLink) -> Graph:
    """The graph of one rank, as that of this rank."""
    job: dict[str, Any] = {"backend": "gloo", "rank": rank, "world_size": num_ranks}
    if link.how == KERNEL:
        job |= {"bandwidth_bytes_per_s": link.bandwidth_bytes_per_s, "link": link.how}
    return graph.with_meta(distributed=job)
