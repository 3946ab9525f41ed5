"""What is known about a graph as a whole has declared fields, and no column enters that nobody declared."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import GraphError, InputError
from windtunnel.graph import GraphBuilder, Meta, ProcessGroup, load, save
from windtunnel.graph.meta import read_meta

texts = st.text(max_size=8)
facts = st.dictionaries(texts, st.integers() | texts | st.booleans() | st.lists(st.integers(), max_size=3), max_size=3)
ranks = st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple)
metas = st.builds(
    Meta,
    source=texts,
    origin=facts,
    own=st.dictionaries(texts, facts, max_size=2),
    groups=st.lists(st.builds(ProcessGroup, texts, ranks, texts), max_size=3).map(tuple),
    world_size=st.none() | st.integers(0, 1 << 20),
    samples_ratio=st.floats(0.1, 10),
    is_complete=st.booleans(),
    optimizers=st.lists(facts, max_size=2).map(tuple),
    link=st.none() | facts,
)


def small():
    builder = GraphBuilder()
    builder.task("a", duration_ns=1)
    return builder.build()


@pytest.mark.parametrize(
    "document",
    [
        {"hardware": {"devices": [7]}},
        {"iteration_ns": {"median": -1.0}},
        {"allocator": {"iteration_before_ns": {"median": -1.0}}},
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_field(document):
    with pytest.raises(InputError, match=f"meta: {next(iter(document))} is wrong"):
        read_meta(document, "meta.json")


def test_a_step_that_was_never_run_has_no_times_before_the_heap_was_held():
    """`capture --fake` writes this, and no verb could open its graphs."""
    assert {} == read_meta({"allocator": {"iteration_before_ns": {}}}, "meta.json").allocator["iteration_before_ns"]


@given(metas)
def test_a_record_comes_back_from_json(meta):
    assert meta == Meta.of(json.loads(json.dumps(meta.to_dict())))


def test_what_is_not_known_is_not_written():
    assert {} == Meta().to_dict()
    assert {"source": "mine"} == Meta(source="mine").to_dict()


def test_a_field_that_nobody_declared_is_refused_with_the_way_out():
    for change in (small().with_meta, lambda **entries: GraphBuilder().build(entries), lambda **e: small().note(e)):
        with pytest.raises(InputError, match="no field 'nobody'") as caught:
            change(nobody=1)
        assert "own=" in str(caught.value)


def test_a_plug_in_keeps_its_own_facts_and_columns(tmp_path):
    graph = small().with_columns(**{"mine.color": ["red"], "mine.weight": [2.5]}).with_meta(own={"mine": {"x": [1]}})
    back = load(save(graph, tmp_path / "g.wt"))

    assert graph.equals(back)
    assert {"mine": {"x": [1]}} == back.meta.own
    assert ["red"] == back.tasks.strings("mine.color").to_numpy().tolist()


def test_a_column_that_nobody_declared_is_refused(tmp_path):
    with pytest.raises(GraphError, match="no column 'nobody'") as caught:
        small().with_columns(nobody=[1])
    assert "mine.nobody" in str(caught.value)


@pytest.mark.parametrize(
    ("members_text", "group"),
    [
        ("[0, 1]", ProcessGroup("g", (0, 1))),
        ("", ProcessGroup("g")),
        ("[]", ProcessGroup("g")),
        ("[0, 1, ...]", ProcessGroup("g", members_text="[0, 1, ...]")),
    ],
)
def test_members_are_read_where_the_profiler_tells_them_all(members_text, group):
    assert group == ProcessGroup.read("g", members_text)


def test_every_field_says_what_it_holds():
    described = Meta.__doc__ or ""

    assert not [one.name for one in fields(Meta) if one.name not in described]
