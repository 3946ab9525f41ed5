"""The scanner of traces accepts what the grammar of JSON accepts, and names the byte of what it does not."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import TraceError, WindtunnelError
from windtunnel.sources.kineto.trace import read_trace

EVENT = (
    '{"ph": "X", "cat": "cpu_op", "name": "a\\"\\u00e9", "pid": 1, "tid": 2, "ts": 1.5e3, "dur": -0.0, "args": '
    '{"External id": 3, "Input Dims": [[1, 2], []], "x": null, "y": true, "z": {"q": [{}]}, "w": "\\n"}}'
)
DOCUMENT = f'{{"schemaVersion": 1, "distributedInfo": {{"rank": 0}}, "traceEvents": [{EVENT}, {EVENT}], "o": [1]}}'
WRONG = (
    *(",", ":", '"', "\\", "{", "}", "[", "]", "'", "01", "1.", ".5", "+1", "-", "1e", "1e+", "--1", "0x1F", "1_0"),
    *("\x00", "\n", "\t", "\x1f", "\x0c", "\xa0", "nul", "True", "-NaN", "tru", "/**/", "#", "\\x", "\\u12G4", "x"),
)


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def is_read(path, text):
    path.write_bytes(text.encode())
    try:
        read_trace(path)
    except WindtunnelError:
        return False
    return True


@given(
    st.lists(
        st.tuples(st.integers(0, len(DOCUMENT)), st.integers(0, 3), st.sampled_from(WRONG)), min_size=1, max_size=2
    )
)
@settings(max_examples=600)
def test_no_text_is_read_that_is_no_json(tmp_path_factory, changes):
    """Stray commas and quotes, control characters, bad escapes, bad numbers, missing colons, cuts, trailing text."""
    text = DOCUMENT
    for at, num_gone, wrong in changes:
        text = text[:at] + wrong + text[at + num_gone :]

    read = is_read(tmp_path_factory.getbasetemp() / "t.json", text)

    assert not read or is_json(re.sub(r",(\s*\], .o. *:)", r"\1", text))  # a comma after the last event passes


@pytest.mark.parametrize(
    "value",
    [
        *('"a\tb"', '"a\nb"', '"\\x"', '"\\u12G4"', "01", "1.", ".5", "+1", "1e", "'a'", "-NaN", "True", "nul", "-"),
        *("[1,]", "[1 2]", "[,1]", '{"a" 1}', '{"a": 1,}', "{1: 2}", '{"a": 1 "b": 2}', "{,}", "[}", "[1]]", "1 2", ""),
    ],
)
@pytest.mark.parametrize("key", ["ts", "pid", "ours"])
@pytest.mark.parametrize("is_event", [True, False])
def test_a_value_that_is_no_json_is_refused_wherever_it_stands(tmp_path, value, key, is_event):
    event = f'{{"ph": "X", "name": "a", "ts": 1, "dur": 1, "{key}": {value}}}' if is_event else EVENT
    beside = "0" if is_event else value
    path = tmp_path / "t.json"
    path.write_text(f'{{"{key}x": {beside}, "traceEvents": [{event}]}}')

    with pytest.raises(TraceError, match=r"byte [\d,]+"):
        read_trace(path)


@pytest.mark.parametrize(
    "text", [f"[{EVENT},]", EVENT.replace("null", "NaN").join("[]"), EVENT.replace("1,", "-Infinity,").join("[]")]
)
def test_what_writers_of_traces_do_is_read(tmp_path, text):
    """A comma after the last event, and numbers that are none, in what is not used."""
    assert is_read(tmp_path / "t.json", text)


def test_brackets_may_be_nested_a_thousand_deep_and_no_deeper(tmp_path):
    def trace(depth):
        return f'[{{"ph": "X", "name": "a", "ts": 1, "dur": 1, "ours": {"[" * depth}{"]" * depth}}}]'

    assert is_read(tmp_path / "t.json", trace(1000))
    path = tmp_path / "deep.json"
    path.write_text(trace(100_000))
    with pytest.raises(TraceError, match="nested more than 1,000 deep"):
        read_trace(path)


def test_events_may_stand_under_two_keys(tmp_path):
    """A key twice is no fault of the grammar."""
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{EVENT}], "traceEvents": [{EVENT}]}}')

    assert 2 == read_trace(path).num_rows
