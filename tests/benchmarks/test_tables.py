"""The numbers of the first page are those of the receipts, in words."""

import json
import re

import pytest
from benchmarks.headlines import HEADLINES, headlines
from benchmarks.markers import fill

from benchmarks import tables

ROWS = json.loads(tables.RESULTS.read_text())


def test_the_first_page_says_what_the_receipts_say():
    assert tables.readme(ROWS) == (tables.ROOT / "README.md").read_text(encoding="utf-8")


def test_ten_numbers_stand_on_the_first_page_and_the_table_elsewhere():
    page = (tables.ROOT / "README.md").read_text(encoding="utf-8")
    block = page.partition(tables.BEGIN)[2].partition(tables.END)[0]

    assert 10 == len(HEADLINES) == block.count("\n- ")
    assert "|" not in block
    assert "| bar |" in (tables.ROOT / "docs" / "measured.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda one: one.bar)
def test_a_sentence_follows_its_bar(headline):
    """Another measurement, another sentence: no number is written by hand."""
    row = next(row for row in ROWS if row["bar"] == headline.bar)
    moved = {key: 3 * value + 1 for key, value in row.items() if type(value) in (int, float)}

    assert headline.words(row) != headline.words({**row, **moved})


def test_each_bar_that_fails_says_what_stands_in_the_way():
    page = tables.measured_page(ROWS)

    for row in ROWS:
        if not row["holds"]:
            assert row.get("note"), f"{row['bar']} fails: its row of docs/receipts/bars.json needs a note"
            assert f"- **{row['bar']}**: " in page


def test_a_failing_bar_is_called_one():
    row = next(row for row in ROWS if row["bar"] == "replay_speed")

    assert "**This bar fails.**" in headlines([{**row, "holds": False}])[0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.024453, "0.02445"), (75.98, "75.98"), (410578, "410,578"), (4.9143e-05, "4.9e-05"), (0, "0"), (0.0, "0"),
     (1968492544.0, "1,968,492,544"), (True, "True"), ("no result", "no result")],
)  # fmt: skip
def test_numbers_are_rounded_for_people(value, shown):
    assert shown == tables.shown(value)


def test_no_number_of_the_table_has_more_than_four_digits():
    page = tables.measured_table(ROWS)

    assert [] == re.findall(r"(?<![\d.,])0\.[1-9]\d{4,}", "\n".join(line.split("|")[2] for line in page.splitlines()))


def test_numbers_within_pages_are_those_of_their_bars():
    pages = tables.marked_pages(ROWS)
    stale = [path.name for path, text in pages.items() if path.read_text(encoding="utf-8") != text]

    assert len(pages) > 5
    assert [] == stale, "python -m benchmarks.tables brings them up to date"


MADE = [
    {
        "bar": "b",
        "value": 0.1234,
        "by": {"two words": -0.0417, "a_b": 2},
        "rows": [{"off": 1.05}, {"off": 0.5}],
        "count": 12345,
    }
]


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("b value percent", "12 %"),
        ("b value number", "0.1234"),
        ("b rows.0.off slower", "5 % slower"),
        ("b rows.1.off slower", "50 % faster"),
        ("b rows.1.off times", "0.5x"),
        ("b count count", "12,345"),
        ("b value points", "0.12 %"),
        ("b value ratio", "0.12"),
        ("b value signed", "+12.3 %"),
        ("b by.two_words signed", "-4.2 %"),
        ("b by.a_b number", "2"),
    ],
)
def test_a_marked_number_is_filled_in_its_form(marker, expected):
    text = f"a <!-- measured: {marker} -->old<!-- end --> b"

    assert text.replace("old", expected) == fill(text, MADE)


def test_a_marker_may_be_wrapped_and_a_filled_page_stays():
    text = "it is <!--\nmeasured: b\nvalue percent -->1<!--\nend --> and <!-- measured: b count count -->2<!-- end -->"
    filled = fill(text, MADE)

    assert "-->12 %<!--" in filled
    assert "-->12,345<!--" in filled
    assert filled == fill(filled, MADE)


@pytest.mark.parametrize("marker", ["no value percent", "b no percent", "b value no", "b rows.7.off slower"])
def test_a_marker_of_nothing_that_was_measured_is_refused(marker):
    with pytest.raises((KeyError, IndexError)):
        fill(f"<!-- measured: {marker} -->1<!-- end -->", MADE)
