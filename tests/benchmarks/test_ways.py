"""What the bar of the three ways looks for is found where it is, and nowhere else."""

import subprocess
import sys

import pytest
from benchmarks.unreached import shared_runs, unreached
from benchmarks.ways import SOURCE, named

from benchmarks import entered

LINES = [f"    first_{at} = second_{at} + {at}" for at in range(12)]


def write(folder, path, *lines):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def test_lines_that_two_rooms_share_are_found_as_one_run(tmp_path):
    write(tmp_path, "one/a.py", "import os", "def a():", *LINES)
    write(
        tmp_path,
        "two/b.py",
        "def b():",
        *LINES[:6],
        "",
        "    # a comment, and an empty line, are no difference",
        *LINES[6:],
    )

    found = shared_runs(tmp_path, 10)

    assert ["one/a.py:3-14 ~ two/b.py:2-15"] == [str(run) for run in found]


@pytest.mark.parametrize(("other", "number"), [("one/b.py", 12), ("two/b.py", 9)])
def test_lines_of_one_room_or_too_few_are_no_run(tmp_path, other, number):
    write(tmp_path, "one/a.py", "def a():", *LINES)
    write(tmp_path, other, "def b():", *LINES[:number])

    assert [] == shared_runs(tmp_path, 10)


def test_what_only_a_list_of_exports_mentions_is_unreached(tmp_path):
    pytest.importorskip("vulture")
    write(
        tmp_path,
        "a.py",
        '__all__ = ["alone", "used"]',
        "def alone():",
        "    return used()",
        "def used():",
        "    return 1",
    )

    assert ["a.py:2 function alone, 2 lines"] == [str(one) for one in unreached(tmp_path)]


def test_files_are_entered_by_functions_and_not_by_imports(tmp_path):
    write(tmp_path, "house/__init__.py", "from house import used, loaded")
    write(tmp_path, "house/used.py", "def run():", "    return 1")
    write(tmp_path, "house/loaded.py", "def at_import():", "    return 1", "at_import()", "class A:", "    b = 1")
    watch = f"from benchmarks.entered import watch; watch({str(tmp_path / 'house')!r}, {str(tmp_path / 'log')!r})"
    code = f"{watch}\nimport house\nhouse.used.run()"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": f"{tmp_path}:{SOURCE.parents[1]}"})

    assert [{"used.py"}] == list(entered.entered(tmp_path / "log").values())


def test_the_page_of_the_ways_names_files_that_are_there():
    assert [] == sorted(path for path in named() if not (SOURCE / path).exists())
