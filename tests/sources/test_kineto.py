"""Kineto traces as graphs: what becomes a task, what becomes an edge, and what a replay of it says."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from tests.shared_data import find_shared, shared_path
from tests.sources.kineto_traces import annotation, call, kernel, op, traces, write
from windtunnel import registry
from windtunnel.errors import InputError, NotApplicableError, TraceError, WindtunnelError
from windtunnel.graph import EdgeKind, GraphBuilder, Kind, Phase, ProcessGroup, ResourceKind
from windtunnel.reports import explain
from windtunnel.simulate import replay
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.timeline import TimelineRules
from windtunnel.sources.timeline.explain import explain_device_tasks

FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
SHIPPED = [
    *("critical_path/alexnet_fwd_two_streams", "critical_path/cuda_event_sync", "execution_trace/linear_kineto"),
    *("execution_trace/simple_add_kineto", "kineto/amd_mi250_toy_train", "kineto/cpu_only_gloo_rank34_of_300"),
    *("kineto/nccl_collectives_rank0_of_2", "kineto/resnet_v100_train_ns", "kineto/sampled_rank0_of_128"),
    *("kineto/train_rank3_of_8", "kineto/triton_cuda_driver_launch"),
    *(f"kineto_dlrm_8ranks/rank{rank}" for rank in range(8)),
]


@pytest.fixture
def load(tmp_path):
    def write_and_load(events, top=(), **options):
        return load_kineto(write(tmp_path / "trace.json", events, **dict(top)), **options)

    return write_and_load


def names(graph):
    return graph.tasks.strings("name").to_numpy().tolist()


def row(graph, name, kind=None):
    rows = np.flatnonzero(graph.select(name=name, kind=kind))
    assert 1 == len(rows)
    return int(rows[0])


def edges(graph, kind):
    """(source name, target name, lag) of every edge of a kind."""
    shown = names(graph)
    rows = np.flatnonzero(graph.edges["kind"] == kind)
    return [(shown[graph.edges["src"][e]], shown[graph.edges["dst"][e]], int(graph.edges["lag_ns"][e])) for e in rows]


def worst_start_error_ns(graph):
    return int(np.abs(replay(graph).start_ns - graph.tasks["start_ns"]).max())


# --- identity: nothing changed, nothing changes -----------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_an_unchanged_replay_starts_every_task_of_a_real_trace_when_it_was_measured(name):
    graph = load_kineto(shared_path(f"replay/{name}.json.gz"))

    assert 0 == worst_start_error_ns(graph)


@given(traces())
def test_an_unchanged_replay_of_any_trace_is_within_a_microsecond(tmp_path_factory, events):
    path = write(tmp_path_factory.mktemp("law") / "t.json", events)
    try:
        graph = load_kineto(path)
    except WindtunnelError as error:
        message = str(error)
        assert "no complete events" in message
    else:
        assert worst_start_error_ns(graph) <= 1000


def test_faster_kernels_change_nothing_where_the_host_is_what_takes_time():
    graph = load_kineto(
        shared_path("replay/critical_path/alexnet_fwd_two_streams.json.gz"), window=FORWARD, occurrence=1
    )
    before = replay(graph).makespan_ns
    on_device = graph.resources["kind"][graph.tasks["resource"]] == ResourceKind.STREAM

    halved = replay(graph.scale(on_device, 0.5)).makespan_ns
    warm = replay(graph.remove(graph.select(name="cudaMalloc"))).makespan_ns

    assert 40 == on_device.sum()
    assert abs(halved / before - 1) < 0.005
    assert warm / before - 1 < -0.9


# --- threads --------------------------------------------------------------------------------------------


def test_nested_operators_become_the_pieces_that_the_thread_ran(load):
    graph = load([op("A", 0, 100), op("B", 10, 20), op("C", 50, 10)])

    assert ["A", "B", "A", "C", "A"] == names(graph)
    assert [10_000, 20_000, 20_000, 10_000, 40_000] == graph.duration_ns.tolist()
    assert 100_000 == replay(graph).makespan_ns


def test_scaling_an_operator_scales_only_its_own_time(load):
    graph = load([op("A", 0, 100), op("B", 10, 20)])

    assert 100_000 - 40_000 == replay(graph.scale(graph.select(name="A"), 0.5)).makespan_ns


def test_time_that_no_event_covers_is_the_lag_between_two_tasks(load):
    graph = load([op("A", 0, 10), op("B", 35, 5)])

    assert [("A", "B", 25_000)] == edges(graph, EdgeKind.ORDER)


def test_long_gaps_are_counted_when_asked(load):
    events = [op("A", 0, 10), op("B", 35, 5), op("C", 1040, 5)]

    told = load(events, rules=TimelineRules(max_gap_ns=20_000)).meta.trace

    assert {"number": 2, "longest_ns": 1_000_000, "sum_ns": 1_025_000} == told["gaps of threads"]
    assert "gaps of threads" not in load(events).meta.trace


def test_rules_below_zero_are_refused():
    with pytest.raises(InputError, match="return_ns is -1"):
        TimelineRules(return_ns=-1)


def test_annotations_are_no_tasks_and_their_own_time_is_a_gap(load):
    graph = load([annotation("## forward ##", 0, 100), op("A", 10, 10), op("B", 30, 10)])

    assert [("A", "B", 10_000)] == edges(graph, EdgeKind.ORDER)
    assert [Phase.FORWARD] * 2 == graph.tasks["phase"].tolist()


def test_a_child_that_outlives_its_parent_is_cut_and_counted_beyond_rounding(load):
    rounded = load([op("A", 0, 10), op("B", 5, 5.5)])
    outlived = load([op("A", 0, 10), op("B", 5, 20)])

    assert [5_000, 5_000] == rounded.duration_ns.tolist() == outlived.duration_ns.tolist()
    assert "host events cut at the end of their parent" not in rounded.meta.trace
    assert "event 1" == outlived.meta.trace["first of them"]


def test_work_that_another_thread_did_in_a_gap_was_handed_off(load):
    """The autograd thread works while the main thread waits in backward()."""
    graph = load([op("loss", 0, 100), op("evaluate", 150, 800, tid=2), op("step", 1000, 50)])

    assert [("loss", "evaluate", 50_000), ("evaluate", "step", 50_000)] == edges(graph, EdgeKind.CONTROL)
    assert [("loss", "step", 0)] == edges(graph, EdgeKind.ORDER)
    assert 650_000 == replay(graph.scale(graph.select(name="evaluate"), 0.5)).makespan_ns


def test_a_thread_that_only_polls_does_not_hold_the_step_up(load):
    """A watchdog looks every 100 µs; when the work takes half as long, it has less to watch."""
    polls = [call("cudaEventQuery", 100 * n, 2, 50 + n, tid=9) for n in range(1, 10)]
    graph = load([*(op("work", 46 * n, 46) for n in range(20)), *polls])

    assert 0 == worst_start_error_ns(graph)
    assert 460_000 + 50_000 > replay(graph.scale(graph.select(name="work"), 0.5)).makespan_ns


def test_threads_that_work_at_the_same_time_do_not_wait_for_each_other(load):
    graph = load([op("A", 0, 100), op("B", 120, 100), op("L", 5, 300, tid=2)])

    assert [("A", "B", 20_000)] == edges(graph, EdgeKind.ORDER)
    assert 220_000 == replay(graph.scale(graph.select(name="L"), 0.0)).makespan_ns


def test_a_thread_that_goes_on_shortly_after_another_ends_was_waiting_for_it(load):
    graph = load([op("ask", 0, 100), op("work", 200, 2810, tid=2), op("go on", 3060, 10)])

    assert ("work", "go on", 50_000) in {one for kind in EdgeKind for one in edges(graph, kind)}
    assert 3_070_000 == replay(graph).makespan_ns
    assert 3_070_000 - 1_405_000 == replay(graph.scale(graph.select(name="work"), 0.5)).makespan_ns


def test_a_host_collective_starts_with_its_issue_and_holds_up_who_waits_for_it(load):
    events = [
        op("c10d::allreduce_", 0, 10),
        annotation("gloo:all_reduce", 20, 500, tid=9),
        op("copy", 540, 10),
    ]

    graph = load(events)
    comm = row(graph, "gloo:all_reduce")

    assert Kind.COMM == graph.tasks["kind"][comm]
    assert "all_reduce" == graph.tasks.strings("op").decode(comm)
    assert 0 == worst_start_error_ns(graph)
    assert 300_000 == replay(graph.scale(graph.select(kind=Kind.COMM), 0.5)).makespan_ns


def test_forward_and_backward_are_joined_by_their_sequence_number(load):
    backward = "autograd::engine::evaluate_function: MmBackward0"
    graph = load(
        [
            annotation("encoder", 0, 10),
            op("aten::mm", 1, 5, **{"Sequence number": 3, "Fwd thread id": 0}),
            op(backward, 50, 5, tid=2, **{"Sequence number": 3, "Fwd thread id": 1}),
        ]
    )

    assert [("aten::mm", backward, 0)] == edges(graph, EdgeKind.DATA)
    assert [Phase.FORWARD, Phase.BACKWARD] == graph.tasks["phase"].tolist()
    assert ["encoder", "encoder"] == graph.tasks.strings("layer").to_numpy().tolist()


def test_modules_give_the_path_of_a_layer(load):
    module = [
        op(f"nn.Module: {name}", ts, dur, cat="python_function")
        for name, ts, dur in (("Net_0", 0, 90), ("Linear_1", 10, 50))
    ]

    graph = load([*module, annotation("## mine ##", 0, 95), op("aten::addmm", 20, 5), op("aten::relu", 70, 5)])

    assert ["Net_0.Linear_1", "Net_0"] == graph.tasks.strings("layer").to_numpy().tolist()


# --- devices --------------------------------------------------------------------------------------------


def launch(name, ts, correlation, start, dur, stream=7, **args):
    """A launching call of 5 µs and its device task."""
    return [call("launchAnything", ts, 5, correlation), kernel(name, start, dur, correlation, stream, **args)]


def test_a_launch_is_matched_by_correlation_whatever_its_name(load):
    graph = load([*launch("gemm", 0, 4, 12, 30), call("unrelated", 6, 1, 9)])

    assert [("launchAnything", "gemm", 12_000)] == edges(graph, EdgeKind.LAUNCH)
    assert ResourceKind.STREAM == graph.resources["kind"][graph.tasks["resource"][row(graph, "gemm")]]
    assert "GPU 0 stream 7" in graph.resources.strings("name").to_numpy().tolist()


def test_waiting_in_a_stream_is_no_cost_of_the_launch(load):
    """Three kernels are queued; when they get twice as fast, so does the device."""
    graph = load([*launch("a", 0, 1, 10, 100), *launch("b", 10, 2, 110, 100), *launch("c", 20, 3, 210, 100)])

    assert [("launchAnything", name, 10_000) for name in "abc"] == edges(graph, EdgeKind.LAUNCH)
    faster = graph.scale(graph.select(kind=Kind.COMPUTE), 0.5)
    assert 160_000 == replay(faster).makespan_ns


def test_a_graph_launch_starts_all_its_kernels_and_branches_run_side_by_side(load):
    kernels = [kernel(name, ts, 20, 5) for name, ts in (("x", 10), ("y", 15), ("z", 40))]

    graph = load([call("cudaGraphLaunch", 0, 5, 5), *kernels])

    assert {"x", "y", "z"} == {target for _, target, _ in edges(graph, EdgeKind.LAUNCH)}
    assert 1 == graph.meta.trace["device tasks that overlap on one stream"]
    assert "GPU 0 stream 7 lane 1" in graph.resources.strings("name").to_numpy().tolist()
    assert 0 == worst_start_error_ns(graph)


def test_a_kernel_without_launch_is_kept_at_its_time_and_counted(load):
    graph = load([op("A", 0, 10), kernel("orphan", 40, 10, 77)])

    assert 1 == graph.meta.trace["device tasks without launch"]
    assert 40_000 == graph.tasks["earliest_ns"][row(graph, "orphan")]
    assert 0 == worst_start_error_ns(graph)


def test_an_accelerator_that_no_one_knows_is_told_by_its_arguments(load):
    task = {**kernel("gemm", 12, 30, 4, cat="quantum_workload")}
    submit = {**call("submit", 0, 5, 4), "cat": "quantum_control"}

    graph = load([op("aten::mm", 0, 8), submit, task])

    assert [("submit", "gemm", 12_000)] == edges(graph, EdgeKind.LAUNCH)


def test_work_tied_to_its_operator_only_by_external_id_is_launched_by_it(load):
    task = kernel("gemm", 12, 30, 0)
    task["args"] = {"stream": 1, "device": 0, "External id": 8}

    graph = load([op("aten::mm", 0, 5, **{"External id": 8}), task])

    assert [("aten::mm", "gemm", 12_000)] == edges(graph, EdgeKind.LAUNCH)


def test_an_id_that_is_used_twice_belongs_to_the_latest_call_before(load):
    graph = load([*launch("early", 0, 4, 10, 5), *launch("late", 100, 4, 108, 5)])

    assert [("launchAnything", "early", 10_000), ("launchAnything", "late", 8_000)] == edges(graph, EdgeKind.LAUNCH)
    assert 1 == graph.meta.trace["calls with a correlation id used before"]


def test_processes_in_one_file_keep_their_own_ids(load):
    """Both count their launches from 1; each drives a device of its own."""
    events = []
    for device, (pid, begins) in enumerate([(11, (0, 100, 200)), (22, (40, 60, 230))]):
        for n, begin in enumerate(begins):
            submit = {**call("launch", begin, 5, n), "pid": pid}
            task = kernel(f"gemm{device}", begin + 10, 20, n)
            events += [submit, {**task, "pid": device, "args": {**task["args"], "device": device}}]

    graph = load(events)

    process = graph.resources.strings("name").to_numpy()[graph.tasks["resource"]]
    launches = np.flatnonzero(graph.edges["kind"] == EdgeKind.LAUNCH)
    pairs = {(process[graph.edges["src"][e]], process[graph.edges["dst"][e]]) for e in launches}
    assert {("main thread (pid 11 tid 1)", "GPU 0 stream 7"), ("main thread (pid 22 tid 1)", "GPU 1 stream 7")} == pairs


def test_a_blocking_call_keeps_only_its_own_work(load):
    """The measured wait must vanish when the device gets faster."""
    events = [*launch("gemm", 0, 1, 10, 500), call("cudaDeviceSynchronize", 20, 495, 2), op("next", 515, 10)]

    graph = load(events)

    assert 0 == graph.duration_ns[row(graph, "cudaDeviceSynchronize", Kind.HOST)]
    assert [("gemm", "cudaDeviceSynchronize", 5_000)] == edges(graph, EdgeKind.SYNC)
    assert 525_000 == replay(graph).makespan_ns
    assert 275_000 == replay(graph.scale(graph.select(name="gemm"), 0.5)).makespan_ns


def test_a_blocking_call_that_waited_for_nothing_keeps_its_duration(load):
    events = [*launch("gemm", 0, 1, 10, 5), call("cudaDeviceSynchronize", 20, 30, 2)]

    assert 30_000 == load(events).duration_ns.max()


def test_a_copy_from_pageable_memory_holds_its_caller(load):
    events = [
        call("cudaMemcpyAsync", 0, 60, 1),
        kernel("Memcpy DtoH (Device -> Pageable)", 10, 45, 1, cat="gpu_memcpy"),
    ]

    graph = load([*events, op("next", 60, 5)])

    assert 20_000 == replay(graph.scale(graph.select(kind=Kind.COPY), 0.0)).makespan_ns
    assert 65_000 == replay(graph).makespan_ns


def sync(name, ts, dur, correlation, stream, **args):
    return kernel(name, ts, dur, correlation, stream, "cuda_sync", cuda_sync_kind=name, **args)


def test_a_stream_waits_for_an_event_of_another_stream(load):
    events = [
        *launch("producer", 0, 1, 10, 200, stream=7),
        call("cudaEventRecord", 10, 2, 2),
        *launch("unrelated", 14, 3, 210, 50, stream=7),
        call("cudaStreamWaitEvent", 22, 2, 4),
        sync("Stream Wait Event", 22, 1, 4, 9, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
        *launch("consumer", 30, 5, 212, 20, stream=9),
    ]

    graph = load(events)

    assert [("producer", "consumer", 2_000)] == edges(graph, EdgeKind.SYNC)
    assert {"event-wait": 1} == {k: n for k, n in explain_device_tasks(graph).count().items() if k == "event-wait"}
    assert (
        40_000 + 20_000
        >= replay(graph.scale(graph.select(name="producer|unrelated"), 0.0)).finish_ns[row(graph, "consumer")]
    )


def test_a_wait_between_streams_is_inferred_where_no_event_tells(load):
    events = [*launch("producer", 0, 1, 10, 200, stream=7), *launch("consumer", 30, 5, 212, 20, stream=9)]
    quick = [*launch("q", 300, 8, 310, 5, stream=9)]

    graph = load([*events, *quick])

    assert [("producer", "consumer", 2_000)] == edges(graph, EdgeKind.SYNC)


@pytest.mark.parametrize("is_launched_in_the_trace", [True, False])
def test_a_wait_for_a_collective_is_inferred_where_the_host_runs_far_ahead(load, is_launched_in_the_trace):
    """Every task that found its stream idle waited for a collective: a long delay from the launch is no usual one."""
    events = []
    for turn in range(4):
        begin = 40_000 + 10_000 * turn
        parts = [("compute", begin, 900, 7), ("ncclDevKernel", begin + 1_000, 8_000, 9), ("copy", begin + 9_018, 5, 7)]
        for place, (name, start, length, stream) in enumerate(parts):
            launched = launch(f"{name}{turn}", 30 * turn + 10 * place, 3 * turn + place, start, length, stream=stream)
            events += launched if is_launched_in_the_trace else launched[-1:]

    graph = load([*events, op("A", 0, 5)])

    waits = {(src, dst) for src, dst, _ in edges(graph, EdgeKind.SYNC)}
    assert {(f"ncclDevKernel{turn}", f"copy{turn}") for turn in range(4)} <= waits
    if is_launched_in_the_trace:  # else collectives start when they did, for reasons before the trace
        shorter = replay(graph.scale(graph.select(name="ncclDevKernel."), 0.0))
        assert shorter.makespan_ns <= replay(graph).makespan_ns - 4 * 7_900_000


def test_operators_of_modules_are_a_forward_pass_without_gradients_too(load):
    inference = [op("nn.Module: Net_0", 0, 50, cat="python_function"), op("aten::mm", 10, 20), op("aten::add", 60, 5)]

    graph = load(inference)

    assert Phase.FORWARD == graph.tasks["phase"][row(graph, "aten::mm")]
    assert Phase.FORWARD != graph.tasks["phase"][row(graph, "aten::add")]


def test_exposed_communication_is_explained(load):
    events = [*launch("gemm", 0, 1, 10, 100, stream=7), *launch("ncclDevKernel_AllReduce", 5, 2, 60, 200, stream=9)]

    explained = explain(load(events))

    assert (200_000, 150_000) == (explained.communication_ns, explained.exposed_ns)
    assert "communication 200 µs an iteration, 150 µs of it exposed" in str(explained)


def test_synchronizing_a_stream_waits_for_that_stream_only(load):
    events = [
        *launch("awaited", 0, 1, 10, 100, stream=7),
        *launch("other", 6, 2, 16, 300, stream=9),
        call("cudaStreamSynchronize", 20, 95, 3),
        sync("Stream Sync", 21, 90, 3, 7),
    ]

    assert [("awaited", "cudaStreamSynchronize", 5_000)] == edges(load(events), EdgeKind.SYNC)


def test_tasks_say_why_they_started_when_they_did(load):
    launches = [*launch("first", 0, 1, 10, 100), *launch("queued", 10, 2, 110, 10), *launch("odd", 20, 3, 900, 10)]

    starts = explain_device_tasks(load(launches))

    assert {"launch-bound": 1, "stream-bound": 1, "unexplained": 1} == {k: n for k, n in starts.count().items() if n}
    assert 778_000 == starts.unexplained_ns.sum()
    assert "neither launch nor stream nor event" in starts.warning
    assert ["first", "queued", "odd"] == starts.table()["name"].to_pylist()
    assert "3 device tasks" in str(starts)


def test_a_graph_without_device_has_nothing_to_explain(load):
    starts = explain_device_tasks(load([op("A", 0, 5)]))

    assert (0, 0.0, "") == (len(starts.task), starts.unexplained_ratio, starts.warning)


def test_explaining_needs_a_trace():
    builder = GraphBuilder()
    builder.task("A", duration_ns=5)

    with pytest.raises(NotApplicableError, match="does not say why"):
        explain_device_tasks(builder.build())


# --- windows, collectives, memory ---------------------------------------------------------------------------


def test_a_window_holds_what_was_launched_in_it_also_if_it_runs_later(load):
    events = [
        *launch("before", 0, 1, 10, 200),
        annotation("ProfilerStep#1", 100, 50),
        *launch("inside", 110, 2, 212, 30),
        op("late", 145, 20),
        op("after", 170, 5),
    ]

    graph = load(events, window="ProfilerStep#1")

    assert ["launchAnything", "late", "inside"] == names(graph)
    assert [10_000, 45_000, 112_000] == graph.tasks["start_ns"].tolist()
    assert 112_000 == graph.tasks["earliest_ns"][2]  # what it queued behind lies outside
    assert 0 == worst_start_error_ns(graph)
    assert 50_000 == graph.meta.window["duration_ns"]


def test_steps_of_the_profiler_number_the_iterations(load):
    steps = [annotation(f"ProfilerStep#{n}", 100 * n, 90) for n in (1, 2)]

    graph = load([*steps, op("A", 110, 5), *launch("k", 180, 1, 250, 5), op("B", 210, 5)])

    iteration = dict(zip(names(graph), graph.tasks["iteration"].tolist(), strict=True))
    assert {"A": 0, "launchAnything": 0, "k": 0, "B": 1} == iteration
    assert 90_000 == graph.meta.profiled_iteration_ns["median"]


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op", "Operator", "gpu_user_annotation"])
def test_every_step_is_an_iteration_however_its_mark_is_filed(load, category):
    """Profilers before annotations wrote the marks as operators; a trace of devices alone has them there."""
    marks = [op(f"ProfilerStep#{n}", 100 * n, 90, cat=category) for n in range(5)]

    graph = load([*marks, *(op("A", 100 * n + 10, 5) for n in range(5))])

    assert 5 == graph.num_iterations
    assert ["A"] * 5 == [name for name in names(graph) if name]


def test_marks_of_one_step_on_two_threads_are_one_iteration(load):
    marks = [annotation(f"ProfilerStep#{n}", 100 * n + tid, 90, tid) for n in range(3) for tid in (1, 2)]

    graph = load([*marks, *(op("A", 100 * n + 10, 5) for n in range(3))])

    assert 3 == graph.num_iterations


def test_an_occurrence_of_a_window_is_counted_from_the_first_or_the_last(load):
    events = [event for n in range(3) for event in (annotation("step", 100 * n, 50), op(f"op{n}", 100 * n + 5, 5))]

    assert ["op1"] == names(load(events, window="step", occurrence=1))
    assert ["op2"] == names(load(events, window="step", occurrence=-1))
    assert ["op0", "op1", "op2"] == names(load(events, window="step"))


def test_a_window_without_work_is_told(load):
    with pytest.raises(TraceError, match="nothing runs inside the window"):
        load([annotation("empty", 50, 5), op("A", 0, 5)], window="empty")


def test_collectives_carry_their_bytes_and_group(load):
    told = {"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, "dtype": "BFloat16"}
    told |= {"Process Group Name": "0", "Process Group Ranks": [0, 1], "Seq": 4}
    issue = op("record_param_comms", 0, 20, **told)

    graph = load([issue, call("cudaLaunchKernel", 5, 5, 1), kernel("ncclDevKernel_Generic", 15, 50, 1)])

    comm = row(graph, "ncclDevKernel_Generic")
    assert Kind.COMM == graph.tasks["kind"][comm]
    assert "all_reduce" == graph.tasks.strings("op").decode(comm)
    assert (200, 4) == (graph.tasks["message_bytes"][comm], graph.tasks["sequence"][comm])
    assert (ProcessGroup("0", (0, 1)),) == graph.meta.groups
    assert 0 == graph.tasks["group"][comm]


def test_allocations_are_held_by_the_task_that_made_them_until_the_one_that_freed_them(load):
    def memory(ts, size, address, total):
        args = {"Bytes": size, "Addr": address, "Total Allocated": total, "Device Type": 0}
        return {"ph": "i", "name": "[memory]", "pid": 100, "tid": 1, "ts": ts, "args": args}

    changes = [memory(2, 512, 1, 612), memory(22, 1024, 2, 1636), memory(25, -1024, 2, 612), memory(45, -512, 1, 100)]

    graph = load([op("A", 0, 10), op("B", 20, 10), op("C", 40, 10), *changes])

    assert [512, 0, 0] == graph.tasks["output_bytes"].tolist()
    assert [0, 1024, 0] == graph.tasks["workspace_bytes"].tolist()
    assert [0, 0, 512] == graph.tasks["freed_bytes"].tolist()
    assert 100 + 512 + 1024 == replay(graph).memory().peak_bytes


def test_ranks_and_clocks_are_kept(load):
    top = {"distributedInfo": {"rank": 3, "world_size": 8}, "baseTimeNanoseconds": 1_000_000}

    graph = load([op("A", 7, 10)], top)

    assert [3] == graph.tasks["rank"].tolist()
    assert 1_007_000 == graph.meta.origin_ns


def test_what_is_no_task_is_counted_by_reason(load):
    events = [op("A", 0, 5), op("x", 0, 5, cat="overhead"), {"ph": "C", "name": "counter", "ts": 1}]

    counts = load(events).meta.trace

    assert {"ph X": 2, "ph C": 1} == counts["events"]
    assert {"overhead": 1} == counts["categories that are no tasks"]


def test_on_a_machine_without_device_the_operators_are_the_computation(load):
    graph = load([op("aten::linear", 0, 20), op("aten::addmm", 5, 10)])

    assert [Kind.HOST, Kind.COMPUTE, Kind.HOST] == graph.tasks["kind"].tolist()
    assert 1.0 == graph.meta.other_ratio


def test_an_operator_computes_itself_also_where_it_asks_for_room_or_leaves_a_sum_to_another(load):
    names = ["aten::empty", "aten::sum", "aten::as_strided_"]
    inner = [op(name, 5 + 5 * place, 1) for place, name in enumerate(names)]
    graph = load([op("aten::convolution_backward", 0, 20), *inner])
    kinds = dict(zip(graph.tasks.strings("op").to_numpy(), graph.tasks["kind"].tolist(), strict=True))

    assert {Kind.COMPUTE} == {kinds["aten::convolution_backward"], kinds["aten::sum"]}
    assert {Kind.HOST} == {kinds["aten::empty"], kinds["aten::as_strided_"]}
    assert 17_000 == graph.duration_ns[graph.select(op="aten::convolution_backward", kind=Kind.COMPUTE)].sum()


def test_the_reader_is_registered_with_its_source():
    assert load_kineto is registry.get("source", "kineto").function


def test_public_collectives_have_the_published_counts():
    graph = load_kineto(shared_path("replay/kineto/nccl_collectives_rank0_of_2.json.gz"))
    comm = graph.select(kind=Kind.COMM)
    operators = graph.tasks.strings("op").to_numpy()[comm].tolist()

    assert (15, 6) == (operators.count("all_reduce"), operators.count("broadcast"))
    assert (graph.tasks["message_bytes"][comm] > 0).all()


def test_public_ranks_hold_the_published_number_of_tasks_without_launch():
    counts = [
        load_kineto(shared_path(f"replay/kineto_dlrm_8ranks/rank{rank}.json.gz")).meta.trace.get(
            "device tasks without launch", 0
        )
        for rank in range(8)
    ]

    assert [0, 64, 0, 64, 0, 0, 0, 0] == counts


def test_the_data_finder_and_the_list_of_traces_agree():
    folder = find_shared("replay")
    if folder is None:
        pytest.skip("the public traces are not here")

    assert all((folder / f"{name}.json.gz").exists() for name in SHIPPED)


def test_a_loaded_graph_survives_json_of_its_meta(load):
    graph = load([*launch("k", 0, 1, 10, 5)], {"deviceProperties": [{"id": 0, "name": "chip"}]})

    assert "chip" in json.dumps(graph.meta.to_dict())


@pytest.mark.parametrize(
    "devices", [[7, {"name": "chip"}], {"name": "chip"}, [{"name": 7}], [{"totalGlobalMem": "big"}]]
)
def test_devices_that_a_trace_does_not_describe_are_no_devices(load, devices):
    graph = load([*launch("k", 0, 1, 10, 5)], {"deviceProperties": devices})

    assert ([{"name": "chip"}] if 7 in devices else []) == graph.meta.hardware["devices"]
    assert "k" in str(explain(graph))


def test_how_much_is_unexplained_is_said_in_percent_of_the_time_that_streams_were_in_use(load):
    graph = load([*launch("gemm", 0, 1, 10, 100), *launch("relu", 2, 2, 110, 90)])
    found = explain_device_tasks(graph)
    half = replace(found, unexplained_ns=np.array([50_000, 0]), span_ns=200_000)

    assert 0.25 == half.unexplained_ratio
    assert "2 device tasks: " in str(half)
    assert "(50.0 µs, 25.0 %)" in str(half)
    assert half.warning.startswith("25.0 % of the streams' time went by before starts")
    assert "" == replace(half, unexplained_ns=np.array([0, 0])).warning
    assert 0.0 == replace(half, span_ns=0).unexplained_ratio
