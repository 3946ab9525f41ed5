from dataclasses import replace

import pytest

from tests.systems.collectives.plans import plan_of
from windtunnel.errors import PriceError
from windtunnel.hardware import Link
from windtunnel.measure.database import ProfileDatabase
from windtunnel.simulate import replay
from windtunnel.systems.collectives.calibration import Calibration, calibrate
from windtunnel.systems.collectives.executor import Executor
from windtunnel.systems.collectives.plan import Copy, Receive, ReceiveReduce, Send, Signal, View, Wait
from windtunnel.systems.collectives.simulated import build_plan_graph

X, Y = View("x", 0, (4,)), View("x", 4, (4,))
DURATIONS = {("copy float32", 4): 100.0, ("send float32", 4): 100.0, ("sum float32", 4): 30.0}
TIMES = Calibration(DURATIONS, message_ns=7.0, event_ns=3.0)
# 16 bytes take 160 ns
LINK = Link("slow", bandwidth_bytes_per_s=1e8, latency_ns=1000)


def two_messages():
    """Rank 0 copies on one thread and sends twice on the other; rank 1 adds up what comes."""
    sender = {"compute": (Copy(X, Y), Signal(0)), "communication": (Wait(0), Send(1, 0, X), Send(1, 1, X))}
    return plan_of(sender, {"compute": (ReceiveReduce(0, 0, X, X), Receive(0, 1, Y))})


def makespan_ns(link=None, *, copies_all=False):
    return replay(build_plan_graph(two_messages(), replace(TIMES, copies_all=copies_all), link)).makespan_ns


def test_without_a_link_a_message_is_there_after_its_copy():
    """Copy 100, event 3, sends until 203 and 303; received from 210 to 240, and from 310 to 410."""
    assert 410 == makespan_ns(copies_all=True)


def test_data_that_stay_are_not_copied():
    """Copy 100, event 3, received from 110 to 140, then to 240."""
    assert 240 == makespan_ns()


def test_a_link_carries_one_message_after_the_other():
    """Sent until 203 and 303, carried until 363 and 523, there 1,007 later; the last copy takes 100."""
    assert 523 + 1007 + 100 == makespan_ns(LINK, copies_all=True)


def test_threads_share_the_cores_of_the_host():
    """Three copies on two cores take one and a half times as long as one."""
    plan = plan_of(*({"compute": (Copy(X, Y),)} for _ in range(3)))

    assert 100 == replay(build_plan_graph(plan, TIMES)).makespan_ns
    assert 150 == replay(build_plan_graph(plan, TIMES, num_cores=2)).makespan_ns


def test_data_that_were_just_touched_come_from_the_cache():
    """Three copies of one range: the first finds nothing in the cache, then all, or half if its source is new."""
    cached = dict.fromkeys(DURATIONS, 10.0)
    plan = plan_of({"compute": (Copy(X, Y), Copy(X, Y), Copy(View("x", 8, (4,)), Y))}, size=12)
    for cache_bytes, expected_ns in ((0, 300), (64, 100 + 10 + 55), (16, 300)):
        times = replace(TIMES, cached_ns=cached, cache_bytes=cache_bytes)

        assert expected_ns == replay(build_plan_graph(plan, times)).makespan_ns


@pytest.mark.parametrize(("size", "expected_ns"), [(4, 100), (2, 50), (8, 250), (6, 175), (16, 500)])
def test_a_size_between_those_measured_is_interpolated(size, expected_ns):
    times = Calibration({("copy float32", 4): 100.0, ("copy float32", 8): 250.0})

    assert expected_ns == times.duration_ns(("copy float32", size))


def test_an_instruction_of_another_kind_has_no_price():
    with pytest.raises(PriceError, match="nothing was measured of max float32"):
        TIMES.duration_ns(("max float32", 4))


def test_what_was_measured_once_is_taken_from_the_database(tmp_path):
    database = ProfileDatabase(tmp_path / "profile.db")
    with Executor(2, link=LINK) as executor:
        number = executor.load(two_messages())
        first = calibrate(executor, [number], num_cores=2, database=database)
        again = calibrate(executor, [number], num_cores=2, database=database)

    assert first == again
    assert set(DURATIONS) == set(first.durations_ns) == set(first.cached_ns)
    assert min(first.durations_ns.values()) > 0
    assert replay(build_plan_graph(two_messages(), first, LINK)).makespan_ns > 1000
