"""What is stored comes back, and what is damaged is refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from tests.graph.random_graphs import graph_and_mask
from windtunnel.errors import InputError, SchemaVersionError, WindtunnelError
from windtunnel.graph import Graph, GraphBuilder, load, save


@given(graph_and_mask())
def test_a_stored_graph_comes_back_column_for_column(tmp_path_factory, sample):
    graph, mask = sample
    graph = graph.scale(mask, 3).with_columns(samples_ns=np.ones((graph.num_tasks, 4), dtype=np.int64))
    back = load(save(graph, tmp_path_factory.mktemp("store") / "g.wt"))

    assert graph.equals(back)
    assert graph.meta == back.meta
    assert [e.json() for e in graph.edits] == [e.json() for e in back.edits]


def small() -> Graph:
    builder = GraphBuilder()
    builder.task("a", duration_ns=1)
    return builder.build()


def test_a_stored_graph_is_not_overwritten_by_accident(tmp_path):
    path = save(small(), tmp_path / "g.wt")

    with pytest.raises(InputError, match="there already"):
        save(small(), path)
    assert small().equals(load(save(small(), path, overwrite=True)))


def test_a_folder_that_is_no_graph_is_never_replaced(tmp_path):
    (tmp_path / "precious").mkdir()

    with pytest.raises(InputError, match="no stored graph"):
        save(small(), tmp_path / "precious", overwrite=True)


def test_a_failed_save_leaves_the_old_graph_and_no_litter(tmp_path):
    path = save(small(), tmp_path / "g.wt")

    with pytest.raises(InputError, match="meta cannot hold"):
        save(small().with_meta(own={"mine": object()}), path, overwrite=True)
    assert ["g.wt"] == [entry.name for entry in tmp_path.iterdir()]
    assert small().equals(load(path))


def test_a_newer_schema_is_refused(tmp_path):
    path = save(small(), tmp_path / "g.wt")
    meta = path / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "schema_version": 999}))

    with pytest.raises(SchemaVersionError, match="999 is not known"):
        load(path)


@pytest.mark.parametrize("victim", ["meta.json", "tasks.parquet", "edges.parquet", "resources.parquet"])
@pytest.mark.parametrize("kept", [0, 7, 0.5, 0.9])
def test_a_truncated_store_is_named(tmp_path, victim, kept):
    path = save(small(), tmp_path / "g.wt")
    data = (path / victim).read_bytes()
    (path / victim).write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])

    with pytest.raises(WindtunnelError, match=victim):
        load(path)


def test_a_missing_store_says_what_to_name(tmp_path):
    with pytest.raises(InputError, match="no stored graph"):
        load(tmp_path / "nothing.wt")


def test_other_tools_open_the_tables(tmp_path):
    path = save(small(), tmp_path / "g.wt")

    assert ["a"] == pq.read_table(path / "tasks.parquet").to_pydict()["name"]


def test_invalid_utf8_is_stored_as_its_escape(tmp_path):
    builder = GraphBuilder()
    builder.task(b"\xff\xfe".decode("utf-8", "surrogateescape"), duration_ns=1)

    assert ["\\udcff\\udcfe"] == load(save(builder.build(), tmp_path / "g.wt")).tasks.strings(
        "name"
    ).to_numpy().tolist()
