"""Files that were made to harm: what they hold is never taken at its word."""

import gzip
import json

import pytest

from tests.sources.kineto_traces import op
from tests.sources.test_execution_trace import ROOTS, STEP, node
from windtunnel.errors import InputError, TraceError
from windtunnel.sources.chakra.reader import load_chakra
from windtunnel.sources.chakra.wire import varint
from windtunnel.sources.execution_trace.reader import load_execution_trace
from windtunnel.sources.kineto.reader import load_kineto
from windtunnel.sources.memory.profile import MemoryProfile

MIB = 1 << 20
CHAKRA = b'{"workload_graph": [{"Id": 1, "NodeType": 4, %s}]}'


def write(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    return path


# --- Chakra -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (b'"Name": "\xff"', r"no UTF-8.*\n.*byte 54"),
        (b'"Name": 7', "Name 7 is no text"),
        (b'"runtime": 1' + b"0" * 400, "runtime a number of 1,329 bits is no time"),
        (b'"runtime": 1' + b"0" * 5000, r"out of range - at `workload_graph\[0\].runtime`"),
        (b'"runtime": true', "runtime True is no time"),
        (b'"runtime": ' + b"[" * 900 + b"]" * 900, "runtime a list is no time"),
        (b'"data_deps": [' + b"[" * 500 + b"]" * 500 + b"]", "dependency a list is not a whole number"),
        (b'"x": ' + b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'"data_deps": {"a": 1}', "data_deps a dict is not a list"),
    ],
)
def test_a_wrong_chakra_json_says_what_and_where(tmp_path, member, says):
    with pytest.raises(TraceError, match=says) as caught:
        load_chakra(write(tmp_path, "c.json", CHAKRA % member))
    assert "c.json" in caught.value.where
    assert caught.value.fix


def test_a_hundred_thousand_open_brackets_are_no_chakra_graph(tmp_path):
    with pytest.raises(TraceError):
        load_chakra(write(tmp_path, "c.json", b"[" * 100_000))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("c.et.gz", varint(2) + b"\x0a\x00" + bytes(100 * MIB)),
        ("c.et.gz", varint(2) + b"\x0a\x00" + bytes(5 * MIB)),  # a node of 600 bytes for every byte
        ("c.json.gz", b" " * (100 * MIB)),
        ("c.json.gz", b'{"workload_graph": [' + b'{"Id": 1},' * (5 * MIB)),
    ],
)
def test_a_small_chakra_file_cannot_take_the_machine(tmp_path, name, data):
    with pytest.raises(TraceError, match="the limit is"):
        load_chakra(write(tmp_path, name, gzip.compress(data, 1)))


# --- Kineto -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b" " * (100 * MIB),
        b"[" + b" " * (100 * MIB),
        b'[{"ph": "X", "name": "' + b"x" * (100 * MIB),
        b"[" + b'{"ph":"X","ts":1,"dur":1},' * (MIB) + b"{}]",
    ],
)
def test_a_small_kineto_file_cannot_take_the_machine(tmp_path, data):
    path = write(tmp_path, "t.json.gz", gzip.compress(data, 1))

    with pytest.raises(TraceError, match="the limit is"):
        load_kineto(path)


def test_the_limit_of_a_kineto_trace_can_be_raised(tmp_path):
    text = json.dumps([op("a", 1, 1), op("b", 3, 1)]).replace(", {", "," + " " * (70 * MIB) + "{", 1)
    path = write(tmp_path, "t.json.gz", gzip.compress(text.encode(), 1))

    with pytest.raises(TraceError, match=r"the limit is 64\.0 MiB"):
        load_kineto(path)
    assert 2 == load_kineto(path, read_limit=1 << 30).num_tasks


def test_white_space_between_events_takes_no_memory(tmp_path):
    """The window of text slides over it."""
    gap = "," + " " * (20 * MIB)
    text = json.dumps([op("a", 1, 1), op("b", 3, 1), op("c", 6, 1)]).replace(", {", gap + "{")
    path = write(tmp_path, "t.json", text.encode())

    assert 3 == load_kineto(path).num_tasks


# --- execution traces and memory ----------------------------------------------------------------------


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("key", ["values", "shapes", "strides"])
def test_inputs_that_are_nested_deeply_name_the_node(tmp_path, key):
    deep = node(30, "aten::mm", STEP[0]["attrs"][-1]["value"])
    deep["inputs"] = {"values": [1], "shapes": [[]], "types": ["Int"], "strides": [[]]} | {key: [nested(900)]}
    text = json.dumps({"schema": "1.1.0", "nodes": [*ROOTS, *STEP, deep]})

    with pytest.raises(TraceError, match=r"nested \d+ deep, at most 32 can be\n.*node 30"):
        load_execution_trace(write(tmp_path, "e.json", text.encode()))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"schema": "1.1.0", "nodes": ["\xff"]}', "no UTF-8|no execution trace"),
        (b'{"schema": "1.1.0", "nodes": ' + b"[" * 100_000, "nested too deeply|cut off"),
    ],
)
def test_a_wrong_execution_trace_is_told(tmp_path, text, says):
    with pytest.raises(TraceError, match=says):
        load_execution_trace(write(tmp_path, "e.json", text))


def test_a_small_execution_trace_cannot_take_the_machine(tmp_path):
    data = b'{"schema": "1.1.0", "nodes": [' + b"[]," * (30 * MIB)

    with pytest.raises(TraceError, match="the limit is"):
        load_execution_trace(write(tmp_path, "e.json.gz", gzip.compress(data, 1)))


def changed_profile(tmp_path, change):
    import pyarrow.parquet as pq

    births = [(0, "birth", 0, "weight", 4096), (5, "birth", 1, "feature map", 1000)]
    path = MemoryProfile.of(births, {}).save(tmp_path / "m.parquet")
    pq.write_table(change(pq.read_table(path)), path)
    return path


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("category", ["weight", "weights"], "no category 'weights'"),
        ("category", ["weight", None], "column 'category' has nulls"),
        ("size_bytes", [4096, -1], "a size is negative"),
        ("size_bytes", ["x", "y"], "column 'size_bytes' holds string, not int64"),
        ("time_ns", [0, 2**63 - 1], "a time is beyond"),
        ("layer", [b"\xff", b"\xff"], "cannot be read|column 'layer'"),
    ],
)
def test_a_changed_memory_profile_names_the_column(tmp_path, column, values, says):
    import pyarrow as pa

    def change(table):
        return table.set_column(table.column_names.index(column), column, pa.array(values))

    with pytest.raises(InputError, match=says):
        MemoryProfile.load(changed_profile(tmp_path, change))


def test_a_memory_profile_without_a_column_is_refused(tmp_path):
    with pytest.raises(InputError, match="lacks the column 'layer'"):
        MemoryProfile.load(changed_profile(tmp_path, lambda table: table.drop_columns(["layer"])))
