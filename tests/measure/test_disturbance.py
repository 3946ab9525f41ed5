"""What others take of the time in which something is measured."""

import subprocess
import sys
import threading
import time

import pytest

from windtunnel.hardware.cores import allowed_cores
from windtunnel.measure import disturbance
from windtunnel.measure.disturbance import Stretch, watched

pytestmark = pytest.mark.real_disturbance
LOAD = "while True: pass"


def spin(seconds):
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


@pytest.mark.skipif(not disturbance._waited_ns(), reason="this kernel does not count how long threads wait")
def test_a_thread_that_shares_its_core_waits_half_of_the_time():
    neighbors = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(2 * len(allowed_cores()))]
    try:
        time.sleep(0.2)
        with watched() as stretch:
            spin(0.2)
    finally:
        for one in neighbors:
            one.kill()
            one.wait()

    assert stretch.waited_ratio > 0.2
    assert stretch.is_disturbed


def test_a_thread_that_ends_meanwhile_is_no_error():
    with watched() as stretch:
        thread = threading.Thread(target=spin, args=(0.01,))
        thread.start()
        thread.join()

    assert 0.0 <= stretch.lost_ratio <= 1.0


def test_a_host_that_counts_nothing_is_not_disturbed(monkeypatch):
    monkeypatch.setattr(disturbance, "_waited_ns", dict)
    with watched() as stretch:
        pass

    assert 0.0 == stretch.waited_ratio


@pytest.mark.parametrize(("waited", "stolen", "is_disturbed"), [(0.01, 0.0, False), (0.2, 0.0, True), (0.0, 0.1, True)])
def test_either_share_disturbs(waited, stolen, is_disturbed):
    assert is_disturbed is Stretch(waited, stolen).is_disturbed
