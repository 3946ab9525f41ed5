"""What a timeline says of itself: critical path, slack, breakdown, use, memory, difference, picture."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import NAMES, fixed_graphs, graphs, random_graph
from windtunnel.errors import InputError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ResourceKind
from windtunnel.simulate import replay


@given(graphs())
def test_the_critical_path_is_as_long_as_the_run(graph):
    timeline = replay(graph)
    path = timeline.critical_path()

    assert timeline.makespan_ns == path.length_ns
    assert (path.wait_ns >= 0).all()
    assert (path.duration_ns >= 0).all()


@pytest.mark.parametrize("seed", range(60))
def test_the_laws_of_paths_hold_on_large_random_graphs(seed):
    timeline = replay(random_graph(seed))
    slack, path = timeline.slack_ns(), timeline.critical_path()

    assert timeline.makespan_ns == path.length_ns
    assert (slack >= 0).all()
    assert not slack[path.task].any()


@given(graphs())
def test_slack_is_never_negative_and_zero_on_the_critical_path(graph):
    timeline = replay(graph)
    slack = timeline.slack_ns()

    assert (slack >= 0).all()
    assert not slack[timeline.critical_path().task].any()


def test_arrivals_at_one_time_are_told_apart_by_what_began_first():
    """Else ``x`` would wait for ``a`` by the join, and ``a`` for ``x`` by their thread: nobody would come to an end."""
    builder = GraphBuilder()
    thread = builder.resource("thread", ResourceKind.HOST_THREAD)
    x, a, first = (builder.task(name, duration_ns=0) for name in ("x", "a", "first"))
    join = builder.task("join", duration_ns=0, is_arrival_join=True)
    y = builder.task("y", duration_ns=0)
    for one, other in ((a, join), (first, join), (join, x), (join, y), (first, a)):
        builder.edge(one, other, kind=EdgeKind.DATA)
    graph = builder.build().with_columns(resource=[thread, thread, -1, -1, -1])
    timeline = replay(graph)
    place, task = np.argsort(timeline.sequence), timeline.execution.bindings[1]
    waits = np.flatnonzero(task >= 0)

    assert (place[task[waits]] < place[waits]).all()
    assert 0 == timeline.critical_path().length_ns


@given(fixed_graphs(), st.data())
def test_a_task_may_grow_by_its_slack_and_no_more(graph, data):
    """Slack is a promise, so it is kept exactly: one nanosecond more and the run is longer."""
    timeline = replay(graph)
    slack = timeline.slack_ns()
    row = data.draw(st.integers(0, graph.num_tasks - 1))
    later = np.zeros(graph.num_tasks, np.int64)
    later[row] = timeline.start_ns[row] + slack[row]
    kept = graph.with_columns(earliest_ns=np.maximum(graph.tasks.get("earliest_ns", later * 0), later))
    broken = kept.with_columns(earliest_ns=np.where(later > 0, later + 1, kept.tasks["earliest_ns"]))

    assert timeline.makespan_ns == replay(kept).makespan_ns
    assert (later[row] == 0) or timeline.makespan_ns + 1 == replay(broken).makespan_ns


@given(graphs())
def test_what_bound_a_task_ended_exactly_when_it_started(graph):
    timeline = replay(graph)
    _, task, edge = timeline.execution.bindings
    lag = timeline.execution.lag
    for row in np.flatnonzero(task >= 0):
        before, via = task[row], edge[row]
        leaves = (
            timeline.start_ns[before] if via >= 0 and timeline.execution.from_start[via] else timeline.finish_ns[before]
        )

        assert timeline.start_ns[row] == leaves + (lag[via] if via >= 0 else 0)


@given(graphs(), st.sampled_from(["kind", "phase", "layer", "op", "resource", "name"]))
def test_a_breakdown_adds_up_to_the_makespan(graph, by):
    timeline = replay(graph)
    parts = timeline.breakdown(by)

    assert timeline.makespan_ns == sum(parts["duration_ns"].to_pylist())


def test_a_breakdown_by_an_unknown_column_names_the_known_ones():
    builder = GraphBuilder()
    builder.task("a", duration_ns=1)
    with pytest.raises(InputError, match=r"(?s)no column 'color'.*use one of name, kind"):
        replay(builder.build()).breakdown("color")


@given(graphs(), graphs())
def test_the_changes_of_a_diff_add_up(before, after):
    diff = replay(before).diff(replay(after))

    assert diff.after_ns - diff.before_ns == sum(diff.table()["change_ns"].to_pylist())


@given(graphs(flows=False))
def test_busy_and_idle_time_of_a_resource_fill_the_run(graph):
    timeline = replay(graph)
    table = timeline.utilization().to_pydict()
    slots = np.where(graph.resources["discipline"] == 2, 1, graph.resources["slots"])

    assert (slots * timeline.makespan_ns).tolist() == [
        busy + idle for busy, idle in zip(table["busy_ns"], table["idle_ns"], strict=True)
    ]
    assert all(idle >= 0 for idle in table["idle_ns"])


@given(graphs())
def test_memory_at_any_time_is_what_is_alive_then(graph):
    memory = replay(graph.with_meta(memory_base_bytes=100)).memory()

    for time_ns, size_bytes in zip(memory.time_ns.tolist(), memory.size_bytes.tolist(), strict=True):
        assert size_bytes == 100 + memory.alive_at(time_ns).sum()
    assert memory.peak_bytes == 100 + sum(memory.alive_at_peak()["size_bytes"].to_pylist()) or not len(memory.time_ns)


def test_an_output_lives_until_its_last_consumer_ends():
    builder = GraphBuilder()
    forward = builder.task("forward", duration_ns=10, output_bytes=1000, workspace_bytes=50)
    other = builder.task("loss", duration_ns=10, output_bytes=10, workspace_bytes=0)
    backward = builder.task("backward", duration_ns=10, output_bytes=1, workspace_bytes=0)
    builder.edge(forward, other, kind=EdgeKind.DATA)
    builder.edge(other, backward, kind=EdgeKind.DATA)
    builder.edge(forward, backward, kind=EdgeKind.DATA)
    memory = replay(builder.build()).memory()

    assert [(0, 1050), (10, 1010), (20, 1011), (30, 0)] == list(
        zip(memory.time_ns.tolist(), memory.size_bytes.tolist(), strict=True)
    )
    assert 1050 == memory.peak_bytes
    assert ["forward"] == memory.alive_at_peak()["name"].to_pylist()


def test_a_path_names_what_each_task_waited_for():
    builder = GraphBuilder()
    queue = builder.resource("queue")
    builder.task("loaded at 5", duration_ns=10, resource=queue, earliest_ns=5)
    builder.task("queued", duration_ns=20, resource=queue, earliest_ns=6)
    last = builder.task("after", duration_ns=1, earliest_ns=0)
    builder.edge(1, last, kind=EdgeKind.LAUNCH, lag_ns=3)
    path = replay(builder.build()).critical_path()

    assert ["earliest", "resource", "dependency"] == path.table()["constraint"].to_pylist()
    assert ["earliest", "resource", "launch"] == path.wait_labels()
    assert [5, 0, 3] == path.wait_ns.tolist()
    assert [10, 20, 1] == path.duration_ns.tolist()


def test_a_tie_is_won_by_the_smallest_row():
    builder = GraphBuilder()
    first, second = builder.task("a", duration_ns=5), builder.task("b", duration_ns=5)
    last = builder.task("c", duration_ns=1)
    builder.edge(second, last)
    builder.edge(first, last)

    assert [first, last] == replay(builder.build()).critical_path().task.tolist()


def test_a_timeline_prints_as_one_useful_line():
    builder = GraphBuilder()
    builder.task("a", duration_ns=1_500_000, phase=Phase.FORWARD, kind=Kind.COMPUTE)
    timeline = replay(builder.build())

    assert "1.50 ms for 1 tasks" == str(timeline)
    assert "1 of 1 tasks, 1.50 ms" == str(timeline.critical_path())
    assert "1.50 ms -> 1.50 ms: 1.00x" == str(timeline.diff(timeline))


# --- Perfetto -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_perfetto_export_holds_every_task_and_no_overlap_on_a_track(tmp_path, seed):
    timeline = replay(random_graph(seed))
    events = json.loads(timeline.to_perfetto(tmp_path / "out.json").read_text("utf-8"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    tracks = {}
    for event in slices:
        tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))

    assert set(range(timeline.graph.num_tasks)) == {event["args"]["task"] for event in slices}
    for spans in tracks.values():
        spans.sort()
        assert all(after[0] >= before[1] - 1e-3 for before, after in pairwise(spans))


def test_a_perfetto_export_marks_slack_and_the_critical_path(tmp_path):
    builder = GraphBuilder()
    first, other = builder.task("a", duration_ns=3000), builder.task("b", duration_ns=1000)
    last = builder.task("c", duration_ns=500)
    builder.edge(first, last)
    builder.edge(other, last)
    path = replay(builder.build()).to_perfetto(tmp_path / "out.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    args = [event["args"] for event in events if event["ph"] == "X"]

    assert [True, False, True] == [arg["critical"] for arg in args]
    assert [0.0, 2.0, 0.0] == [arg["slack_us"] for arg in args]
    assert 2 == sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events)


def test_hostile_names_change_nothing_but_the_text_shown(tmp_path):
    builder = GraphBuilder()
    queue = builder.resource("\ud800<script>alert(1)</script>")
    for name in [*NAMES, "x" * 10_000_000]:
        builder.task(name, duration_ns=5, resource=queue)
    path = replay(builder.build()).to_perfetto(tmp_path / "out.json")
    names = [event["name"] for event in json.loads(path.read_bytes())["traceEvents"] if event["ph"] == "X"]

    assert [name.encode("utf-8", "replace").decode() for name in NAMES] == names[:-1]
    assert 1000 == len(names[-1])
    assert path.stat().st_size < 20_000


def test_few_arrows_are_drawn_and_the_rest_counted(tmp_path):
    builder = GraphBuilder()
    tasks = [builder.task(str(i), duration_ns=10 - i) for i in range(10)]
    last = builder.task("last", duration_ns=1)
    for task in tasks:
        builder.edge(task, last)
    document = json.loads(replay(builder.build()).to_perfetto(tmp_path / "out.json", max_flows=1).read_bytes())
    arrows = [event for event in document["traceEvents"] if event["ph"] == "s"]

    assert {"tool": "windtunnel", "edges": 10, "edges_drawn": 1} == document["otherData"]
    assert [0] == [arrow["id"] for arrow in arrows]  # the edge of the critical path


def test_a_failed_export_leaves_no_file_behind(tmp_path):
    builder = GraphBuilder()
    builder.task("a", duration_ns=1)
    timeline = replay(builder.build())
    (tmp_path / "out.json").mkdir()
    with pytest.raises(OSError, match=r"out\.json"):
        timeline.to_perfetto(tmp_path / "out.json")

    assert ["out.json"] == [path.name for path in tmp_path.iterdir()]
