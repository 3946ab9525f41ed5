"""Tables of what a trace recorded: values computed by hand, and what holds for any trace."""

import csv
import io
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.command import windtunnel
from tests.sources.kineto_traces import annotation, call, kernel, op, traces, write
from windtunnel.errors import InputError, NotApplicableError, WindtunnelError
from windtunnel.graph import save
from windtunnel.sources.kineto.reader import load_kineto, read_tables
from windtunnel.sources.timeline.intervals import exclusive_ns_by_set, length_ns, merge_intervals
from windtunnel.sources.timeline.tables import TABLES, TableRules

# two streams: 7 computes, waits for its launch, for the next kernel's start and for the collective of stream 9
EVENTS = [
    op("aten::mm", 0, 4),
    call("cudaLaunchKernel", 0, 4, 1),
    kernel("gemm", 10, 100, 1),  # 10 .. 110
    call("cudaLaunchKernel", 20, 60, 2),
    kernel("gemm", 112, 40, 2),  # queued: a gap of 2
    call("cudaLaunchKernel", 200, 4, 3),
    kernel("relu", 210, 3, 3),  # called after the stream was empty: a gap of 58
    call("cudaLaunchKernel", 205, 4, 4),
    kernel("ncclKernel_AllReduce_RING", 140, 260, 5, stream=9),  # 140 .. 400
    call("cudaLaunchKernel", 130, 5, 5),
    kernel("update", 400, 10, 4),  # called long before, and the stream was empty: a gap of 187
    call("cudaMemcpyAsync", 405, 5, 6),
    kernel("Memcpy DtoH (Device -> Pageable)", 500, 20, 6, cat="gpu_memcpy"),
]


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "trace.json", EVENTS)


def rows_of(trace, name, **rules):
    return read_tables(trace, rules=TableRules(**rules)).table(name).to_pylist()


def test_idle_is_what_no_kernel_covers_and_non_compute_what_no_computation_covers(trace):
    (row,) = rows_of(trace, "temporal")

    assert (92_000, 153_000, 265_000, 510_000) == tuple(
        row[f"{part}_ns"] for part in ("idle", "compute", "non_compute", "kernel")
    )
    assert 1.0 == sum(row[f"{part}_ratio"] for part in ("idle", "compute", "non_compute"))


def test_a_stream_waits_for_the_host_for_the_next_kernel_or_for_something_else(trace):
    idle = {(row["stream"], row["cause"]): (row["idle_ns"], row["num_gaps"]) for row in rows_of(trace, "idle")}

    assert {
        ("7", "host wait"): (58_000, 1),
        ("7", "kernel wait"): (2_000, 1),
        ("7", "other"): (187_000 + 90_000, 2),
        ("9", "host wait"): (0, 0),
        ("9", "kernel wait"): (0, 0),
        ("9", "other"): (0, 0),
    } == idle


def test_the_limit_below_which_a_gap_is_a_kernels_own_can_be_moved(trace):
    idle = {(row["stream"], row["cause"]): row["idle_ns"] for row in rows_of(trace, "idle", kernel_wait_ns=1_000)}

    assert (0, 2_000 + 187_000 + 90_000) == (idle["7", "kernel wait"], idle["7", "other"])


def test_communication_is_overlapped_where_computation_runs_beside_it(trace):
    """140 to 152, 210 to 213 of 140 to 400."""
    (row,) = rows_of(trace, "overlap")

    assert (260_000, 15_000) == (row["communication_ns"], row["overlapped_ns"])
    assert 15 / 260 == row["overlap_ratio"]


def test_a_queue_grows_with_a_launch_and_shrinks_when_its_kernel_begins(trace):
    series = [(row["time_ns"], row["queue_length"]) for row in rows_of(trace, "queue-series") if row["stream"] == "7"]
    (summary,) = [row for row in rows_of(trace, "queue") if row["stream"] == "7"]

    times = [0, 10, 20, 112, 200, 205, 210, 400, 405, 500]
    assert list(zip([1000 * time for time in times], [1, 0, 1, 0, 1, 2, 1, 0, 1, 0], strict=True)) == series
    assert (10, 0.7, 0, 1, 1, 2) == tuple(summary[name] for name in ("num_changes", "mean", "min", "p50", "p75", "max"))


def test_a_launch_is_short_slow_or_late(trace):
    """Two kernels are shorter than their calls, one call takes 60 µs, one kernel starts 191 µs after its call."""
    (row,) = rows_of(trace, "launch")

    assert (6, 2, 1, 1) == tuple(row[name] for name in ("num_launches", "num_short", "num_slow_calls", "num_late"))
    launches = {row["correlation"]: row for row in rows_of(trace, "launches")}
    assert (60_000, 40_000, 32_000) == tuple(launches[2][name] for name in ("call_ns", "device_ns", "delay_ns"))
    assert "update" == launches[4]["name"]


def test_kernels_are_summed_by_kind_and_name_the_longest_first(trace):
    rows = rows_of(trace, "kernels")

    assert [
        ("computation", "gemm", 2, 140_000, 100_000, 40_000, 70_000.0, math.sqrt(2) * 30_000),
        ("computation", "update", 1, 10_000, 10_000, 10_000, 10_000.0, 0.0),
        ("computation", "relu", 1, 3_000, 3_000, 3_000, 3_000.0, 0.0),
        ("communication", "ncclKernel_AllReduce_RING", 1, 260_000, 260_000, 260_000, 260_000.0, 0.0),
        ("memory", "Memcpy DtoH (Device -> Pageable)", 1, 20_000, 20_000, 20_000, 20_000.0, 0.0),
    ] == [(*list(row.values())[1:-1], pytest.approx(row["std_ns"])) for row in rows]


def test_kernels_beyond_the_first_ones_share_a_row_with_their_own_statistics(trace):
    rows = [row for row in rows_of(trace, "kernels", num_kernels=1) if row["kind"] == "computation"]

    assert [("gemm", 2, 140_000), ("others", 2, 13_000)] == [(r["name"], r["num"], r["sum_ns"]) for r in rows]
    assert (10_000, 3_000) == (rows[1]["max_ns"], rows[1]["min_ns"])


def test_time_is_divided_by_what_runs_together(trace):
    assert {
        "communication": 245_000,
        "computation": 150_000 - 12_000,
        "memory": 20_000,
        "computation overlapping communication": 15_000,
    } == {row["kinds"]: row["sum_ns"] for row in rows_of(trace, "kinds")}


def test_the_last_of_several_steps_is_left_out_and_said(tmp_path):
    """The profiler stops before the kernels of the last step end."""
    steps = [annotation("ProfilerStep#1", 0, 199), annotation("ProfilerStep#2", 199, 400)]
    path = write(tmp_path / "trace.json", [*EVENTS, *steps])

    tables = read_tables(path)

    assert 3 == tables.table("launch").to_pylist()[0]["num_launches"]
    assert tables.note == "without the last of 2 profiler steps, which may be cut (3 device events)"


def test_ranks_of_a_folder_are_rows_in_their_order(tmp_path):
    for rank, shift in ((1, 0), (0, 1000)):
        moved = [{**event, "ts": event["ts"] + shift} for event in EVENTS]
        write(tmp_path / f"trace{rank}.json", moved, distributedInfo={"rank": rank})

    assert [(0, 92_000), (1, 92_000)] == [(row["rank"], row["idle_ns"]) for row in rows_of(tmp_path, "temporal")]


def test_waits_on_a_stream_are_no_work_unless_the_other_tools_numbers_are_wanted(tmp_path):
    path = write(tmp_path / "t.json", [*EVENTS, kernel("Stream Sync", 420, 80, 9, 7, "cuda_sync")])

    assert (92_000, 12_000) == tuple(rows_of(path, "temporal", like_hta=flag)[0]["idle_ns"] for flag in (False, True))


def test_the_other_tools_rounding_is_inwards_to_whole_microseconds(tmp_path):
    path = write(tmp_path / "t.json", [call("cudaLaunchKernel", 0.5, 1, 1), kernel("gemm", 10.25, 3.5, 1)])

    assert (3_500, 2_000) == tuple(rows_of(path, "temporal", like_hta=flag)[0]["compute_ns"] for flag in (False, True))


def test_a_trace_without_device_and_an_unknown_table_are_refused(tmp_path, trace):
    with pytest.raises(NotApplicableError, match="no work of a device"):
        read_tables(write(tmp_path / "cpu.json", [op("aten::mm", 0, 4)]))
    with pytest.raises(InputError, match="there is no table 'idel'"):
        read_tables(trace).table("idel")


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_is_printed_as_words_json_and_csv(trace, name):
    words, document, sheet = (
        windtunnel("explain", trace, "--table", name, *how) for how in ((), ("--json",), ("--csv",))
    )

    assert (0, 0, 0) == (words.code, document.code, sheet.code)
    rows = json.loads(document.stdout)["rows"]
    assert len(rows) == len(list(csv.DictReader(io.StringIO(sheet.stdout))))
    assert list(TABLES[name][0]) == list(rows[0])
    assert 80 >= max(map(len, words.stdout.splitlines()))


def test_tables_are_of_traces_and_csv_is_of_tables(trace, tmp_path):
    refused = windtunnel("explain", trace, "--table", "idel")
    assert (2, True) == (refused.code, "use one of temporal, idle" in refused.stderr)
    kept = save(load_kineto(trace), tmp_path / "kept.wt")
    assert "this table is available for traces only" in windtunnel("explain", kept, "--table", "idle").stderr
    assert "there is no" in windtunnel("explain", tmp_path / "gone.json", "--table", "idle").stderr
    assert "add --table NAME" in windtunnel("explain", trace, "--csv").stderr


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(SPANS, SPANS)
def test_times_of_intervals_are_those_counted_moment_by_moment(first, second):
    """The slow reference: which of the two sets runs in each unit of time."""
    running = np.zeros((2, 90), bool)
    for place, spans in enumerate((first, second)):
        for begin, length in spans:
            running[place, begin : begin + length] = True

    both = [
        merge_intervals(*np.array([(b, b + n) for b, n in spans], np.int64).reshape(-1, 2).T)
        for spans in (first, second)
    ]

    assert running.sum(axis=1).tolist() == [length_ns(one) for one in both]
    masks = running[0] + 2 * running[1]
    assert [0, *(int((masks == mask).sum()) for mask in (1, 2, 3))] == exclusive_ns_by_set(both).tolist()


@settings(deadline=None, max_examples=40)
@given(events=traces(), like_hta=st.booleans())
def test_the_parts_of_any_trace_add_up(tmp_path_factory, events, like_hta):
    path = write(tmp_path_factory.mktemp("any") / "trace.json", events)

    try:
        tables = read_tables(path, rules=TableRules(like_hta=like_hta))
    except WindtunnelError:
        return
    (temporal,) = tables.table("temporal").to_pylist()

    assert temporal["kernel_ns"] == sum(temporal[f"{part}_ns"] for part in ("idle", "compute", "non_compute"))
    assert all(0 <= temporal[f"{part}_ns"] for part in ("idle", "compute"))
    last = {(row["rank"], row["stream"]): row["queue_length"] for row in tables.table("queue-series").to_pylist()}
    assert not any(last.values())
    for name in TABLES:
        assert list(TABLES[name][0]) == tables.table(name).column_names
