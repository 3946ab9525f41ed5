"""Names, help, errors and docs use the words of the field: what is left of older ones only becomes less."""

import ast
import functools

import pytest

from tests import word_scan

LEFT = {"loop variables": 0, "names": 0, "prefixes": 0, "functions": 0, "errors": 0, "help": 0, "docs": 0}
"""How many findings of each kind are left. Lower a number when you remove some; never raise one."""


@functools.cache
def in_sources():
    return word_scan.find_in_sources()


def shown(findings):
    return "\n".join(f"{path}:{line}: {word}" for path, line, word in findings)


@pytest.mark.parametrize("kind", ["loop variables", "names", "prefixes", "functions", "errors"])
def test_no_name_or_error_of_the_sources_brings_an_older_word_back(kind):
    findings = in_sources()[kind]

    assert len(findings) <= LEFT[kind], shown(findings)


def test_the_docs_are_written_in_standard_english():
    findings = word_scan.find_in_docs()

    assert len(findings) <= LEFT["docs"], shown(findings)


@pytest.mark.slow
def test_no_help_of_a_verb_brings_an_older_word_back():
    findings = word_scan.find_in_help()

    assert len(findings) <= LEFT["help"], shown(findings)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("for one in rows: pass", [("loop variables", "one")]),
        ("[at for row, at in rows]", [("loop variables", "at")]),
        ("def f(told, most_tasks): pass", [("names", "told"), ("prefixes", "most_tasks")]),
        ("_LEAST_SHARE = 1", [("prefixes", "_LEAST_SHARE")]),
        ("def _filled(rows): pass", [("functions", "_filled")]),
        ("def rows_sorted(): pass", [("functions", "rows_sorted")]),
        ("def is_filled(): pass", []),
        ("def print_sorted(): pass", []),
        ("def feed(): pass\ndef elapsed_ns(): pass\ndef __enter__(): pass", []),
        ("class A:\n @property\n def compressed(self): pass", []),
        ('@registry.whatif("overlapped", source="x")\ndef overlapped(): pass', []),
        ('raise InputError(f"nobody said {name}")', [("errors", "nobody"), ("errors", "said")]),
        ("one = 1\nfor row in rows: pass\nplace = 2", []),
    ],
)
def test_what_a_rule_finds(code, expected):
    assert expected == [hit for node in ast.walk(ast.parse(code)) for hit in word_scan._words_of(node)]


def test_accepted_names_are_those_of_functions_that_are_there():
    names = {
        node.name for _, tree in word_scan.sources() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }

    assert set(word_scan.ACCEPTED) <= names
