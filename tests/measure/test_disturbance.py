"""What others take of the time in which something is measured."""

import subprocess
import sys
import threading
import time

import pytest

from windtunnel.hardware.host import usable_cores
from windtunnel.measure import disturbance
from windtunnel.measure.disturbance import (
    Neighbors,
    Stretch,
    disturbance_line,
    disturbance_log_error,
    watch_disturbance,
)

pytestmark = pytest.mark.real_disturbance
LOAD = "while True: pass"
SPIN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); time.sleep(60)"


def spin(seconds):
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


@pytest.mark.skipif(not disturbance._run_queue_wait_ns(), reason="this kernel does not count how long threads wait")
def test_a_thread_that_shares_its_core_waits_half_of_the_time():
    neighbors = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(2 * len(usable_cores()))]
    try:
        time.sleep(0.2)
        with watch_disturbance() as stretch:
            spin(0.2)
    finally:
        for one in neighbors:
            one.kill()
            one.wait()

    assert stretch.waited_ratio > 0.2
    assert stretch.is_disturbed


def test_a_thread_that_ends_meanwhile_is_no_error():
    with watch_disturbance() as stretch:
        thread = threading.Thread(target=spin, args=(0.01,))
        thread.start()
        thread.join()

    assert 0.0 <= stretch.lost_ratio <= 1.0


def test_a_host_that_counts_nothing_is_not_disturbed(monkeypatch):
    monkeypatch.setattr(disturbance, "_run_queue_wait_ns", dict)
    with watch_disturbance() as stretch:
        pass

    assert 0.0 == stretch.waited_ratio


@pytest.mark.parametrize(("waited", "stolen", "is_disturbed"), [(0.01, 0.0, False), (0.2, 0.0, True), (0.0, 0.1, True)])
def test_either_share_disturbs(waited, stolen, is_disturbed):
    assert is_disturbed is Stretch(waited, stolen).is_disturbed


class Counters:
    """Counters of the kernel that a test sets."""

    def __init__(self, monkeypatch):
        self.total = self.busy = self.stolen = self.own = 0
        monkeypatch.setattr(disturbance._Ticks, "now", lambda: disturbance._Ticks(self.total, self.busy, self.stolen))
        monkeypatch.setattr(disturbance, "_own_ticks", lambda: self.own)

    def add(self, **ticks):
        for name, count in ticks.items():
            setattr(self, name, getattr(self, name) + count)


def test_what_a_program_and_its_children_take_is_not_taken_by_neighbors(monkeypatch):
    counters = Counters(monkeypatch)
    neighbors = Neighbors()
    counters.add(total=200, busy=200, own=199)

    assert 0.005 == neighbors.cores_ratio
    assert neighbors.are_quiet
    counters.add(total=200, busy=200, own=100)
    assert not neighbors.are_quiet
    assert pytest.approx(101 / 400) == neighbors.cores_ratio


def test_steal_counts_as_a_neighbor_and_too_short_a_time_as_nothing(monkeypatch):
    counters = Counters(monkeypatch)
    neighbors = Neighbors()
    counters.add(total=10, busy=10)

    assert neighbors.cores_ratio is None
    assert not neighbors.are_quiet
    counters.add(total=90, stolen=30, own=10)
    assert pytest.approx(0.3) == neighbors.cores_ratio


def test_ticks_of_children_that_run_are_the_programs_own():
    before = disturbance._own_ticks()
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        ticks = disturbance._own_ticks() - before
        child.kill()

    assert ticks >= 20


def test_the_line_names_the_share_and_how_well_times_are_known():
    line = disturbance_line({"lost_ratio": 0.5})

    assert "waited for a core 50% of the time" in line
    assert "known to 22%" in line
    assert "" == disturbance_line({}) == disturbance_line({"num_repeated": 3})
    assert (
        0
        == disturbance_log_error(0.0)
        < disturbance_log_error(0.2)
        < disturbance_log_error(0.9)
        == disturbance_log_error(0.9)
    )
