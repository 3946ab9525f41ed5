"""Settings that every test shares."""

from __future__ import annotations

import gc
import os
import time

import pytest
from hypothesis import HealthCheck, settings

from tests.fork_server import forked_processes
from windtunnel.measure import disturbance

# tests run side by side: a thread that spins while it waits for work takes the core of another test
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# the first call of a compiled kernel takes seconds; noise of the machine is no failure
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("house")


@pytest.fixture(scope="module", autouse=True)
def fresh_heap():
    """A capture looks through all objects that are alive: not through those of the tests before, which are many."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def processes_that_have_loaded_torch():
    """Processes that tests start are forks of one that has loaded torch, where that makes no difference."""
    with forked_processes():
        yield


_COUNTERS = {"_run_queue_wait_ns": disturbance._run_queue_wait_ns, "_Ticks.now": disturbance._Ticks.now}


@pytest.fixture(scope="session", autouse=True)
def quiet_host():
    """What is measured is kept, however busy the host is that runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disturbance, "_run_queue_wait_ns", dict)
        patch.setattr(disturbance._Ticks, "now", disturbance._Ticks)
        yield


@pytest.fixture(autouse=True)
def busy_host(request, monkeypatch):
    """``real_disturbance`` wants the truth."""
    if "real_disturbance" in request.keywords:
        monkeypatch.setattr(disturbance, "_run_queue_wait_ns", _COUNTERS["_run_queue_wait_ns"])
        monkeypatch.setattr(disturbance._Ticks, "now", _COUNTERS["_Ticks.now"])


@pytest.fixture(scope="session")
def own_time():
    """A budget of training counts what this thread computes, not what it waits for others on a busy host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windtunnel.systems.tensor_programs.model.training._clock_s", time.thread_time)
        yield
