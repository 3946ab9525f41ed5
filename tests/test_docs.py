"""What the docs say runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.command import windtunnel
from windtunnel import registry

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[object]:
    found = [
        (page.relative_to(ROOT).as_posix(), text)
        for page in PAGES
        if "_build" not in page.parts
        for kind, text in FENCE.findall(page.read_text(encoding="utf-8"))
        if kind == language
    ]
    return [pytest.param(text, id=f"{name}-{number}") for number, (name, text) in enumerate(found)]


@pytest.mark.parametrize("code", [block for block in blocks("python") if "train_step" not in block.values[0]])
def test_python_in_the_docs_runs(code):
    pytest.importorskip("torch")

    exec(compile(code, "docs", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("code", blocks("console"))
def test_commands_in_the_docs_exist_with_their_options(code):
    for line in code.splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if not words or words[0] != "windtunnel":
            continue
        known = registry.verbs(words[1])
        verb = max((name for name in known if name.split() == words[1 : 2 + name.count(" ")]), key=len).split()
        if known[" ".join(verb)].default:  # a file needs no verb
            verb.append(known[" ".join(verb)].default)
        shown = windtunnel(*verb, "--help")
        own = words[: words.index("--")] if "--" in words else words
        options = [word for word in own if word.startswith("--")]
        if words[1] in ("capture", "dry-run"):  # what stands behind a script is the script's
            options = [
                word for word in options if words.index(word) < words.index(next(w for w in words if w.endswith(".py")))
            ]

        assert shown.code == 0, line
        assert [o for o in options if o not in shown.stdout] == [], line


def test_prose_is_wrapped_at_100_columns():
    """Code, tables and generated pages may be wider."""
    wide = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        is_code = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if len(line) > 100 and not is_code and not line.lstrip().startswith("|"):
                wide.append(f"{page.name}:{number}")

    assert [] == wide


def test_the_glossary_has_at_most_forty_words():
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    words = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")][1:]

    assert 0 < len(words) <= 40
    assert sorted(words) == words


def test_modules_that_the_docs_name_are_there():
    import importlib

    named = set()
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        named |= set(re.findall(r"`(windtunnel(?:\.[a-z_]+)+)", page.read_text(encoding="utf-8")))
    missing = []
    for name in sorted(named):
        parent, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ImportError:
            try:
                getattr(importlib.import_module(parent), attribute)
            except (ImportError, AttributeError):
                missing.append(name)

    assert [] == missing


def test_files_that_the_docs_name_are_there():
    missing = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for path in re.findall(r"`((?:src|tests|benchmarks|docs)/[\w/.-]+)`", page.read_text(encoding="utf-8")):
            if not (ROOT / path).exists() and "my_" not in path:
                missing.append(f"{page.name}: {path}")

    assert [] == missing
