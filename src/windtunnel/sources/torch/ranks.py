"""A script that runs in several processes -> one graph of all its ranks.

In: a script, how many processes, and how fast the link between them shall be. Out: a ``Graph`` whose ranks meet in
their messages. Each process runs the unmodified script as ``torchrun`` would start it and captures itself
(``script``); they are joined afterwards. Not here: jobs over several hosts; there, each process captures itself under
the job's own launcher, and the graphs are joined from their files (``sources.ranks``).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError, WindtunnelError
from windtunnel.graph import Graph, load, save
from windtunnel.measure.workers import Place, Workers
from windtunnel.sources.torch.launch import Meeting, Ranks, join_job, launch
from windtunnel.sources.torch.script import IncompleteCaptureError, capture_script, check_script

__all__ = ["Orders", "capture_ranks", "main"]


def capture_ranks(
    path: str | Path,
    argv: Sequence[str] = (),
    *,
    ranks: Ranks,
    iterations: int = 20,
    warmup: int = 3,
    progress: Progress | None = None,
) -> Graph:
    """Run a script in several processes of this host, capture one iteration of each, and join them.

    Parameters
    ----------
    path : path
        The script; it calls ``torch.distributed.init_process_group`` itself.
    argv : sequence of str
        Its arguments.
    ranks : Ranks
        How many processes, and the link between them.
    iterations, warmup, progress
        As in :func:`windtunnel.sources.torch.step.capture`.

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
    TraceError
        The ranks do not agree about what they sent each other.
    """
    require("torch", extra="torch")
    from windtunnel.sources.torch.join_ranks import join_step_ranks

    script = check_script(path)
    with (
        tempfile.TemporaryDirectory(prefix="windtunnel-ranks-") as folder,
        launch(ranks) as (link, meeting, environment),
    ):
        orders = Orders(str(script.resolve()), tuple(argv), iterations, warmup, folder, meeting)
        with Workers(
            "windtunnel.sources.torch.ranks",
            orders,
            num_ranks=ranks.num_ranks,
            title=script.name,
            environment=environment,
            prefixes=link.prefixes,
        ) as workers:
            answers = workers.gather(heard=lambda answer: _forward(progress, answer))
            _require_all(answers, script, workers.log_tail())
        graphs = [_add_launch_origin(load(answer["path"]), ranks) for answer in answers]
    return join_step_ranks(graphs, [f"rank {rank} of {script.name}" for rank in range(ranks.num_ranks)])


def _forward(progress: Progress | None, answer: dict[str, Any]) -> None:
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


def _add_launch_origin(graph: Graph, ranks: Ranks) -> Graph:
    """The graph of one rank, with what starts its job again."""
    return graph.with_meta(origin={**graph.meta.origin, "ranks": ranks.nonzero_fields()})


class Orders(msgspec.Struct, frozen=True):
    """What all ranks do."""

    script: str
    argv: tuple[str, ...]
    iterations: int
    warmup: int
    folder: str
    meeting: Meeting


def main(place: Place) -> int:
    """Capture one rank; a failure is reported with its time, as the peers fail after the first rank."""
    orders: Orders = place.config
    join_job(place.rank, place.num_ranks, orders.meeting)

    def tell(what: str, done: int, total: int) -> None:
        place.tell({"progress": (what, done, total)})

    try:
        graph = capture_script(
            orders.script, orders.argv, iterations=orders.iterations, warmup=orders.warmup, progress=tell
        )
    except WindtunnelError as error:
        place.tell(_failure(error))
        return 0
    path = f"{orders.folder}/rank{place.rank}.wt"
    save(graph, path, overwrite=True)
    place.tell({"path": path})
    return 0


def _failure(error: WindtunnelError) -> dict[str, Any]:
    # what a rank raises once its peers are gone came second
    reported = {"error": error.message, "where": error.where, "fix": error.fix, "at_ns": time.monotonic_ns()}
    return reported | {"is_incomplete": isinstance(error, IncompleteCaptureError)}
