"""Results on pages of the docs come from the table of bars, or are dated beside the command that reproduces them."""

import pytest
from benchmarks.tables import ROOT
from benchmarks.unmarked import unmarked_results

GENERATED = ("measured.md", "plugins.md")
PAGES = [page for page in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md") if page.name not in GENERATED]


def test_pages_state_no_result_without_a_source():
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
    results = {name: unmarked_results(text) for name, text in texts.items()}
    unsourced = {name: found for name, found in results.items() if found}

    assert len(results) > 50
    assert {} == unsourced, "mark it (benchmarks/markers.py), or state its date and its command in the same paragraph"


STATED = [
    "Predictions are 3.2 % off.",
    "It is 12 % too long in the median.",
    "A step is off by 4 % here.",
    "It runs 1.75 times as fast as torch.",
    "AMP was flown at 4.6x.",
    "The search took 20 to 23 s on two cores.",
    "It answers 40 requests per second.",
    "The rank correlation is 0.99 here.",
    "- an item that is 9 % slower",
    "| model | error |\n| --- | --- |\n| a | 3 % too short |",
]


@pytest.mark.parametrize("text", STATED)
@pytest.mark.parametrize("page", ["", "# Page\n\n## What we measured\n\n"])
def test_a_result_without_a_source_is_found(text, page):
    assert len(unmarked_results(page + text)) >= 1


@pytest.mark.parametrize("page", ["README.md", "docs/howto/predict.md", "docs/systems/packrat.md"])
def test_a_sentence_that_is_added_to_a_page_is_found(page):
    text = (ROOT / page).read_text(encoding="utf-8")

    assert ["3.2 % off"] == unmarked_results(f"{text}\n\nIts prices are 3.2 % off.\n")


@pytest.mark.parametrize(
    "text",
    [
        "It is <!-- measured: b value percent -->3.2 %<!-- end --> off.",
        "It is <!--\nmeasured: b\nvalue percent -->3.2 %<!--\nend --> off.",
        "NeuSight is <!-- published -->2.3 %<!-- end --> off.",
        "On 2026-11-25 `python -m benchmarks.noise` was 3.2 % off.",
        "`python -m benchmarks.noise`, on 2026-11-25:\n\n- it was 3.2 % off\n- and 9 % slower",
        "## What the paper says\n\nIt is 3.2 % off.",
        "```console\n$ windtunnel predict\n3.2 % off\n```",
        "An iteration that waited for more than 3 % is measured again.",
        "The half-width is at most five times the median score.",
    ],
)
def test_a_result_with_a_source_or_a_setting_is_not(text):
    assert [] == unmarked_results(text)


@pytest.mark.parametrize(
    "text",
    [
        "On 2026-11-25 it was 3.2 % off.",
        "`python -m benchmarks.noise` was 3.2 % off.",
        "On 2026-11-25 `python -m benchmarks.noise` ran.\n\nIt was 3.2 % off.",
        "## What the paper says\n\nMuch.\n\n## What we measured\n\nIt is 3.2 % off.",
    ],
)
def test_a_date_and_a_command_count_in_their_own_paragraph_together(text):
    assert ["3.2 % off"] == unmarked_results(text)
