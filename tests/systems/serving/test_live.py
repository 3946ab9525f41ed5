"""Servers that really go on: every request is answered once, whatever happens to the instances."""

import threading
import time
from concurrent.futures import wait

import pytest

from windtunnel.errors import FlightError, InputError
from windtunnel.systems.serving.adapt import adapt_to_queue
from windtunnel.systems.serving.drive import send
from windtunnel.systems.serving.instances import server_cores
from windtunnel.systems.serving.live import LiveServer
from windtunnel.systems.serving.model import Instance, Split
from windtunnel.systems.serving.requests import requests_of
from windtunnel.systems.serving.tail import Server

ECHO = """
import os, signal, time, torch
from windtunnel.systems.serving.job import Served

def numbers(bodies):
    if "die" in bodies:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002)
    return (torch.tensor(bodies, dtype=torch.float64),)

def make():
    return Served(torch.nn.Identity(), lambda batch: (torch.zeros(batch),), preprocess=numbers)
"""
TWO_CORES = pytest.mark.skipif(len(server_cores()) < 2, reason="two instances want two cores")


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    return f"{path}:make"


def split(*cells, batch=None):
    """By threads and batch of each instance."""
    return Split(tuple(Instance(t, b, 1e6) for t, b in cells), batch or sum(b for _, b in cells))


WHOLE, HALVES = split((2, 8)), split((1, 4), (1, 4))


class Clients:
    """So many that ask all the time, each for a number of its own, until they are told to end."""

    def __init__(self, live, count):
        self._live, self._is_over, self.asked, self.wrong = live, threading.Event(), 0, []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def _ask(self):
        while not self._is_over.is_set():
            with self._lock:
                self.asked += 1
                number = self.asked
            found = self._live.submit(number).result(timeout=60).output
            if found != number:
                self.wrong.append((number, found))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@TWO_CORES
def test_no_request_is_lost_when_instances_change_and_die(job):
    ready = []
    with LiveServer(job, Server(WHOLE, 1_000_000)) as live:
        with Clients(live, 6) as clients:
            live.change(HALVES)
            while live.split != HALVES:
                ready.append(live.num_ready)
                time.sleep(0.001)
            live.settle()
            assert 2 == live.num_ready
            first = live.submit("die")  # and its neighbors in the batch are answered by others
            assert isinstance(first.exception(timeout=60), FlightError)
            time.sleep(0.1)
            live.settle()
            assert (HALVES, 2) == (live.split, live.num_ready)
        asked, batches = clients.asked, list(live.batches)

    assert not clients.wrong
    assert min(ready) >= 1
    assert asked > 20
    assert sum(one.inputs for one in batches) >= asked
    assert [WHOLE, HALVES, HALVES] == [live.changes[0].before, live.changes[0].after, live.changes[-1].after]
    assert not any(one.failed for one in live.changes)
    with pytest.raises(FlightError, match="closing"):
        live.submit(1)


def test_what_cannot_be_answered_says_why_and_its_neighbors_are(job):
    with LiveServer(job, Server(split((1, 3)), 500_000_000)) as live:
        asked = [live.submit(body) for body in (1, "two", 3)]
        wait(asked)

        assert [1, 3] == [asked[at].result().output for at in (0, 2)]
        assert isinstance(asked[1].exception(), InputError)
        assert "cannot be answered" in str(asked[1].exception())
        assert "cannot be sent" in str(live.submit(lambda: 1).exception(timeout=60))
        assert 4 == live.submit(4).result(timeout=60).output


def test_a_larger_batch_needs_no_new_instance(job):
    small, large = split((1, 1)), split((1, 8))
    with LiveServer(job, Server(small, 0), max_inputs=8) as live:
        before = [process for _, process in live._active]
        live.change(large)
        live.settle()

        assert before == [process for _, process in live._active]
        assert (large, 1) == (live.split, live.num_ready)
        answered = send(live, requests_of("constant:rate=200,seconds=0.5"), more=float)
    assert 100 == len(answered.latencies_ns)
    assert (answered.latencies_ns > 0).all()
    assert answered.num_batches == len(live.batches)


@TWO_CORES
def test_instances_that_do_not_start_leave_those_from_before(job, tmp_path):
    with LiveServer(job, Server(WHOLE, 0)) as live:
        (tmp_path / "echo.py").write_text("def make():\n    raise RuntimeError('broken since')")
        live.change(HALVES)
        live.settle()

        assert (WHOLE, "serving") == (live.split, live.state)
        assert "broken since" in live.changes[-1].failed
        assert 7 == live.submit(7).result(timeout=60).output
        live.change(HALVES)
        live.change(WHOLE)  # while the other one warms
        live.settle()
        assert WHOLE == live.split


def test_a_server_that_never_starts_says_why(tmp_path):
    path = tmp_path / "echo.py"
    path.write_text("def make():\n    raise RuntimeError('nothing here')")

    with pytest.raises(FlightError, match="nothing here"), LiveServer(f"{path}:make", Server(split((1, 1)), 0)):
        pass


def test_a_full_queue_makes_batches_larger(job):
    splits = {batch: split((1, batch)) for batch in (1, 2, 4, 8)}
    with (
        LiveServer(job, Server(splits[1], 20_000_000), max_inputs=8) as live,
        adapt_to_queue(live, splits, period_s=0.2),
        Clients(live, 8) as clients,
    ):
        limit = time.monotonic() + 120
        while live.split.batch < 8 and time.monotonic() < limit:
            time.sleep(0.05)
        assert 8 == live.split.batch
    assert not clients.wrong


def test_more_threads_than_cores_are_refused(job):
    with pytest.raises(InputError, match="do not fit"):
        LiveServer(job, Server(split((len(server_cores()) + 1, 1)), 0))
