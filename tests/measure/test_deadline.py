"""Work that is ended when its time is up, whatever it catches."""

import signal
import time

import pytest

from windtunnel.errors import InputError
from windtunnel.measure.deadline import OutOfTimeError, interrupt_after


def nap():
    while True:
        try:
            time.sleep(1000)
        except Exception:
            continue


def test_work_that_never_ends_is_interrupted():
    with pytest.raises(OutOfTimeError, match="the nap was not done"), interrupt_after(0.05, "the nap"):
        nap()


def test_work_is_not_begun_when_there_is_no_time():
    with pytest.raises(OutOfTimeError, match="not begun"), interrupt_after(0, "the nap"):
        raise AssertionError


@pytest.mark.parametrize("limit_s", [1000, float("inf")])
def test_errors_of_the_work_itself_stay_what_they_are(limit_s):
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(InputError, match="a mistake"), interrupt_after(limit_s, "the nap"):
        raise InputError("a mistake")

    assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_REAL)
    assert before == signal.getsignal(signal.SIGALRM)
