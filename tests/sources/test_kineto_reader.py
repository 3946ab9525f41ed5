"""The reader of Kineto traces: text to columns, and what it says of bad input."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.kineto_traces import annotation, call, kernel, op, traces, write
from windtunnel.errors import TraceError, WindtunnelError
from windtunnel.simulate import replay
from windtunnel.sources.kineto import text_window as _kineto_text
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.kineto.trace import read_trace
from windtunnel.sources.timeline.events import MISSING

GOOD = [op("step", 0, 10), call("cudaLaunchKernel", 2, 3, 1), kernel("gemm", 6, 4, 1)]
HOSTILE = [
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "'; DROP TABLE tasks;--",
    "\x00\x1b[31m\n",
    "\ud800",
    "ünï",
    "",
]


def refused(path, **options):
    with pytest.raises(TraceError) as caught:
        load_kineto(path, **options)
    return str(caught.value)


@pytest.fixture
def trace_file(tmp_path):
    def make(content, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def test_times_in_decimal_microseconds_are_exact_nanoseconds(trace_file):
    """A double could not hold the first."""
    event = '{"ph": "X", "name": "a", "ts": %s, "dur": %s}'
    texts = [event % ("1712195495520871.125", "36.5264"), event % ("2.0E3", "15e-0")]

    trace = read_trace(trace_file(f"[{','.join(texts)}]"))

    assert [1712195495520871125, 2_000_000] == trace.ts.tolist()
    assert [36_526, 15_000] == trace.dur.tolist()


def test_a_bare_list_a_packed_file_and_a_byte_order_mark_read_alike(trace_file):
    text = json.dumps({"traceEvents": GOOD}).encode()
    plain = load_kineto(trace_file(text))

    assert plain.equals(load_kineto(trace_file(json.dumps(GOOD))))
    assert plain.equals(load_kineto(trace_file(gzip.compress(text), "misnamed.json")))
    assert plain.equals(load_kineto(trace_file(gzip.compress(text[:90]) + gzip.compress(text[90:]), "parts.gz")))
    assert plain.equals(load_kineto(trace_file(b"\xef\xbb\xbf" + text)))


def test_a_record_function_id_is_kept_where_an_execution_trace_gave_one(tmp_path):
    events = [op(name, 10 * place, 5) for place, name in enumerate("abc")]
    for event, number in zip(events, (0, 7, None), strict=True):
        event["args"] = {} if number is None else {"Record function id": number}
    trace = read_trace(write(tmp_path / "t.json", events))

    assert [MISSING, 7, MISSING] == trace.argument("Record function id").tolist()
    assert 1 == len(trace.rare_row)


def test_numbers_in_quotes_are_numbers_and_other_text_is_kept_as_text(tmp_path):
    quoted = kernel("k", 6, 4, 1)
    quoted["args"] = {"device": "0", "stream": "0x0", "correlation": "1"}
    trace = read_trace(write(tmp_path / "t.json", [*GOOD[:2], quoted]))

    assert [MISSING, 1, 1] == trace.correlation.tolist()
    assert "0x0" == trace.text(int(trace.argument("stream")[2]))


def test_a_window_smaller_than_an_event_changes_nothing(tmp_path, monkeypatch):
    """Pieces end anywhere, also inside a string or a number."""
    events = [
        op(f"name {i} " + "x" * (i % 90), i, 1, **{"Input Dims": [[i, 2]], "Call stack": 'a"b\\' * 9})
        for i in range(300)
    ]
    path = write(tmp_path / "t.json", events)
    whole = read_trace(path)
    monkeypatch.setattr(_kineto_text, "_PIECE_BYTES", 7)
    monkeypatch.setattr(_kineto_text.Text.__init__, "__defaults__", (64, None, None))

    pieces = read_trace(path)

    assert whole.strings == pieces.strings
    assert np.array_equal(whole.ts, pieces.ts)
    assert np.array_equal(whole.name, pieces.name)


def test_more_names_than_the_first_tables_hold_are_all_kept(tmp_path):
    events = [op(f"unique {i}", i, 1) for i in range(40_000)]

    trace = read_trace(write(tmp_path / "t.json", events))

    assert [event["name"] for event in events] == [trace.strings[code] for code in trace.name]


def test_hostile_names_change_nothing_but_the_text(tmp_path):
    events = [op(name, 10 * i, 5) for i, name in enumerate(HOSTILE)]
    path = write(tmp_path / "t.json", events)

    graph = load_kineto(path)

    shown = graph.tasks.strings("name").to_numpy().tolist()
    assert [*HOSTILE[:4], "\ufffd", *HOSTILE[5:]] == shown
    assert [5000] * len(HOSTILE) == graph.duration_ns.tolist()


def test_a_name_of_ten_megabytes_and_broken_utf8_are_read(trace_file):
    text = json.dumps([op("N" * 10_000_000, 0, 1), op("@", 5, 1)]).encode().replace(b'"@"', b'"\xff\xfe"')

    names = load_kineto(trace_file(text)).tasks.strings("name").values

    assert [10_000_000, 2] == [len(name) for name in names]


def test_a_trace_cut_in_the_middle_names_the_byte(trace_file):
    text = json.dumps({"traceEvents": GOOD})

    message = refused(trace_file(text[:150]))

    assert "the trace is cut off: the JSON stops in or after event 1" in message
    assert "byte 150" in message


@pytest.mark.parametrize("keep", [40, -1])
def test_a_cut_gzip_file_names_both_bytes(trace_file, keep):
    packed = gzip.compress(json.dumps(GOOD).encode())

    message = refused(trace_file(packed[:keep], "t.json.gz"))

    assert "the gzip data stop before their end" in message
    assert f"(byte {len(packed[:keep])} of the gzip file)" in message


def test_the_events_before_a_cut_can_be_kept(trace_file):
    text = json.dumps({"traceEvents": [op("a", 0, 1), op("b", 2, 1), op("c", 4, 1)]})

    graph = load_kineto(trace_file(text[:-20]), partial=True)

    assert ["a", "b"] == graph.tasks.strings("name").to_numpy().tolist()
    assert graph.meta.trace["partial"]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (op("bad", 1, -5), "event 1 ('bad') has a negative duration"),
        (op("bad", 1, float("nan")), "event 1 ('bad') has a time that is no number"),
        (op("bad", float("-inf"), 1), "event 1 ('bad') has a time that is no number"),
        ({"ph": "X", "name": "bad", "dur": 1}, "event 1 ('bad') has no start time"),
        (op("bad", "soon", 1), "event 1 ('bad') has a time that is no number"),
        (op("bad", 4e15, 3e15), "event 1 ('bad') has a time beyond 70 years"),
        (op("N" * 1000, 1, -5), "event 1 ('" + "N" * 77 + "...') has a negative duration"),
    ],
)
def test_an_impossible_time_names_the_event(tmp_path, event, says):
    message = refused(write(tmp_path / "t.json", [op("fine", 0, 1), event]))

    assert says in message
    assert "byte" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the trace is empty"),
        ("hello", "this is no trace"),
        ("{}", "the file holds no `traceEvents`"),
        ('{"a": 1, "b": []}', "keys a, b"),
        ('{"traceEvents": [{"ph": "X" "ts": 3}]}', "event 0 is no JSON"),
        ('{"traceEvents": [7]}', "event 0 is no JSON"),
        ("[] []", "there is more text after the end of the trace"),
        ("[]", "the trace has no complete events that do work"),
        (json.dumps([annotation("only this", 0, 5)]), "the trace has no complete events that do work"),
        (json.dumps([{"ph": "X", "name": "endless", "ts": 1}]), "1 complete events without duration"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(trace_file, text, says):
    assert says in refused(trace_file(text))


def test_a_file_that_is_not_there_is_no_traceback(tmp_path):
    assert "No such file" in refused(tmp_path / "absent.json")


def test_reading_tells_how_far_it_is(tmp_path):
    told = []

    path = write(tmp_path / "t.json.gz", GOOD)
    load_kineto(path, progress=lambda what, done, total: told.append((what, done, total)))

    size = path.stat().st_size
    assert ("reading the trace", size, size) == told[-1]


def test_damaged_gzip_data_are_told(trace_file):
    packed = bytearray(gzip.compress(json.dumps(GOOD).encode() * 9))
    packed[40] ^= 0xFF

    assert "gzip" in refused(trace_file(bytes(packed), "t.json.gz"))


def test_a_missing_window_names_the_nearest_annotations(tmp_path):
    path = write(tmp_path / "t.json", [*GOOD, annotation("ProfilerStep#7", 0, 20)])

    message = refused(path, window="ProfilerSteps#7")

    assert "there is no annotation 'ProfilerSteps#7'" in message
    assert "choose one of: ProfilerStep#7" in message
    assert "there is no occurrence 3" in refused(path, window="ProfilerStep", occurrence=3)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = ["ph", "ts", "dur", "pid", "tid", "name", "cat", "args", "id"]
ARGUMENTS = [
    "correlation",
    "stream",
    "device",
    "Sequence number",
    "Collective name",
    "dtype",
    "In msg nelems",
    "External id",
]


@st.composite
def damaged_files(draw):
    """A trace with some values replaced by anything, then cut, or with some bytes changed, perhaps packed."""
    events = [dict(event) for event in draw(traces())]
    for event in draw(st.lists(st.sampled_from(events), max_size=3)) if events else []:
        event[draw(st.sampled_from(KEYS))] = draw(ANYTHING)
        if isinstance(event.get("args"), dict):
            event["args"] = {**event["args"], draw(st.sampled_from(ARGUMENTS)): draw(ANYTHING)}
    top = {name: draw(ANYTHING) for name in ("distributedInfo", "baseTimeNanoseconds", "deviceProperties")}
    raw = json.dumps({"traceEvents": events, **top}).encode("utf-8", "surrogatepass")
    raw = gzip.compress(raw) if draw(st.booleans()) else raw
    changed = bytearray(raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw)
    for position in draw(st.lists(st.integers(0, max(len(changed) - 1, 0)), max_size=3)) if changed else []:
        changed[position] = draw(st.integers(0, 255))
    return bytes(changed)


@given(damaged_files(), st.booleans())
@settings(max_examples=100)
def test_a_damaged_trace_gives_a_graph_or_a_message(tmp_path_factory, content, partial):
    path = tmp_path_factory.mktemp("damaged") / "t.json"
    path.write_bytes(content)
    try:
        graph = load_kineto(path, partial=partial)
    except WindtunnelError as error:
        where = error.where
        assert where
    else:
        assert replay(graph).makespan_ns >= 0
