"""A timeline built by hand, from no file format: what follows from its events, and that a reader's events are these."""

import numpy as np
import pytest

from tests.sources.kineto_traces import call, kernel, op, write
from windtunnel.errors import TraceError
from windtunnel.graph import EdgeKind, Kind, ProcessGroup, Strings, Table
from windtunnel.simulate import replay
from windtunnel.sources.kineto import load_kineto
from windtunnel.sources.timeline import Category, Events, TimelineRules, build_graph
from windtunnel.sources.timeline.events import MISSING, CollectiveRecords, Stream, SyncKind, Syncs
from windtunnel.sources.timeline.explain import explain_device_tasks
from windtunnel.sources.timeline.recorded import find_recorded_events
from windtunnel.sources.timeline.tables import TableRules, make_tables

US = 1000
COMPUTE, COMMUNICATION = 0, 1
# category, name, start and duration in µs, stream, correlation id
ROWS = [
    (Category.OPERATOR, "aten::mm", 0, 20, -1, MISSING),
    (Category.CALL, "cudaLaunchKernel", 5, 10, -1, 1),
    (Category.OPERATOR, "c10d::allreduce_", 20, 40, -1, MISSING),
    (Category.CALL, "cudaStreamWaitEvent", 25, 5, -1, 2),
    (Category.CALL, "cudaLaunchKernel", 35, 10, -1, 3),
    (Category.CALL, "cudaDeviceSynchronize", 70, 330, -1, 4),
    (Category.KERNEL, "gemm", 20, 180, COMPUTE, 1),
    (Category.KERNEL, "ncclDevKernel_AllReduce_Sum", 210, 180, COMMUNICATION, 3),
    (Category.SYNC, "stream waits", 25, 1, COMMUNICATION, 2),
    (Category.SYNC, "device is synchronized", 70, 330, COMPUTE, 4),
]


def events(rows=ROWS) -> Events:
    category, name, start_us, duration_us, stream, correlation = zip(*rows, strict=True)
    names = tuple(dict.fromkeys(["", *name]))
    one = np.ones(1, np.int32)
    return Events.of(
        category=category,
        start_ns=US * np.array(start_us),
        duration_ns=US * np.array(duration_us),
        name=[names.index(text) for text in name],
        names=names,
        source="by hand",
        stream=np.array(stream, np.int32),
        streams=(Stream("0", "7"), Stream("0", "20")),
        correlation=np.array(correlation, np.int64),
        syncs=Syncs(
            np.array([SyncKind.STREAM_WAIT, SyncKind.DEVICE], np.int8),
            np.array([COMPUTE, -1], np.int32),
            np.full(2, MISSING, np.int64),
        ),
        collectives=CollectiveRecords(
            row=2 * one,  # the operator; its kernel has the same
            name=0 * one,
            message_bytes=np.array([4096]),
            sequence=np.array([5]),
            group=0 * one,
            peer=-one,
            names=("all_reduce",),
            groups=(ProcessGroup("data parallel", (0, 1)),),
        ),
    )


def edges(graph, kind) -> list[tuple[str, str, int, bool]]:
    """Edges of a kind between tasks: names, lag in µs, whether from start to start."""
    name = graph.tasks.strings("name").to_numpy().tolist()
    rows = np.flatnonzero(graph.edges["kind"] == kind)
    columns = (graph.edges[key][rows].tolist() for key in ("src", "dst", "lag_ns", "from_start"))
    return [(name[src], name[dst], lag // US, from_start) for src, dst, lag, from_start in zip(*columns, strict=True)]


def test_tasks_and_edges_of_a_timeline_that_no_file_held():
    graph = build_graph(events())
    tasks = graph.tasks

    assert graph.meta.source == "by hand"
    assert tasks.strings("name").to_numpy().tolist() == [
        *("aten::mm", "cudaLaunchKernel", "aten::mm"),
        *("c10d::allreduce_", "cudaStreamWaitEvent", "c10d::allreduce_", "cudaLaunchKernel", "c10d::allreduce_"),
        *("cudaDeviceSynchronize", "cudaDeviceSynchronize"),  # the call, and its return
        *("gemm", "ncclDevKernel_AllReduce_Sum"),
    ]
    assert (tasks["kind"][-4:] == [Kind.HOST, Kind.SYNC, Kind.COMPUTE, Kind.COMM]).all()
    assert graph.duration_ns[-4:].tolist() == [0, 0, 180 * US, 180 * US]  # waiting is no work
    assert graph.resources.strings("name").to_numpy().tolist() == [
        "main thread",
        "GPU 0 stream 7",
        "GPU 0 stream 20",
    ]
    assert (tasks["message_bytes"][-1], tasks["sequence"][-1]) == (4096, 5)
    assert tasks.strings("op").decode(graph.num_tasks - 1) == "all_reduce"
    assert graph.meta.groups == (ProcessGroup("data parallel", (0, 1)),)

    assert edges(graph, EdgeKind.LAUNCH) == [
        ("cudaLaunchKernel", "gemm", 15, True),
        ("cudaLaunchKernel", "ncclDevKernel_AllReduce_Sum", 15, True),
    ]
    assert edges(graph, EdgeKind.SYNC) == [
        ("gemm", "ncclDevKernel_AllReduce_Sum", 10, False),  # the event wait
        ("gemm", "cudaDeviceSynchronize", 10, False),  # returns 10 µs after the last of both
        ("ncclDevKernel_AllReduce_Sum", "cudaDeviceSynchronize", 10, False),
    ]
    assert len(edges(graph, EdgeKind.ORDER)) == 9  # along the thread; each stream has one task
    assert explain_device_tasks(graph).count() == {
        "launch-bound": 1,
        "stream-bound": 0,
        "event-wait": 1,
        "collective-peer": 0,
        "unexplained": 0,
    }


def test_replay_keeps_the_measured_starts_and_a_longer_kernel_delays_who_waits_for_it():
    graph = build_graph(events())

    assert replay(graph).start_ns.tolist() == graph.tasks["start_ns"].tolist()
    gemm = graph.num_tasks - 2
    slower = replay(graph.set_duration(np.array([gemm]), 230 * US))
    assert slower.start_ns[-1] == (210 + 50) * US
    assert slower.makespan_ns == replay(graph).makespan_ns + 50 * US


def test_kinetos_reader_fills_the_same_events(tmp_path):
    told = {"Collective name": "allreduce", "In msg nelems": 1024, "dtype": "Float", "Seq": 5}
    told |= {"Process Group Name": "data parallel", "Process Group Ranks": "[0, 1]"}
    path = write(
        tmp_path / "trace.json",
        [
            op("aten::mm", 0, 20),
            call("cudaLaunchKernel", 5, 10, 1),
            op("c10d::allreduce_", 20, 40, **told),
            call("cudaStreamWaitEvent", 25, 5, 2),
            call("cudaLaunchKernel", 35, 10, 3),
            call("cudaDeviceSynchronize", 70, 330, 4),
            kernel("gemm", 20, 180, 1),
            kernel("ncclDevKernel_AllReduce_Sum", 210, 180, 3, 20),
            kernel("Stream Wait Event", 25, 1, 2, 20, "cuda_sync", wait_on_stream=7),
            kernel("Context Sync", 70, 330, 4, 7, "cuda_sync"),
        ],
    )
    read, built = load_kineto(path), build_graph(events())

    def columns(table: Table) -> dict[str, list]:
        return {
            name: table[name].to_numpy().tolist() if isinstance(table[name], Strings) else table[name].tolist()
            for name in table
        }

    assert columns(read.tasks) == columns(built.tasks)
    assert columns(read.edges) == columns(built.edges)


def test_tables_and_windows_need_no_file_either():
    rows = [*ROWS, (Category.ANNOTATION, "step", 0, 65, -1, MISSING)]
    tables = make_tables([find_recorded_events(events(rows), like_hta=False)], TableRules())

    assert tables.table("overlap").to_pylist() == [
        {"rank": 0, "communication_ns": 180 * US, "overlapped_ns": 0, "overlap_ratio": 0.0}
    ]
    assert "cudaDeviceSynchronize" not in build_graph(events(rows), window="step").tasks.strings("name").to_numpy()
    with pytest.raises(TraceError, match="there is no annotation 'epoch'"):
        build_graph(events(rows), window="epoch", rules=TimelineRules())
