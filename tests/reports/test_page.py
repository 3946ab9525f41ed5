"""The report as text: whole, offline, escaped."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.cli.graphs import hostile_graph, step_graph
from tests.strategies import graphs
from windtunnel.errors import InputError
from windtunnel.flights import Receipt
from windtunnel.flights.receipt import conditions_of
from windtunnel.graph import GraphBuilder
from windtunnel.measure import Estimate
from windtunnel.reports import report
from windtunnel.sources.memory.profile import MemoryProfile
from windtunnel.whatifs import whatif


def page_of(graph, folder, **more):
    """The text of a graph's report."""
    return report(graph, folder / "page.html", overwrite=True, **more).read_text(encoding="utf-8")


def receipt_of(answer, measured):
    """A flight of an answer, as if it had been flown."""
    return Receipt(
        whatif=answer.name,
        parameters=dict(answer.parameters[answer.name]),
        predicted_baseline_ns=answer.baseline_ns,
        predicted_ns=answer.predicted_ns,
        baseline=Estimate(100.0, 99.0, 101.0),
        changed=Estimate(100.0 / measured, 98.0 / measured, 102.0 / measured),
        speedup=Estimate(measured, measured - 0.02, measured + 0.02),
        conditions=conditions_of(answer.baseline.graph),
        num_rounds=9,
    )


def test_the_page_needs_nothing_from_anywhere_else(tmp_path):
    page = page_of(step_graph(), tmp_path)

    assert [] == re.findall(r"(?:src|href)=[\"'](?!#)", page)
    assert [] == re.findall(r"https?://|@import|url\((?!#)", page)


def test_titles_of_all_sections_are_sentences_with_the_answer(tmp_path):
    titles = re.findall(r"<h2>(.*?)</h2>", page_of(step_graph(), tmp_path))

    assert [
        "The device waits 25 % of the iteration",
        "The forward pass takes 60 % of the iteration",
        "4 of 5 tasks decide how long the iteration takes",
        "stream 7 is the busiest resource, at work for 75 % of the time",
    ] == titles


def test_predicted_is_hollow_and_measured_is_solid(tmp_path):
    answers = whatif(step_graph(), ["faster-device:factor=2", "faster-cpu:factor=2"])
    page = page_of(step_graph(), tmp_path, answers=answers, receipts=[receipt_of(answers[0], 1.5)])

    assert len(answers) == page.count('fill="#fff" stroke="#0072b2"')
    assert 1 == page.count('fill="#111827"><title>measured 1.50x')
    assert "really makes it 1.50 times as fast" in page
    assert "1 prediction was really run" in page


def test_flights_of_another_model_stand_beside_no_prediction(tmp_path):
    answers = whatif(step_graph(), ["faster-device:factor=2"])
    other = replace(receipt_of(answers[0], 1.5), model_fingerprint="another")
    page = page_of(step_graph(), tmp_path, answers=answers, receipts=[other])

    assert "measured 1.50x" not in page
    assert "not flown" in page


def test_edits_are_listed_and_said_to_be_edits(tmp_path):
    graph = step_graph()

    assert "1 edit changed it" in page_of(graph.scale(graph.all_tasks, 0.5), tmp_path)


def test_an_empty_graph_has_a_page_too(tmp_path):
    assert "No task takes any time" in page_of(GraphBuilder().build(), tmp_path)


def test_memory_is_shown_with_its_peak(tmp_path):
    builder = GraphBuilder()
    first = builder.task("make", duration_ns=100, output_bytes=3 * 2**20, phase=1)
    builder.edge(first, builder.task("use", duration_ns=100, output_bytes=2**20, phase=2))
    page = page_of(builder.build({"memory_base_bytes": 2**20}), tmp_path)

    assert "At the peak 5.00 MiB are held, 60 % of it activations (forward)" in page


def followed():
    """A graph whose capture also followed every storage."""
    births = [(0, "birth", 0, "weight", 2**20), (5, "birth", 1, "feature map", 7 * 2**20), (9, "death", 1, "weight", 0)]
    rows = [(*row, 0, "forward", f"made<{row[2]}>", "layer", "") for row in births]
    builder = GraphBuilder()
    builder.task("make", duration_ns=100, output_bytes=3 * 2**20, phase=1)
    return builder.build({"memory": MemoryProfile.of(rows).summary()})


def test_memory_that_was_followed_is_drawn_as_it_was_recorded(tmp_path):
    page = page_of(followed(), tmp_path)

    assert "At the peak 8.00 MiB are held, 88 % of it feature map" in page
    assert "feature map: 7.00 MiB at the peak" in page
    assert "made&lt;1&gt;" in page


def test_memory_of_a_changed_graph_is_what_its_tasks_make(tmp_path):
    graph = followed()
    page = page_of(graph.scale(graph.all_tasks, 0.5), tmp_path)

    assert "At the peak 3.00 MiB are held, 100 % of it activations (forward)" in page


def test_names_never_become_tags_or_attributes(tmp_path):
    page = page_of(hostile_graph(), tmp_path, title='</title><script>document.title="owned"</script>')
    known = {"html", "head", "meta", "title", "style", "body", "nav", "div", "b", "a", "header", "h1", "p", "dl", "dt"}
    known |= {"dd", "small", "main", "section", "h2", "h3", "figure", "figcaption", "svg", "defs", "pattern", "rect"}
    known |= {"line", "text", "path", "circle", "table", "thead", "tbody", "tr", "th", "td", "i", "span", "label"}
    known |= {
        "input",
        "select",
        "option",
        "button",
        "canvas",
        "footer",
        "script",
        "details",
        "summary",
        "ul",
        "li",
        "code",
    }
    outside_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)

    assert known >= set(re.findall(r"<([a-zA-Z][\w-]*)", outside_scripts))
    assert [] == re.findall(r"<[^>]*\son\w+=", outside_scripts)
    assert 4 == page.count("<script")
    assert len(page) < 300_000


def test_more_tasks_than_a_page_can_hold_are_not_drawn_but_explained(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.reports.sections.MAX_DRAWN", 4)
    page = page_of(step_graph(), tmp_path)

    assert "5 tasks are too many to draw on one page" in page
    assert "The forward pass takes 60 % of the iteration" in page
    assert "<script" not in page


def test_a_page_is_never_overwritten_by_accident(tmp_path):
    page_of(step_graph(), tmp_path)

    with pytest.raises(InputError, match="is there already"):
        report(step_graph(), tmp_path / "page.html")


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(InputError, match="cannot be written"):
        report(step_graph(), tmp_path / "file" / "page.html")


@settings(max_examples=25)
@given(graph=graphs(max_tasks=40))
def test_every_graph_has_a_page(tmp_path_factory, graph):
    assert page_of(graph, tmp_path_factory.mktemp("pages")).rstrip().endswith("</html>")
