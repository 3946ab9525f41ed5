"""Stored graphs that somebody changed: every field and column is checked where it is read."""

import base64
import json
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windtunnel.errors import GraphError, InputError, WindtunnelError
from windtunnel.graph import EdgeKind, GraphBuilder, ProcessGroup, load, save
from windtunnel.graph.edits import Edit


@pytest.fixture
def stored(tmp_path):
    builder = GraphBuilder()
    first, second = builder.task("a", duration_ns=5), builder.task("b", duration_ns=7)
    builder.edge(first, second, kind=EdgeKind.DATA, lag_ns=2)
    graph = builder.build().with_columns(samples_ns=np.ones((2, 3), np.int64))
    return save(graph.scale(np.array([True, False]), 2.0), tmp_path / "g.wt")


def change_document(folder, **entries):
    meta = folder / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), **entries}))


def change_column(folder, title, name, values):
    path = folder / f"{title}.parquet"
    table = pq.read_table(path)
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, name, values), path)


def refused(folder):
    with pytest.raises(WindtunnelError) as caught:
        load(folder)
    assert str(folder) in caught.value.where
    assert caught.value.fix
    return f"{caught.value.message} @ {caught.value.where}"


def test_samples_that_are_one_per_task_are_refused(stored):
    change_column(stored, "tasks", "samples_ns", pa.array([1, 2], pa.int64()))

    assert "'samples_ns' holds one value per row" in refused(stored)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"edits": None}, "edits is None instead of a list"),
        ({"edits": 7}, "edits is 7 instead of a list"),
        ({"edits": [None]}, "meta.json: edits[0]"),
        ({"edits": [{"edit": ["scale"], "arguments": {}}]}, "this is no recorded edit"),
        ({"edits": [{"edit": "scale", "arguments": {"colour": 1}}]}, "this is no recorded edit"),
        ({"meta": None}, "meta is None instead of a mapping"),
        ({"meta": [1]}, "meta is a list instead of a mapping"),
        ({"meta": {"origin_ns": "x"}}, "meta: origin_ns is wrong: Expected `int`, got `str`"),
        ({"meta": {"iterations": 5}}, "meta.json: meta.iterations"),
        ({"meta": {"iterations": ["a", 5]}}, "at `iterations[1]`"),
        ({"meta": {"groups": [{"name": "dp"}]}}, "missing required field `ranks`"),
        ({"meta": {"groups": [{"name": "dp", "ranks": "01"}]}}, "at `groups[0].ranks`"),
        ({"meta": {"iteration_ns": {"median": "fast"}}}, "at `iteration_ns.median`"),
        ({"meta": {"profiled_iteration_ns": {"samples": [1]}}}, "missing required field `median`"),
        ({"meta": {"samples_ratio": -1}}, "meta.json: meta.samples_ratio"),
        ({"meta": {"samples_ratio": float("nan")}}, "meta.json: meta.samples_ratio"),
        ({"meta": {"hardware": {"num_cores": "many"}}}, "at `hardware.num_cores`"),
        ({"meta": {"world_size": 0}}, "meta.json: meta.world_size"),
    ],
)
def test_a_wrong_field_of_the_document_is_named(stored, entries, says):
    change_document(stored, **entries)

    assert says in refused(stored)


def test_a_field_that_no_graph_has_is_named(stored):
    change_document(stored, meta={"colour": "red"})

    with pytest.raises(InputError, match="meta has no field 'colour'"):
        load(stored)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"schema_version": 2, "meta": {"source": "\xff"}}', b'{"a": 1' + b"0" * 9999]
)
def test_a_document_that_is_no_json_says_where(stored, text):
    (stored / "meta.json").write_bytes(text)

    assert "meta.json" in refused(stored)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mask": {"mask": [0, 1], "size": 10**15}},
        {"mask": {"packed": base64.b64encode(zlib.compress(bytes(8))).decode(), "dtype": "int64", "shape": [10**15]}},
        {"mask": {"array": [1], "dtype": "U9999999"}},
        {"mask": {"packed": "no", "dtype": "int64", "shape": [1]}},
        {"mask": {"mask": [99], "size": 3}},
        {"mask": {"strings": ["a"], "codes": {"array": [5], "dtype": "int32"}}},
    ],
)
def test_an_edit_takes_no_more_than_it_holds(stored, arguments):
    change_document(stored, edits=[{"edit": "scale", "arguments": {**arguments, "factor": 2.0}}])

    assert "edits[0]" in refused(stored)


@pytest.mark.parametrize(
    ("title", "name", "values", "says"),
    [
        ("tasks", "name", pa.array(["a", None]).dictionary_encode(), "column 'name' has 1 nulls, the first in row 1"),
        ("tasks", "name", pa.array([1, 2]).dictionary_encode(), "column 'name' holds int64, not text"),
        ("tasks", "name", pa.array([b"\xff", b"a"]).view(pa.string()), "tasks.parquet cannot be read"),
        ("tasks", "duration_ns", pa.array([1, None]), "column 'duration_ns' has 1 nulls, the first in row 1"),
        ("tasks", "duration_ns", pa.array([["x"], []]), "column 'duration_ns' holds list"),
        ("tasks", "duration_ns", pa.array([1.5, 2.0]), "column 'duration_ns' cannot hold 1.5"),
        ("tasks", "kind", pa.array([1000, 2]), "column 'kind' cannot hold 1000"),
        ("edges", "src", pa.array([2**40]), "column 'src' cannot hold"),
        ("edges", "from_start", pa.nulls(1), "column 'from_start' has 1 nulls"),
        ("resources", "name", pa.array([b"\xff"]).view(pa.string()), "resources.parquet cannot be read"),
    ],
)
def test_a_wrong_column_is_named_with_its_file_and_row(stored, title, name, values, says):
    if title == "resources":
        table = pa.table({"name": pa.array([b"\xff"]).view(pa.string())})
        pq.write_table(table, stored / "resources.parquet")
    else:
        columns = pq.read_table(stored / f"{title}.parquet").column_names
        if name not in columns:
            pytest.skip("the builder made no such column")
        change_column(stored, title, name, values)

    found = refused(stored)

    assert says in found
    assert f"{title}.parquet" in found


@pytest.mark.parametrize(("title", "name"), [("tasks", "kind"), ("edges", "dst"), ("resources", "slots")])
def test_a_table_without_a_column_that_every_graph_has_names_the_graph(stored, title, name):
    path = stored / f"{title}.parquet"
    pq.write_table(pq.read_table(path).drop_columns([name]), path)

    assert f"{title} lack the column {name!r} @ {stored}" in refused(stored)


def test_text_where_numbers_belong_breaks_a_rule_of_the_graph(stored):
    change_column(stored, "tasks", "duration_ns", pa.array(["1", "2"]))

    with pytest.raises(GraphError, match="column 'duration_ns' holds text, not int64"):
        load(stored)


def test_a_column_of_lists_where_one_value_belongs_is_refused(stored):
    pairs = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4]), 2)
    change_column(stored, "tasks", "duration_ns", pairs)

    with pytest.raises(GraphError, match="column 'duration_ns' holds 2 values per row"):
        load(stored)


def test_two_columns_of_one_name_are_refused(stored):
    path = stored / "tasks.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("kind", table.column("kind")), path)

    assert "2 columns are called 'kind'" in refused(stored)


def test_a_table_that_unpacks_to_gigabytes_is_not_read(stored):
    """A hundred million equal rows are a file of some kilobytes."""
    path = stored / "tasks.parquet"
    pq.write_table(pa.table({"mine.x": pa.array(np.zeros(5 * 10**7, np.int64))}), path, compression="zstd")

    assert "the limit is" in refused(stored)


def test_times_that_add_up_to_more_than_64_bits_are_refused():
    builder = GraphBuilder()
    for name in "abc":
        builder.task(name, duration_ns=2**61)

    with pytest.raises(GraphError, match=r"the times of the graph add up to 6\.92e\+09 s"):
        builder.build()


def test_process_groups_that_an_edit_set_are_stored_with_it(tmp_path):
    builder = GraphBuilder()
    builder.task("a", duration_ns=5)
    graph = builder.build().scale(np.array([True]), 2.0).with_meta(groups=[ProcessGroup("dp", (0, 1))])

    again = load(save(graph, tmp_path / "g.wt"))

    assert graph.meta.groups == again.meta.groups
    assert ["scale", "note"] == [Edit.from_json(edit.json()).name for edit in again.edits]


def test_half_a_character_in_a_path_is_kept(tmp_path):
    builder = GraphBuilder()
    builder.task("a", duration_ns=5)
    graph = builder.build().with_meta(origin={"script": "\udcff.py"})

    assert {"script": "\udcff.py"} == load(save(graph, tmp_path / "g.wt")).meta.origin
