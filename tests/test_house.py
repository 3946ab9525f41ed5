"""Rules of the house that import contracts cannot say."""

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
