"""Write the generated parts of the docs: measured bars, registered plug-ins.

In: ``docs/receipts/bars.json`` (what ``make bars`` measured) and the registry. Out: ``docs/measured.md``,
``docs/reference/plugins.md``, the ten numbers in words between the markers in ``README.md``, marked numbers within
other pages, and the errors of flown predictions that come with the package. Run with ``--check`` to learn whether they
are up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path

from benchmarks.headlines import headlines
from benchmarks.markers import MARKER, fill, rounded
from windtunnel import registry

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "receipts" / "bars.json"
PAGE_WIDTH = 100
SHIPPED = ROOT / "src" / "windtunnel" / "flights" / "shipped.json"
FLOWN = {"whatif_error": "errors", "held_out_style": "whatif_errors", "strangers": "whatif_errors",
         "suite_fidelity": "whatif_errors"}  # fmt: skip
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEADINGS = {
    "source": "Sources: what a graph can be made from",
    "whatif": "What-ifs: what can be asked",
    "flight": "Flights: what can really be run",
    "workload": "Workloads: what can be measured out of the box",
    "cost_model": "Cost models: what operators are priced by",
    "policy": "Policies: how a cluster can be scheduled",
    "layer": "Layers: what can run in place of a network's own",
}


def cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def bars() -> list[dict[str, object]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def shown(value: object) -> str:
    """A number as people read it; anything else as it is."""
    return rounded(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def measured(row: dict[str, object]) -> str:
    """The value, then the other plain numbers of the line and the parts that failed."""
    known = ("bar", "value", "target", "holds", "script", "seconds", "date", "machine")
    numbers = [
        f"{key} {shown(value)}" for key, value in row.items() if key not in known and isinstance(value, int | float)
    ]
    checks = row.get("checks")
    failed = [f"**fails: {name}**" for name, holds in checks.items() if not holds] if isinstance(checks, dict) else []
    return "; ".join([shown(row["value"]), *failed, *numbers[:8]])


def measured_table(rows: list[dict[str, object]]) -> str:
    lines = ["| bar | measured | target | holds | command |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        script = str(row.get("script") or row["bar"])
        holds = "yes" if row["holds"] else "**no**"
        cells = (row["bar"], measured(row), row["target"], holds, f"`python -m benchmarks.{script}`")
        lines.append("| " + " | ".join(cell(item) for item in cells) + " |")
    return "\n".join(lines)


def measured_page(rows: list[dict[str, object]]) -> str:
    dates = sorted({str(row["date"]) for row in rows})
    machines = sorted({str(row["machine"]) for row in rows})
    intro = f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on {'; '.join(machines)}." if rows else ""
    opening = (
        "Every number on this site comes from a script in `benchmarks/` that anybody can run; "
        "`make bars` runs them all. What fails stays in the table as failing, with what stands in its way below. "
        f"{intro}"
    )
    parts = [f"# What we measured\n\n{textwrap.fill(opening, PAGE_WIDTH)}\n\n{measured_table(rows)}\n"]
    for heading, held in (("What fails, and what stands in the way", False), ("What else is to be known", True)):
        noted = [noted_line(row) for row in rows if bool(row["holds"]) is held and (row.get("note") or not held)]
        if noted:
            parts.append(f"## {heading}\n\n" + "\n".join(noted) + "\n")
    return "\n".join(parts)


def noted_line(row: dict[str, object]) -> str:
    """What a bar's row cannot say in numbers: why it fails and what was tried."""
    text = f"- **{row['bar']}**: {row.get('note') or 'not looked into yet'}."
    return textwrap.fill(text, PAGE_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def plugins_page() -> str:
    parts = [
        "# Everything that is registered\n\nGenerated from the registry; `windtunnel list KIND` prints the same.\n"
    ]
    for kind, heading in HEADINGS.items():
        lines = [f"## {heading}\n", "| name | what it does | parameters | source |", "| --- | --- | --- | --- |"]
        for name, plugin in registry.all(kind).items():
            parameters = ", ".join(f"`{p}`" for p in plugin.parameters) if kind == "whatif" else ""
            cells = (f"`{name}`", plugin.summary, parameters, plugin.source)
            lines.append("| " + " | ".join(cell(item) for item in cells) + " |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def readme(rows: list[dict[str, object]]) -> str:
    text = fill((ROOT / "README.md").read_text(encoding="utf-8"), rows)
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [textwrap.fill(line, PAGE_WIDTH, subsequent_indent="  " * line.startswith("-")) for line in headlines(rows)]
    return f"{before}{BEGIN}\n{chr(10).join(lines)}\n{END}{after}"


def marked_pages(rows: list[dict[str, object]]) -> dict[Path, str]:
    """Pages whose prose holds numbers of bars, with these as measured."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))}
    return {path: fill(text, rows) for path, text in texts.items() if MARKER.search(text)}


def shipped(rows: list[dict[str, object]]) -> str:
    """Errors of the what-ifs that bars flew, by job and change."""
    about = "predicted over measured time of an iteration, less 1, of flights by the bars named; by job/change"
    known = ("date", "machine")
    found = {
        str(row["bar"]): {name: row[name] for name in known} | {"errors": row[FLOWN[str(row["bar"])]]}
        for row in rows
        if row["bar"] in FLOWN
    }
    return json.dumps({"about": about, "bars": found}, indent=1, sort_keys=True) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is out of date")
    options = parser.parse_args()
    rows = bars()
    pages = {
        ROOT / "docs" / "measured.md": measured_page(rows),
        ROOT / "docs" / "reference" / "plugins.md": plugins_page(),
        ROOT / "README.md": readme(rows),
        SHIPPED: shipped(rows),
        **marked_pages(rows),
    }
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{'out of date' if options.check else 'wrote'}: {path.relative_to(ROOT)}")
        if not options.check:
            path.write_text(pages[path], encoding="utf-8")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
