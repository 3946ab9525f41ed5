"""The page in a real browser: it draws, zooms, scrolls, finds, and stays fluid at a million tasks; names stay names."""

import json

import numpy as np
import pytest

from tests.cli.graphs import hostile_graph, step_graph
from tests.reports.big import big_graph
from tests.reports.browser import Browser, executable
from windtunnel.graph import Graph, Strings
from windtunnel.reports import report

pytestmark = pytest.mark.slow

FLUID_MS = 50.0  # 20 pictures a second, drawn by the processor alone

COLORS_IN_VIEW = """(() => {
  const { width, height } = wtView.canvas;
  const pixels = wtView.canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const seen = {};
  for (let i = 0; i < pixels.length; i += 4) {
    const hex = "#" + [0, 1, 2].map((k) => pixels[i + k].toString(16).padStart(2, "0")).join("");
    seen[hex] = (seen[hex] || 0) + 1;
  }
  return seen;
})()"""

TURN_THE_WHEEL = """(async () => {
  const box = wtView.canvas.getBoundingClientRect();
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const turn = (deltaY, deltaX) => wtView.canvas.dispatchEvent(new WheelEvent("wheel", {
    deltaY, deltaX, clientX: box.left + 600, clientY: box.top + 200, bubbles: true, cancelable: true }));
  const frames = [], drawing = [];
  let last = await frame();
  for (let i = 0; i < 240; i++) {
    if (i < 90) turn(-60, 0);
    else if (i < 180) turn(60, 0);
    else turn(0, 40);
    const now = await frame();
    frames.push(now - last);
    drawing.push(wtView.frameMs());
    last = now;
  }
  const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  return { frameMs: middle(frames), drawMs: middle(drawing), slowestMs: Math.max(...frames) };
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    executable()
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def big_page(tmp_path_factory):
    return report(big_graph(1_000_000, 256), tmp_path_factory.mktemp("pages") / "big.report.html")


def test_the_timeline_is_drawn_in_the_colors_of_its_legend(browser, tmp_path):
    browser.open(report(step_graph(), tmp_path / "page.html"))
    seen = browser.evaluate(COLORS_IN_VIEW)

    assert [] == browser.problems()
    assert {"#44aa99", "#332288", "#cc6677"} <= {color for color, count in seen.items() if count > 50}


@pytest.mark.parametrize("num_tasks", [400, 700, 20_000])
def test_a_resource_that_never_rests_leaves_no_gap_at_any_scale(browser, tmp_path, num_tasks):
    rng = np.random.default_rng(num_tasks)
    rows = np.arange(num_tasks - 1)
    graph = Graph.from_columns(
        tasks={
            "name": Strings.repeat("work", num_tasks),
            "kind": np.ones(num_tasks, dtype=np.int8),
            "resource": np.zeros(num_tasks, dtype=np.int32),
            "duration_ns": rng.integers(1_000, 9_000, num_tasks),
        },
        edges={"src": rows, "dst": rows + 1, "kind": np.ones(num_tasks - 1, dtype=np.int8)},
        resources={"name": ["cpu"], "kind": [0], "discipline": [0], "slots": [1]},
    )
    browser.open(report(graph, tmp_path / "page.html"))
    top_row = browser.evaluate("""(() => {
      const context = wtView.canvas.getContext("2d");
      const line = context.getImageData(wtView.GUTTER, 71, wtView.canvas.width - wtView.GUTTER, 1).data;
      return Array.from({ length: line.length / 4 }, (_, x) => line[4 * x]);
    })()""")

    assert set(top_row[:-1]) == {0}  # the red of the one color; only the last column may be partly empty


def test_the_page_asks_for_nothing_from_anywhere(browser, tmp_path):
    browser.open(report(step_graph(), tmp_path / "page.html"))
    loaded = browser.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")

    assert [] == loaded


def test_a_click_says_why_a_task_started_when_it_did(browser, tmp_path):
    browser.open(report(step_graph(), tmp_path / "page.html"))
    browser.evaluate("wtView.canvas.scrollIntoView({ block: 'center', behavior: 'instant' })")
    left, top, width = browser.evaluate(
        "(() => { const box = wtView.canvas.getBoundingClientRect(); return [box.left, box.top, box.width]; })()"
    )
    x = left + 168 + (width - 168) * 0.7  # 70 of 100 µs: the backward task, on the third line
    y = top + 70 + 2 * 39 + 17
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="left", clickCount=1)
    detail = browser.evaluate("document.getElementById('timeline-detail').textContent")

    assert "encoder backward" in detail
    assert "could start because of: encoder forward" in detail


def test_wheel_and_drag_change_what_is_in_view(browser, tmp_path):
    browser.open(report(step_graph(), tmp_path / "page.html"))
    browser.evaluate("wtView.canvas.scrollIntoView({ block: 'center', behavior: 'instant' })")
    left, top = browser.evaluate(
        "(() => { const box = wtView.canvas.getBoundingClientRect(); return [box.left + 600, box.top + 90]; })()"
    )
    view = "[wtView.view.from, wtView.view.to]"
    whole = browser.evaluate(view)
    browser.mouse("mouseWheel", left, top, deltaX=0, deltaY=-300)
    zoomed = browser.evaluate(f"new Promise((done) => setTimeout(() => done({view}), 200))")
    browser.mouse("mousePressed", left, top, button="left", clickCount=1)
    browser.mouse("mouseMoved", left - 100, top, button="left", buttons=1)
    browser.mouse("mouseReleased", left - 100, top, button="left", clickCount=1)
    dragged = browser.evaluate(view)

    assert [0, 100_000] == whole
    assert zoomed[1] - zoomed[0] < 0.7 * (whole[1] - whole[0])
    assert dragged[0] > zoomed[0]
    assert pytest.approx(zoomed[1] - zoomed[0]) == dragged[1] - dragged[0]


def test_a_million_tasks_open_zoom_and_scroll_fluidly(browser, big_page):
    browser.open(big_page)
    browser.evaluate("wtView.canvas.scrollIntoView({ block: 'center', behavior: 'instant' })")
    pace = browser.evaluate(TURN_THE_WHEEL)

    assert [] == browser.problems()
    assert pace["frameMs"] < FLUID_MS, pace


def test_a_million_tasks_are_found_by_name(browser, big_page):
    browser.open(big_page)
    browser.evaluate(
        "(() => { const box = document.getElementById('timeline-search'); box.value = 'OPERATOR_399';"
        " box.dispatchEvent(new Event('input')); })()"
    )
    names = big_graph(1_000_000, 256).tasks.strings("name")
    count = int((names.codes == names.values.index("aten::operator_399")).sum())

    assert browser.evaluate("document.getElementById('timeline-found').textContent").startswith(f"{count:,} tasks")


def test_names_that_try_to_be_html_are_shown_and_do_nothing(browser, tmp_path):
    title = "</title><script>document.title='owned'</script>"
    browser.open(report(hostile_graph(), tmp_path / "page.html", title=title))
    browser.evaluate("document.getElementById('timeline-search').value = 'owned'")
    browser.evaluate("document.getElementById('timeline-search').dispatchEvent(new Event('input'))")
    browser.evaluate(
        "document.getElementById('timeline-search').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }))"
    )
    shown = browser.evaluate("document.getElementById('timeline-detail').textContent")

    assert [] == browser.problems()
    assert browser.evaluate("document.title").startswith(title)
    assert "owned" in shown
    assert 0 == browser.evaluate("document.querySelectorAll('img, iframe, object, [onerror], [onmouseover]').length")
    assert 1 == browser.evaluate("document.querySelectorAll('h1').length")


def test_a_script_that_is_not_the_pages_own_is_refused_by_its_policy(browser, tmp_path):
    path = report(step_graph(), tmp_path / "page.html")
    injected = "<script>document.title='owned'</script></body>"
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", injected), encoding="utf-8")
    browser.open(path)

    assert "page" == browser.evaluate("document.title")
    browser.events.clear()


def test_a_narrow_window_has_no_sideways_scroll_of_the_page(browser, tmp_path):
    browser.open(report(step_graph(), tmp_path / "page.html"))
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    try:
        overflow = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")

    assert 0 >= overflow, json.dumps(overflow)
