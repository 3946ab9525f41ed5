"""The packed timeline holds every task exactly; the page unpacks what was packed."""

import base64
import json
import zlib

import numpy as np
from hypothesis import given

from tests.cli.graphs import HOSTILE, hostile_graph
from tests.strategies import graphs
from windtunnel.reports.packing import MAX_TEXT, pack, shorten, tracks_of
from windtunnel.simulate import replay


def unpack(blob):
    """What the page's script does, the slow way."""
    block = zlib.decompress(base64.b64decode(blob))
    size = int.from_bytes(block[:8], "little")
    header, columns, at = json.loads(block[8 : 8 + size]), {}, 8 + size
    for column in header["columns"]:
        width, count = column["width"], column["count"]
        planes = np.frombuffer(block[at : at + width * count], np.uint8).reshape(width, count).astype(object)
        columns[column["name"]] = [sum(int(planes[p, i]) << 8 * p for p in range(width)) for i in range(count)]
        at += width * count
    return header, columns


def packed(graph):
    """Pack with all that a timeline knows, and unpack."""
    timeline = replay(graph)
    path = timeline.critical_path().task.astype(np.int64)
    _, binding, _ = timeline.execution.bindings
    blob = pack(
        graph,
        timeline.start_ns,
        timeline.finish_ns,
        critical=path,
        slack_ns=timeline.slack_ns(),
        binding=binding.astype(np.int64),
    )
    return timeline, *unpack(blob)


@given(graphs(max_tasks=60))
def test_every_task_that_takes_time_comes_back_with_its_start_and_duration(graph):
    timeline, header, columns = packed(graph)
    seen, first = [], 0
    for _, _, last, is_path in header["tracks"]:
        start = 0
        for row in range(first, last):
            start += columns["start"][row]
            if not is_path:
                seen.append((start, columns["duration"][row], header["names"][columns["name"][row]]))
        first = last
    names = graph.tasks.strings("name")
    shown = [
        row
        for row in range(graph.num_tasks)
        if graph.tasks["resource"][row] >= 0 or timeline.finish_ns[row] > timeline.start_ns[row]
    ]
    expected = [
        (
            int(timeline.start_ns[row]),
            int(timeline.finish_ns[row] - timeline.start_ns[row]),
            shorten(names.decode(row)),
        )
        for row in shown
    ]

    assert sorted(expected) == sorted(seen)
    assert graph.num_tasks - len(shown) == header["num_hidden"]


@given(graphs(max_tasks=60))
def test_no_two_tasks_of_one_line_overlap(graph):
    timeline = replay(graph)

    for track in tracks_of(graph, timeline.start_ns, timeline.finish_ns):
        starts, ends = timeline.start_ns[track.rows], timeline.finish_ns[track.rows]
        assert (starts[1:] >= ends[:-1]).all()


def test_names_are_shortened_and_their_control_characters_made_visible():
    _, header, _ = packed(hostile_graph())

    assert len(HOSTILE) == len(header["names"])
    assert all(len(name) <= 6 * MAX_TEXT and name.isprintable() for name in header["names"])


def test_the_block_itself_holds_no_character_that_html_could_read():
    graph = hostile_graph()
    timeline = replay(graph)
    blob = pack(graph, timeline.start_ns, timeline.finish_ns)

    assert set(blob) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
