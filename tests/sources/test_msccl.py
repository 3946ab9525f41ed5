"""MSCCL algorithms: what was lowered by others is what is lowered here, and an all-reduce is one."""

from __future__ import annotations

import contextlib
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.comm.symbolic import contents, own, replayed_moves, whole
from tests.shared_data import shared_path
from windtunnel.base.reading import read_decompressed
from windtunnel.errors import GraphError, TraceError
from windtunnel.graph import Graph, Kind
from windtunnel.simulate import replay
from windtunnel.sources.chakra import load_chakra, save_chakra
from windtunnel.sources.msccl import load_msccl
from windtunnel.sources.stored import format_of

RING = "replay/astra_sim/msccl/ring_allreduce_8gpus.xml.gz"


def step(s, kind, cnt=1, depid=-1, deps=-1):
    buffers = 'srcbuf="i" srcoff="0" dstbuf="i" dstoff="0"'
    return f'<step s="{s}" type="{kind}" {buffers} cnt="{cnt}" depid="{depid}" deps="{deps}"/>'


def algorithm(*blocks):
    """Two GPUs; a block is (gpu, id, send, recv, steps)."""
    gpus = "".join(
        f'<gpu id="{gpu}">'
        + "".join(
            f'<tb id="{number}" send="{send}" recv="{recv}" chan="0">{"".join(steps)}</tb>'
            for its, number, send, recv, steps in blocks
            if its == gpu
        )
        + "</gpu>"
        for gpu in (0, 1)
    )
    return f'<algo name="pair" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1">{gpus}</algo>'


def written(tmp_path, text):
    path = tmp_path / "pair.xml"
    path.write_text(text)
    return path


GOOD = ((0, 0, 1, 1, [step(0, "s"), step(1, "r")]), (1, 0, 0, 0, [step(0, "rrc"), step(1, "s")]))


# --- published ----------------------------------------------------------------------------------------


def test_the_published_algorithm_is_lowered_as_its_authors_tool_does():
    """35 nodes per rank: 14 sends, 14 receives and 7 sums of 131,072 bytes, with the same dependencies."""
    for rank in range(8):
        theirs = load_chakra(shared_path(f"replay/astra_sim/msccl/custom_allreduce.{rank}.et.gz"))
        assert node_list(theirs, np.arange(theirs.num_tasks)) == node_list(ours(), rows_of(rank))


def test_the_published_algorithm_is_an_all_reduce():
    assert [] == wrong_sums(ours(), shared_path(RING))


def ours() -> Graph:
    return load_msccl(shared_path(RING))


def rows_of(rank):
    return np.flatnonzero(ours().tasks["rank"] == rank)


def node_list(graph, rows):
    """Kind of node, bytes, other rank, and places of what each waits for, of one rank."""
    place = {int(row): number for number, row in enumerate(rows)}
    waits = {number: set() for number in place.values()}
    for src, dst in zip(graph.edges["src"].tolist(), graph.edges["dst"].tolist(), strict=True):
        if src in place and dst in place:
            waits[place[dst]].add(place[src])
    kinds = [re.match(r"COM[MP]_(SEND|RECV|NODE)", graph.tasks.strings("name").decode(int(row)))[1] for row in rows]
    return [
        (kind, int(graph.tasks["message_bytes"][row]), int(graph.tasks["peer"][row]), waits[number])
        for number, (kind, row) in enumerate(zip(kinds, rows.tolist(), strict=True))
    ]


def wrong_sums(graph, path):
    """Cells of the in-place buffer that do not end as everyone's sum, under random durations."""
    root = ElementTree.fromstring(bytes(unpacked_text(path)))
    steps = {
        (int(gpu.get("id")), int(block.get("id")), int(one.get("s"))): one
        for gpu in root for block in gpu for one in block
    }  # fmt: skip
    num, chunks = int(root.get("ngpus")), int(root.get("nchunksperloop"))
    names = graph.tasks.strings("name").to_numpy()

    def xml_step(row):
        block, number = map(int, re.search(r"tb(\d+)_step(\d+)", names[row]).groups())
        return steps[int(graph.tasks["rank"][row]), block, number]

    def cells(one, side):
        return [int(one.get(f"{side}off")) + each for each in range(int(one.get("cnt")))]

    def cells_of(move):
        sent, received = xml_step(move.send), xml_step(move.recv)
        return 0, cells(sent, "src"), cells(received, "dst"), received.get("type").startswith("rr")

    begin = {(rank, 0, chunk): own(rank) for rank in range(num) for chunk in range(chunks)}
    slowed = graph.set_duration(graph.all_tasks, np.random.default_rng(3).integers(1, 999, graph.num_tasks))
    held = contents(replayed_moves(slowed), cells_of, begin)
    return [place for place, content in held.items() if content != whole(num)]


def unpacked_text(path):
    from windtunnel.base.reading import ReadLimit

    return read_decompressed(ReadLimit(path))


# --- lowering -----------------------------------------------------------------------------------------


def test_steps_become_sends_receives_and_sums(tmp_path):
    graph = load_msccl(written(tmp_path, algorithm(*GOOD)), message_bytes=1000)

    assert ["send", "recv", "recv", "reduce", "send"] == graph.tasks.strings("op").to_numpy().tolist()
    assert [500, 500, 500, 0, 500] == graph.tasks["message_bytes"].tolist()
    assert [1, 1, 0, -1, 0] == graph.tasks["peer"].tolist()
    assert {(0, 2), (4, 1)} == {
        (int(src), int(dst))
        for src, dst, begins in zip(*(graph.edges[name] for name in ("src", "dst", "from_start")), strict=True)
        if begins
    }
    assert 5 == graph.meta.num_unmeasured_tasks


def test_a_step_waits_for_the_step_of_another_block(tmp_path):
    blocks = (*GOOD, (0, 1, -1, -1, [step(0, "cpy", depid=0, deps=1)]))
    graph = load_msccl(written(tmp_path, algorithm(*blocks)))
    copy = int(np.flatnonzero(graph.tasks.strings("op").to_numpy() == "copy")[0])
    receive = int(np.flatnonzero(graph.tasks.strings("name").to_numpy() == "COMM_RECV_NODE_tb0_step1")[0])

    assert (receive, copy) in set(zip(graph.edges["src"].tolist(), graph.edges["dst"].tolist(), strict=True))


def test_an_algorithm_leaves_as_chakra_traces_of_every_rank(tmp_path):
    paths = save_chakra(load_msccl(written(tmp_path, algorithm(*GOOD))), tmp_path / "pair.et")
    types = [load_chakra(path).tasks.strings("chakra.node_type").to_numpy().tolist() for path in paths]

    assert [["COMM_SEND", "COMM_RECV"], ["COMM_RECV", "COMP", "COMM_SEND"]] == types


def test_the_source_knows_its_files(tmp_path):
    assert "msccl" == format_of(written(tmp_path, algorithm(*GOOD))).name
    assert 0 == replay(load_msccl(written(tmp_path, algorithm(*GOOD)))).makespan_ns


# --- bad files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        (((0, 0, 1, 1, [step(0, "s")]),), "gpu 0 sends 1 times to gpu 1 on channel 0, which receives 0 times"),
        (((0, 0, 1, 1, [step(0, "jump")]),), "a step of type 'jump'"),
        (((0, 0, 1, 1, [step(0, "s", cnt="x")]),), "cnt of <step> is 'x'"),
        (((0, 0, 1, 1, [step(0, "cpy", depid=3, deps=0)]),), "waits for step 0 of tb 3, which is not there"),
        (((0, 0, 1, 1, [step(0, "s")]), (1, 0, 0, 0, [step(0, "r", cnt=2)])), "differ in cnt"),
        (((0, 0, 1, 1, []),), "no thread block has a step"),
        (((0, 0, 1, 1, []), (0, 0, 1, 1, [])), "gpu 0 has two blocks 0"),
    ],
)
def test_a_broken_algorithm_is_refused_in_words(tmp_path, blocks, says):
    with pytest.raises(TraceError, match=says):
        load_msccl(written(tmp_path, algorithm(*blocks)))


def test_an_algorithm_that_hangs_is_a_cycle(tmp_path):
    both = [step(0, "r"), step(1, "s")]
    with pytest.raises(GraphError, match="cycle"):
        load_msccl(written(tmp_path, algorithm((0, 0, 1, 1, both), (1, 0, 0, 0, both))))


def test_entities_are_refused(tmp_path):
    with pytest.raises(TraceError, match="declares no types"):
        load_msccl(written(tmp_path, '<!DOCTYPE algo [<!ENTITY a "aaaa">]><algo ngpus="1">&a;</algo>'))


@given(st.integers(0, 2000), st.characters(codec="utf-8"))
def test_a_damaged_character_gives_a_graph_or_a_kind_error(tmp_path_factory, at, character):
    text = algorithm(*GOOD)
    at %= len(text)
    path = written(tmp_path_factory.mktemp("msccl"), text[:at] + character + text[at + 1 :])
    with contextlib.suppress(TraceError, GraphError):
        assert load_msccl(path).select(kind=Kind.COMM).any()
