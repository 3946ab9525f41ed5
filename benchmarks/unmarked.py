"""Find results of measurements that a page of the docs states without a source.

In: the text of a page. Out: the phrases that look like a result of ours, which are neither filled from a bar (marked),
nor dated beside the command that reproduces them, nor marked as published by others. Not here: whether a marked number
is up to date (``markers``).
"""

from __future__ import annotations

import re

__all__ = ["RESULTS", "unmarked_results"]

NUMBER = r"(?<![\w.])[-+−]?(?:\d[\d,]*)?\.?\d+"
UNIT = r"(?:ns|µs|us|ms|s|seconds|minutes|hours|h)\b"
MORE = r"too|more|less|longer|shorter|slower|faster|quicker|higher|lower|worse|better|behind|above|below|under|over"
STATISTIC = r"in the median|in the mean|on average|at worst"
WITHIN = r"(?:is|are|was|were|agrees?|come out) within"
RUNS = r"took|takes|lasted|ended after|runs? (?:in|for)"
RESULTS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{NUMBER}(?: to {NUMBER})? (?:%|points)(?:,? \S+)? (?:off|{MORE}|{STATISTIC})\b",
        rf"\b(?:off by|wrong by|errors? (?:of|is|was)|{WITHIN}) (?:up to )?{NUMBER}",
        rf"{NUMBER} times (?:as|the speed|{MORE}|fewer)\b|{NUMBER}(?:x|×)(?! ?\d)(?! [A-Za-z0-9]+ )",
        rf"\b(?:{RUNS}) (?:up to |about |at most )?{NUMBER}(?: to {NUMBER})? ?{UNIT}",
        rf"{NUMBER} (?:\w+ )?(?:per second|a second|/s\b)",
        r"\b(?:correlation|tau|accuracy|perplexity|median|mean)\b[^.;|]{0,30}? (?:is|was|of|with|at|to) \d?\.\d",
    )
)
"""What a result reads like: an error, a ratio of two times, a duration, a rate, a statistic."""

MARKED = re.compile(r"<!--\s+(?:measured:\s+\S+\s+\S+\s+\S+|published)\s+-->[^<]*<!--\s+end\s+-->")
GENERATED = re.compile(r"<!-- measured: begin -->.*?<!-- measured: end -->", re.DOTALL)
CODE = re.compile(r"^[ ]*```.*?^[ ]*```|^    .*?$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"`(?:python -m |make |windtunnel )[^`]*`")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
OTHERS = re.compile(r"^#+ What (?:the papers? says?|was published)\b")


def unmarked_results(text: str) -> list[str]:
    """Return the phrases of a page that state a result without a source."""
    return [
        match.group()
        for block in blocks(text)
        if not (DATE.search(block) and COMMAND.search(block))
        for pattern in RESULTS
        for match in pattern.finditer(re.sub(r"`[^`]*`", "`code`", MARKED.sub("marked", block)))
    ]


def blocks(text: str) -> list[str]:
    """Return what shares a source: a paragraph, an item of a list or a table, with a lead-in that ends in ``:``."""
    results: list[str] = []
    lead_in, is_others = "", False
    for part in re.split(r"\n\s*\n|\n(?=\s*[-*] )", CODE.sub("", GENERATED.sub("", text))):
        lines = part.strip()
        if lines.startswith("#"):
            is_others = bool(OTHERS.match(lines))
            lines = lines.partition("\n")[2].strip()
        if not lines or is_others:
            continue
        is_led = lines.startswith(("- ", "* ", "|"))
        results.append(" ".join(f"{lead_in if is_led else ''} {lines}".split()))
        if not is_led:
            lead_in = lines if lines.endswith(":") else ""
    return results
