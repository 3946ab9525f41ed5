"""Pages of cheaper layers; those of chips are tested where their verbs are."""

from __future__ import annotations

import pytest

from windtunnel.errors import InputError
from windtunnel.systems.layers.page import quality_page
from windtunnel.systems.layers.training.run import Qualities, Quality
from windtunnel.systems.layers.training.tasks import Score


def test_quality_by_epoch_is_a_line_for_each_case_beside_the_papers_numbers(tmp_path):
    def score(*by_epoch):
        return Score({"perplexity": by_epoch[-1]}, by_epoch, 1234, "small <text>")

    cases = (
        Quality("I", (score(90.0, 80.0), score(92.0, 82.0))),
        Quality("III", (score(95.0, 83.0), score(97.0, 85.0))),
    )
    found = Qualities("word-lm", "perplexity", cases, {"epochs": 2}, (("PTB, 1500 units", "78.3"),))
    page = quality_page(found, tmp_path / "page.html")

    text = page.read_text(encoding="utf-8")
    for words in ("<title>I</title>", "<title>III</title>", "84.00", "+3.7%", "small &lt;text&gt;", "PTB, 1500 units"):
        assert words in text
    with pytest.raises(InputError, match=r"there already|exists"):
        quality_page(found, page)
