"""PyTorch execution traces that others made -> graphs.

In: JSON that ``torch.profiler.ExecutionTraceObserver`` wrote, schemas 1.0.1 to 1.1.1. Out: a ``Graph`` with the true
data dependencies of every operator, by storage. Such files hold no times: durations come from a Kineto trace of the
same run, or stay unmeasured. Not here: prices, Chakra's own format, simulated time.
"""

from __future__ import annotations

import re
from pathlib import Path

from windtunnel import registry
from windtunnel.base.extras import require
from windtunnel.base.progress import Progress
from windtunnel.graph import Graph, Strings
from windtunnel.sources.chakra.nodes import read_head
from windtunnel.sources.timeline.build import build_graph

__all__ = ["UNMEASURED", "count_unmeasured_tasks", "is_execution_trace", "load_execution_trace"]

UNMEASURED = "unmeasured"


def is_execution_trace(path: Path) -> bool:
    """Whether the file begins as an execution trace does; a file that cannot be read does not.

    Kineto traces are objects too, with ``traceEvents`` or ``schemaVersion``; here it is ``schema`` and ``nodes``.
    """
    head = read_head(path)
    return bool(re.match(rb"\s*\{", head) and re.search(rb'"schema"\s*:\s*"', head)) and b'"traceEvents"' not in head


@registry.source(
    "execution-trace",
    source="PyTorch ExecutionTraceObserver, schemas 1.0.1 to 1.1.1-chakra.0.0.4",
    sniff=is_execution_trace,
)
def load_execution_trace(
    path: str | Path,
    *,
    kineto: str | Path | None = None,
    read_limit: int | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Load a PyTorch execution trace, ``.json`` or ``.json.gz``, as a graph.

    Every operator with work of its own is a task on its thread; what only calls others is not. Where its tensors lie
    on an accelerator a second task is what it computes there, on the queue ``DEVICE compute``, or ``DEVICE
    communication`` for collectives: streams are not recorded. Data edges lead from the last writer of a range of a
    storage to its readers, control edges from readers to who overwrites in place, and between a thread that calls a
    backward pass and the autograd thread; launches, waits for collectives and blocking copies are edges too.

    Parameters
    ----------
    path : str or Path
    kineto : str or Path, optional
        Kineto trace of the same run: durations of operators and kernels and the streams are taken from there. Time
        between operators is not. Without it every task has duration 0 and ``cost_source`` "unmeasured".
    read_limit : int, optional
        The most bytes of memory that reading a file may take (`windtunnel.base.reading.ReadLimit`).
    progress : callable, optional
        Called with (what, bytes read, bytes in all) while the Kineto trace is read.

    Returns
    -------
    Graph
        Column ``node`` holds the node's id; ``meta["num_unmeasured_tasks"]`` counts tasks without a duration,
        ``meta["trace"]`` says what was left out and how the two traces were joined.

    Raises
    ------
    TraceError
        The file is cut (byte offset), its schema is unknown, a node lacks a field, ids are not unique, calls form a
        cycle, or the Kineto trace is of another run.
    MissingExtraError
        PyTorch is not installed; it knows which operators only call others.
    """
    require("torch", extra="torch")
    from windtunnel.sources.execution_trace.build import build
    from windtunnel.sources.execution_trace.kineto import read_events
    from windtunnel.sources.execution_trace.nodes import read_document

    document = read_document(Path(path), read_limit, allow_missing=kineto is not None)
    if kineto is None:
        return build(document)
    events, program, joined = read_events(document, Path(kineto), read_limit, progress)
    facts = {"execution trace": str(path), "schema": document.schema, "num_nodes": len(document.nodes)}
    graph = build_graph(events)
    return graph.with_meta(trace={**graph.meta.trace, **facts, "joined": joined}, program=program)


def count_unmeasured_tasks(graph: Graph) -> int:
    """Count the tasks of duration 0 whose duration no source reports (``cost_source`` "unmeasured").

    Examples
    --------
    >>> from windtunnel.graph import GraphBuilder
    >>> builder = GraphBuilder()
    >>> _ = builder.task("a", duration_ns=1)
    >>> count_unmeasured_tasks(builder.build())
    0
    """
    sources = graph.tasks.get("cost_source")
    if not isinstance(sources, Strings) or UNMEASURED not in sources.values:
        return 0
    return int((sources.codes == sources.values.index(UNMEASURED)).sum())
