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


def test_a_file_sends_its_reader_to_files_that_are_there():
    """``Not here: prices (``cost``)`` in the first paragraph of a file names a module, or a name in that file."""
    lost = []
    for path, tree in house_scan.sources():
        paragraph = re.search(r"Not here: .*?(?=\n\n|$)", ast.get_docstring(tree) or "", re.DOTALL)
        for name in re.findall(r"``([a-z_.]+)``", paragraph.group() if paragraph else ""):
            here = house_scan.SOURCE / path
            folders = (here.parent, here.parent.parent, house_scan.SOURCE, house_scan.SOURCE / "systems")
            relative = name.removesuffix(".py").replace(".", "/")
            if not any((folder / f"{relative}.py").exists() or (folder / relative).is_dir() for folder in folders):
                lost.append(f"{path}: {name}")

    assert [] == lost


SUBJECTS = sorted(path.name for path in (house_scan.SOURCE / "systems").iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_has_a_page_for_its_readers_and_a_way_in(subject):
    """Its README.md fits one screen and names only files that are there."""
    folder = house_scan.SOURCE / "systems" / subject
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    named = [name for line in lines for name in re.findall(r"`([a-z_0-9/]+\.py)`", line)]

    assert len(lines) <= 60
    assert named
    assert [] == [name for name in named if not (folder / name).exists()]
    # a verb of its own, or what-ifs and pages for the verbs of the core
    assert (folder / "verb.py").exists() or (folder / "page.py").exists() or list(folder.glob("whatif_*.py"))
