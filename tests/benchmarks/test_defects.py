"""What judges planted defects: the list fits the sources, and a change is shown to the tests that run it."""

from pathlib import Path

import pytest
from benchmarks.defects import covering, planted, running

from tests.house_scan import SOURCE

KERNELS = """
import numba
import numpy as np

LIMIT = 3


@numba.njit(cache=True)
def capped(value):
    return min(value, LIMIT)


def of_all(values):
    total = 0
    for value in values:
        total += capped(value)
    return total
"""
USERS = """
from windtunnel.kernels import capped as cut


def twice(value):
    first = cut(value)
    return 2 * first
"""


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "users.py").write_text(USERS)
    return running.Sources(tmp_path)


def test_every_planted_defect_finds_its_old_text_once():
    assert len(planted.planted(SOURCE)) >= 20


def test_a_planted_defect_that_lost_its_text_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"finds its old text 0 times\n  where: graph/structure.py"):
        planted.planted(tmp_path)


def test_a_statement_is_seen_by_who_runs_it(sources):
    assert {"kernels.py": {16}} == dict(sources.seen_at("kernels.py", 16, 16))


@pytest.mark.parametrize("line", [5, 8, 10])
def test_compiled_code_and_constants_are_seen_by_who_names_them(sources, line):
    assert {"kernels.py": {16}, "users.py": {6}} == dict(sources.seen_at("kernels.py", line, line))


def test_compiled_code_of_others_may_hold_constants_and_kernels_but_no_plain_function(sources):
    assert [True, True, False] == [sources.is_frozen("kernels.py", line, line) for line in (5, 10, 16)]
    assert {"kernels.py", "users.py"} == sources.importers("kernels.py")


def test_the_nearest_and_quickest_tests_come_first(tmp_path):
    tests = {
        "tests/cli/test_a.py::test_far": {"seconds": 1.0, "lines": {"graph/x.py": [3]}},
        "tests/graph/test_b.py::test_near": {"seconds": 2.0, "lines": {"graph/x.py": [3]}},
        "tests/graph/test_b.py::test_beside": {"seconds": 0.1, "lines": {"graph/x.py": [4]}},
        "tests/graph/test_b.py::test_elsewhere": {"seconds": 0.1, "lines": {"graph/y.py": [3]}},
    }
    files = ["tests/cli/test_a.py", "tests/graph/test_b.py"]
    covering.store(files, tests, tmp_path, tmp_path)

    choice = covering.Covering(files, tmp_path).choose("graph/x.py", {"graph/x.py": {3}}, 40)

    assert ["near", "far", "beside"] == [test.rpartition("_")[2] for test in choice.tests]
    assert 2 == choice.num_covering


def test_what_a_test_file_runs_is_recorded_again_when_either_changes(tmp_path):
    source = Path("src/windtunnel/graph/x.py")
    (tmp_path / source).parent.mkdir(parents=True)
    (tmp_path / source).write_text("x = 1")
    (tmp_path / "test_a.py").write_text("")
    kept = tmp_path / "runs"
    tests = {"test_a.py::test_one": {"seconds": 1.0, "lines": {"graph/x.py": [1]}}}
    covering.store(["test_a.py"], tests, tmp_path, kept)

    assert [] == covering.stale_files(["test_a.py"], tmp_path, kept)
    (tmp_path / source).write_text("x = 2")
    assert ["test_a.py"] == covering.stale_files(["test_a.py"], tmp_path, kept)
