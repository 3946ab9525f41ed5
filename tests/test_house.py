"""Rules of the house that import contracts cannot say."""

import ast
import re

import pytest

from tests import house_scan


def test_nobody_but_measure_launches_processes():
    assert [] == house_scan.launchers()


def test_nobody_but_measure_takes_times():
    assert [] == house_scan.timing()


def test_what_ifs_start_nothing_open_nothing_and_read_no_clock():
    assert [] == house_scan.reaching_out()


def test_no_room_imports_what_another_keeps_private():
    assert [] == house_scan.private_imports()


@pytest.mark.parametrize("allowed", [house_scan.ALLOWED_LAUNCHERS, house_scan.ALLOWED_TIMING])
def test_an_exception_is_a_file_that_is_there(allowed):
    assert [] == [path for path in allowed if not (house_scan.SOURCE / path).exists()]


SUBJECTS = {
    "programs": {"model", "search", "run"},
    "planning/placement": {"model", "search"},  # planning runs nothing
    "planning/pipelines": {"model", "search"},
    "planning/codesign": {"model", "search"},
    "training/pipelines": {"model", "search", "run"},
    "training/uneven": {"model", "search", "run"},
    "kernels": {"model", "search", "run"},
    "cluster": {"model", "search"},  # what drives real ones is another part
    "kernels/steps": {"model", "run"},  # the search is that of kernels
    "serving": {"model", "search", "run"},
    "comm": {"model", "run"},
    "suite": {"model", "run"},  # a benchmark decides nothing
    "suite/utilization": {"model", "search", "run"},
    "suite/cells": {"model", "search", "run"},
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_has_the_shape_of_all_subjects(subject):
    """Who knows one knows all: what it predicts, what it decides, the real thing."""
    folder = house_scan.SOURCE / subject
    found = {
        name for name in ("model", "search", "run") if (folder / name).is_dir() or (folder / f"{name}.py").exists()
    }

    assert SUBJECTS[subject] == found


def test_a_file_sends_its_reader_to_files_that_are_there():
    """``Not here: prices (``cost``)`` in the first paragraph of a file names a module, or a name in that file."""
    lost = []
    for path, tree in house_scan.sources():
        paragraph = re.search(r"Not here: .*?(?=\n\n|$)", ast.get_docstring(tree) or "", re.DOTALL)
        for name in re.findall(r"``([a-z_.]+)``", paragraph.group() if paragraph else ""):
            here = house_scan.SOURCE / path
            places = (here.parent, here.parent.parent, house_scan.SOURCE)
            relative = name.removesuffix(".py").replace(".", "/")
            if not any((place / f"{relative}.py").exists() or (place / relative).is_dir() for place in places):
                lost.append(f"{path}: {name}")

    assert [] == lost


def test_a_file_says_in_which_room_it_is():
    wrong = []
    for path, tree in house_scan.sources():
        said = re.match(r"[^\n]*\(room ([a-z]+)", ast.get_docstring(tree) or "")
        if said and said[1] not in (path.split("/")[0], path.removesuffix(".py")):
            wrong.append(f"{path}: {said[1]}")

    assert [] == wrong
