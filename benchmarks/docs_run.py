"""Every command of the docs, and every hint that they print, is run as printed.

Each page has a fresh folder with a copy of ``examples/`` and the few files that pages call the reader's own; its
commands run in order, each through the shell. What a page declares in front of a block with
``<!-- not run: reason -->`` is counted by reason. Give names of pages to run only these; ``--jobs`` says
how many at once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bar import ROOT, report, table
from benchmarks.docs_files import furnish

COMMAND = re.compile(r"(?:windtunnel|wt|make|python -m)\b")
BLOCK = re.compile(r"(?:<!-- not run: ([^>]*?) -->\n+)?^```(console|sh|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\b(?:[A-Z][A-Z_]{2,}(?:\.py)?|NOW|NAME)\b")
OF_THE_READER = "a file or a name of the reader's own"
TIMEOUT_S = 1800  # what hangs; how long a command takes is another bar's matter
TAIL = 600


@dataclass
class Page:
    """What became of a page's commands."""

    name: str
    failures: list[tuple[str, str]] = field(default_factory=list)
    not_run: Counter[str] = field(default_factory=Counter)
    num_commands: int = 0
    num_hints: int = 0
    hints: list[str] = field(default_factory=list)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a page, with the reason for which it is not run."""
    for reason, _, block in BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = line.removeprefix("$ ").split("  #")[0].strip()
            if COMMAND.match(command):
                yield command, reason.strip()


def run_page(path: Path, home: Path) -> Page:
    """Run a page in a folder of its own."""
    page = Page(path.relative_to(ROOT).as_posix())
    folder = home / page.name.removesuffix(".md").replace("/", "-")  # two pages may have one name
    text = path.read_text(encoding="utf-8")
    found = list(commands(text))
    if all(reason for _, reason in found):
        page.not_run.update(reason for _, reason in found)
        return page
    try:
        environment = _furnished(folder, text)
    except subprocess.CalledProcessError as error:
        page.failures.append((str(error.cmd[-1]), f"what the page takes as given: {error.stderr[-TAIL:].strip()}"))
        return page
    for command, reason in found:
        if reason:
            page.not_run[reason] += 1
            continue
        page.num_commands += 1
        for hint in _run(command, folder, environment, page):
            if hint not in page.hints:
                page.hints.append(hint)
                _take_hint(hint, folder, environment, page)
    return page


def _take_hint(hint: str, folder: Path, environment: dict[str, str], page: Page) -> None:
    """Do what a command advised, as it left the folder: in a copy, so that the page goes on as printed."""
    if PLACEHOLDER.search(hint):
        page.not_run[OF_THE_READER] += 1
        return
    page.num_hints += 1
    if hint.startswith("open "):
        if not (folder / hint.removeprefix("open ").removesuffix(" in a browser")).exists():
            page.failures.append((hint, "the file is not there"))
        return
    with tempfile.TemporaryDirectory(prefix="windtunnel-hint-") as aside:
        copy = Path(aside) / folder.name
        shutil.copytree(folder, copy, symlinks=True)
        _run(hint, copy, environment, page)


def _furnished(folder: Path, text: str) -> dict[str, str]:
    """A folder with examples and the files that the page names, and the variables that lead to this package."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "bin").mkdir()
    for name, module in (("windtunnel", "-m windtunnel "), ("wt", "-m windtunnel "), ("python", "")):
        script = folder / "bin" / name  # no link: an environment is found by where its interpreter lies
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
        script.chmod(0o755)
    environment = {
        **os.environ,
        "HOME": str(folder),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")))),
    }
    run = "\n".join(command for command, reason in commands(text) if not reason)
    furnish(folder, text, run, environment)
    return environment


def _run(command: str, folder: Path, environment: dict[str, str], page: Page) -> list[str]:
    """Run one command; returns the hints that it printed."""
    try:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        page.failures.append((command, f"not done in {TIMEOUT_S} s"))
        return []
    if done.returncode:
        page.failures.append((command, f"exit code {done.returncode}: {done.stderr[-TAIL:].strip()}"))
    return [line.removeprefix("next: ") for line in done.stderr.splitlines() if line.startswith("next: ")]


def pages() -> list[Path]:
    """README first, then the docs; generated parts hold no blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run(chosen: list[Path], jobs: int = 1) -> list[Page]:
    """Run pages, each in a folder of its own, so many at once."""

    def one(path: Path) -> Page:
        begun_s = time.monotonic()
        page = run_page(path, Path(home))
        said = f"{page.num_commands} commands, {page.num_hints} hints, {len(page.failures)} failed"
        lines = [f"{page.name}: {said}, {time.monotonic() - begun_s:.0f} s"]
        lines += [f"  {command}\n    {why}" for command, why in page.failures]
        print("\n".join(lines), file=sys.stderr, flush=True)
        return page

    with tempfile.TemporaryDirectory(prefix="windtunnel-docs-") as home, ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, chosen))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="parts of names, such as tutorial (all)")
    parser.add_argument("--verbose", action="store_true", help="print what failed and what is not run")
    parser.add_argument("--jobs", type=int, default=2, help="pages at once")
    options = parser.parse_args()
    chosen = [one for one in pages() if not options.pages or any(part in str(one) for part in options.pages)]
    found = run(chosen, options.jobs)
    failures = [(page.name, *failure) for page in found for failure in page.failures]
    not_run = sum((page.not_run for page in found), Counter[str]())
    if options.verbose:
        print(table([{"page": name, "command": command, "why": why} for name, command, why in failures]))
    return not report(
        "docs_run",
        len(failures),
        "0 commands and hints of the docs fail",
        not failures,
        num_pages=len(found),
        num_commands=sum(page.num_commands for page in found),
        num_hints=sum(page.num_hints for page in found),
        num_not_run=not_run.total(),
        not_run=dict(not_run),
        failed=[f"{name}: {command}" for name, command, _ in failures],
    )


if __name__ == "__main__":
    sys.exit(main())
