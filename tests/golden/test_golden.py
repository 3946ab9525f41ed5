"""Commands of all kinds print the documents that they printed before."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs the extra torch")
pytest.importorskip("rustworkx", reason="needs the extra plan")

from tests.golden.commands import COMMANDS
from tests.golden.documents import EXPECTED, find_differences, run_command
from tests.golden.inputs import write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs(folder)
        yield folder


@pytest.fixture(scope="module")
def documents(folder):
    """All of them, in order, as later commands read what earlier ones wrote."""
    return {name: run_command(words) for name, words in COMMANDS.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_printed_before(documents, name):
    expected = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    differences = list(find_differences(expected, documents[name]))

    assert not differences, "\n".join(
        [*differences[:10], "if the change is meant: python -m tests.golden, and read the diff"]
    )


def test_a_difference_is_found():
    before = {"a": [1, {"b": 2.0}], "c": None, "d": True}
    after = {"a": [1, {"b": 2.1}], "c": 0, "d": 1}

    assert 3 == len(list(find_differences(before, after)))
    assert not list(find_differences(before, before | {"a": [1, {"b": 2.0 * (1 + 1e-12)}]}))
    assert ["$.d: only expected"] == list(find_differences({"d": 1}, {}))
