"""Words that the code, the help, the errors and the docs avoid, and where they still occur.

In: the sources, the registered verbs and the pages of the docs. Out: a list of places for each kind of finding, from
which ``tests/test_words.py`` and the bar ``words`` count.
"""

from __future__ import annotations

import ast
import functools
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import windtunnel

SOURCE = Path(windtunnel.__file__).parent
ROOT = Path(__file__).resolve().parent.parent

WORDS = re.compile(
    r"\b(nobody|whoever|so many|beside|told|said|foretold|foretells?|programmes?|abreast|thrift(?:y|ier|iest))\b", re.I
)
LOOP_VARIABLES = {"one", "each", "place", "at"}
NAMES = {"told", "said", "begun", "made", "drawn", "wanted", "asked", "grown", "mine", "lanes"}
PREFIXES = ("most_", "least_")
_IRREGULAR = """
told said begun made drawn grown taken given found kept known held sent lost shown flown chosen written seen done paid
built brought bought caught felt heard led meant met spent stood thought understood won worn woven torn thrown spoken
sold sought slept spun stuck struck swept sworn taught woken broken forgotten frozen hidden proven ridden risen shaken
stolen borne beaten bitten blown
"""
NO_PARTICIPLES = {"need", "seed", "feed", "speed", "embed", "unneeded", "red", "shed", "bed", "exceed", "proceed"}
NO_PARTICIPLES |= {"succeed", "bleed"}
VERBS_BEFORE = {
    "is",
    "has",
    "num",
    "are",
    "was",
    "can",
    "on",
    "test",
    "declare",
    "require",
    "print",
    "say",
    "select",
    "show",
    "run",
    "read",
    "write",
    "check",
}
DECORATORS = {"flight", "layer", "policy", "source", "strategy", "verb", "whatif", "workload", "cost_model", "page"}
ACCEPTED = {
    "elapsed_ns": "a time, named by an adjective and its unit",
    "attained_gpu_s": "attained service is the term of the scheduling literature, which policies of users call",
    "attained_service": "the same",
    "closed_form_ns": "a formula in closed form",
    "interleaved": "the name of the schedule, as Megatron-LM has it",
    "nested_rings_all_reduce_ns": "an algorithm with rings in rings",
    "elapsed_time": "the method of torch.cuda.Event that the dry run's event stands in for",
    "proven_by": "decorator of flights that plug-ins use",
}
"""Functions that are named by a participle and stay, with the reason."""
ACCEPTED_NAMES = {
    ("hardware/parts.py", "lanes"): "a key of the shipped accelerators and of what list devices prints",
}
"""Identifiers of a file that stay, with the reason."""
Finding = tuple[str, int, str]


def is_participle(word: str) -> bool:
    """Whether a word is the past participle of a verb."""
    return word in _IRREGULAR.split() or (word.endswith("ed") and len(word) > 3 and word not in NO_PARTICIPLES)


def is_named_by_participle(name: str) -> bool:
    """Whether the first word of a name is a participle, or the last where no verb stands first."""
    parts = name.strip("_").split("_")
    if name.startswith("__") or not parts[0] or name in ACCEPTED:
        return False
    ends_so = len(parts) > 1 and is_participle(parts[-1]) and parts[0] not in VERBS_BEFORE
    return is_participle(parts[0]) or ends_so


@functools.cache
def sources() -> list[tuple[str, ast.Module]]:
    """Path below the package, and syntax, of every file."""
    paths = sorted(SOURCE.rglob("*.py"))
    return [(path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def find_in_sources() -> dict[str, list[Finding]]:
    """Identifiers and errors of the package, by kind."""
    found: dict[str, list[Finding]] = {
        kind: [] for kind in ("loop variables", "names", "prefixes", "functions", "errors")
    }
    for path, tree in sources():
        for node in ast.walk(tree):
            for kind, name in _words_of(node):
                if (path, name) in ACCEPTED_NAMES:
                    continue
                found[kind].append((path, getattr(node, "lineno", 0), name))
    return found


def _words_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Kinds and words of what one node of the syntax finds."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        names = {item.id for item in ast.walk(node.target) if isinstance(item, ast.Name)}
        yield from (("loop variables", name) for name in sorted(names & LOOP_VARIABLES))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if is_named_by_participle(node.name) and not any(_keeps_name(item) for item in node.decorator_list):
            yield "functions", node.name
        yield from _check_name(node.name)
    elif isinstance(node, ast.ClassDef):
        yield from _check_name(node.name)
    elif isinstance(node, ast.arg):
        yield from _check_name(node.arg)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield from _check_name(node.id)
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from (("errors", word) for word in _banned(node.exc))


def _check_name(name: str) -> Iterator[tuple[str, str]]:
    bare = name.strip("_").lower()
    if bare in NAMES:
        yield "names", name
    if bare.startswith(PREFIXES):
        yield "prefixes", name


def _keeps_name(decorator: ast.AST) -> bool:
    """Whether a decorator registers a plug-in, whose name users type, or makes a property."""
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")
    return name in DECORATORS or "property" in name or name == "setter"


def _banned(node: ast.AST) -> list[str]:
    strings = [item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return [word for text in strings for word in WORDS.findall(text)]


def find_in_help() -> list[Finding]:
    """Words in the help of every registered verb."""
    from windtunnel import registry
    from windtunnel.cli import main

    found = []
    for verb in registry.all("verb"):
        shown = io.StringIO()
        with redirect_stdout(shown):
            main([*verb.split(), "--help"])
        lines = " ".join(shown.getvalue().split())
        found += [(f"windtunnel {verb} --help", 0, word) for word in WORDS.findall(lines)]
    return found


def find_in_docs() -> list[Finding]:
    """Words in the prose of the pages; code and pages that are generated are left out."""
    pages = [*ROOT.glob("docs/**/*.md"), *SOURCE.rglob("README.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = []
    for page in sorted(pages):
        if "_build" in page.parts or page.name in ("measured.md", "plugins.md"):
            continue
        text = re.sub(
            r"^```.*?^```|`[^`\n]*`",
            lambda code: "\n" * code[0].count("\n"),
            page.read_text("utf-8"),
            flags=re.M | re.S,
        )
        for hit in WORDS.finditer(re.sub(r"\bso\nmany\b", "so many\n", text)):
            found.append((page.relative_to(ROOT).as_posix(), text.count("\n", 0, hit.start()) + 1, hit[0]))
    return found


def find_all() -> dict[str, list[Finding]]:
    """Every finding by kind."""
    return {**find_in_sources(), "help": find_in_help(), "docs": find_in_docs()}
