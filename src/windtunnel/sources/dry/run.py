"""A job of many ranks -> the graph of its distinct ranks, without hardware and without the other ranks.

In: an unmodified training script and how many ranks it is meant for. Out: a ``Graph`` of one iteration with the
operators, shapes, streams, collectives and memory of every rank that differs, whose tasks take no time: it is there to
be priced. The script runs here once per such rank, on fake tensors, with torch's fake process group. Not here: prices,
whose links carry the messages (room whatifs).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.errors import InputError
from windtunnel.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from windtunnel.sources.dry.trace import Trace

__all__ = ["DRY_RUN", "dry_run"]

_FEWEST = 4  # two that show the loop, one behind them, one to record
DRY_RUN = "torch dry run"
"""``meta.source`` of such a graph."""


def dry_run(
    script: str | Path,
    argv: Sequence[str] = (),
    *,
    num_ranks: int,
    ranks_to_trace: Sequence[int] = (),
    devices_per_host: int = 8,
    device: str = "cuda",
    guesses: bool = False,
    progress: Progress | None = None,
) -> Graph:
    """Trace a script as ranks of a job that does not run.

    Parameters
    ----------
    script : path
    argv : sequence of str
        Its arguments.
    num_ranks : int
        Ranks of the job.
    ranks_to_trace : sequence of int
        By default rank 0 and, from rank to rank, those that it sends to and receives from: the stages of a pipeline.
    devices_per_host : int
    device : str
        ``cuda`` or ``cpu``: what the script finds.
    guesses : bool
        Let the script decide by values that only a real run has.
    progress : callable
        Called with (what, done, total) after every rank.

    Returns
    -------
    Graph
        All durations are 0, ``cost_source`` is "not run". Column ``rank`` has the traced ranks, ``meta.distributed``
        how many ranks each stands for.

    Raises
    ------
    InputError
        The file is not there or is no Python; the script decides by values; it ended before an iteration was whole.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    from windtunnel.sources.dry.join_ranks import join_traces
    from windtunnel.sources.torch.script import check_script

    _check(num_ranks, ranks_to_trace, devices_per_host, device)
    path = check_script(script)
    options = _Options(path, argv, num_ranks, devices_per_host, device == "cuda", guesses)
    traces = _trace_ranks(options, ranks_to_trace, progress)
    graph = join_traces(traces, num_ranks, devices_per_host)
    return graph.with_meta(source=DRY_RUN, origin={"script": str(path.resolve()), "argv": list(argv)})


def _check(num_ranks: int, ranks: Sequence[int], devices_per_host: int, device: str) -> None:
    wrong = [rank for rank in ranks if not 0 <= rank < num_ranks]
    if num_ranks < 1 or devices_per_host < 1 or wrong or device not in ("cuda", "cpu"):
        raise InputError(
            f"no job has rank {wrong[0]} of {num_ranks}" if wrong else "no such job can be traced",
            where=f"{num_ranks} ranks, {devices_per_host} devices per host, device {device}",
            fix="give at least 1 of each, ranks from 0 on, device cuda or cpu",
        )


@dataclass(frozen=True, slots=True)
class _Options:
    script: Path
    argv: Sequence[str]
    num_ranks: int
    devices_per_host: int
    has_device: bool
    guesses: bool


def _trace_ranks(options: _Options, given: Sequence[int], progress: Progress | None) -> list[Trace]:
    from windtunnel.sources.dry.job import Mailbox

    mailbox, traces = Mailbox(), dict[int, Any]()
    waiting = list(dict.fromkeys(given)) or [0]
    while waiting:
        # a stage learns shapes from the one before it
        rank = waiting[0] if given else min(waiting)
        waiting.remove(rank)
        traces[rank] = _trace_rank(options, rank, mailbox)
        if not given:
            waiting += [peer for peer in sorted(traces[rank].peers) if peer not in {*traces, *waiting}]
        if progress is not None:
            progress("tracing ranks", len(traces), len(traces) + len(waiting))
    return [traces[rank] for rank in sorted(traces)]


def _trace_rank(options: _Options, rank: int, mailbox: Any) -> Trace:
    from windtunnel.sources.dry.no_compute import without_workers
    from windtunnel.sources.dry.trace import Tracing
    from windtunnel.sources.torch.script import run_until_enough

    tracing = Tracing(rank)

    def on_loader(arguments: dict[str, Any]) -> dict[str, Any]:
        tracing.host.note_loader(arguments)
        return without_workers(arguments)

    ended = run_until_enough(
        options.script,
        options.argv,
        tracing,
        surroundings=_surroundings(options, rank, mailbox, tracing),
        on_loader=on_loader,
    )
    if tracing.trace is None:
        message, fix = ended.reason("iterations")
        if ended.is_whole and ended.hooks.num_steps:
            fix = f"let a rank run {_FEWEST} iterations or more: give it more data or epochs, or the job fewer ranks"
        raise InputError(f"{message}; rank {rank}: no iteration was whole", where=ended.place(), fix=fix) from (
            ended.failure
        )
    return tracing.trace


@contextmanager
def _surroundings(options: _Options, rank: int, mailbox: Any, tracing: Any) -> Iterator[None]:
    from windtunnel.sources.dry.job import rank_of_job
    from windtunnel.sources.dry.no_compute import skip_compute
    from windtunnel.sources.dry.values import Values

    tracing.values = Values(options.guesses)
    per_host = options.devices_per_host
    with (
        rank_of_job(rank, options.num_ranks, per_host, mailbox),
        skip_compute(
            tracing.values,
            tracing.streams,
            has_device=options.has_device,
            devices_per_host=per_host,
            local_rank=rank % per_host,
            host=tracing.host,
        ),
        tracing.watching(),
    ):
        yield
