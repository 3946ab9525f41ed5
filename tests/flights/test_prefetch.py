"""Batches that a thread loads ahead: the same batches, in the same order."""

from __future__ import annotations

import threading

import pytest

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.flights import fly
from windtunnel.measure import StopRule
from windtunnel.sources.targets import WorkloadName

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from windtunnel.flights.proof import LOADING_THREAD  # noqa: E402
from windtunnel.sources.torch.live import LiveProgram  # noqa: E402

BRIEF = StopRule(rounds=3, min_rounds=3, precision=0.5, turn_ns=1_000_000, time_limit_s=5)


class Numbers(Dataset):
    def __init__(self, count, bad=-1):
        self.count, self.bad, self.loaded, self.threads = count, bad, [], set()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"sample {index} is damaged")
        self.loaded.append(index)
        self.threads.add(threading.current_thread().name)
        return index


def flight(**given):
    return registry.get("flight", "prefetch").function(LiveProgram(), **given)


def num_loading_threads():
    return sum(thread.name == LOADING_THREAD for thread in threading.enumerate())


def wait_for_end():
    for thread in threading.enumerate():
        if thread.name == LOADING_THREAD:
            thread.join(10)


def test_the_same_batches_come_from_another_thread():
    data = Numbers(7)
    iterate = DataLoader.__iter__
    with flight():
        batches = [batch.tolist() for batch in DataLoader(data, batch_size=2)]
    wait_for_end()

    assert [[0, 1], [2, 3], [4, 5], [6]] == batches
    assert {LOADING_THREAD} == data.threads
    assert iterate is DataLoader.__iter__
    assert 0 == num_loading_threads()


def test_no_more_than_so_many_batches_are_ready_and_an_iterator_that_is_dropped_ends_its_thread():
    data = Numbers(100)
    with flight(num_batches=2):
        batches = iter(DataLoader(data, batch_size=1))
        first = next(batches)
        assert 1 == num_loading_threads()
        del batches
    wait_for_end()

    assert 0 == first.item()
    assert len(data.loaded) <= 5  # one is used, two are ready, one waits for room, one more may have been begun
    assert 0 == num_loading_threads()


def test_an_error_of_a_sample_is_raised_where_its_batch_is_taken():
    with flight():
        batches = iter(DataLoader(Numbers(4, bad=2), batch_size=1))
        taken = [next(batches).item(), next(batches).item()]
        with pytest.raises(ValueError, match="sample 2 is damaged"):
            next(batches)

    assert [0, 1] == taken


def test_a_workload_with_a_loader_flies():
    measured = fly(WorkloadName("cnn", {"batch_size": 2}), "prefetch", rule=BRIEF)

    assert measured.speedup.value > 0
    with pytest.raises(InputError, match="0 batches ahead"), flight(num_batches=0):
        pass
