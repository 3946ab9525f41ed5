"""Processes that are launched, stopped, heard and ended together."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windtunnel.measure.workers import WorkerError, Workers, run_to_end

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

MODULE = "tests.measure.working"
# a parent that starts two workers, one of them with a child of its own, and says who they are
PARENT = """
import sys, time
from windtunnel.measure.workers import Workers
with Workers("tests.measure.working", "fork", num_ranks=2) as workers:
    children = [workers.receive(rank) for rank in (0, 1)]
    if sys.argv[1] == "stopped":
        workers.stop()
    print(*[one.pid for one in workers._processes], *children, flush=True)
    time.sleep(60)
"""


def is_alive(process_id: int) -> bool:
    """Whether it runs or is stopped; what has ended and is not yet waited for does not count."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition, patience_s: float = 2.0) -> bool:
    """Whether it comes true in time."""
    end_s = time.monotonic() + patience_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)
    return bool(condition())


def test_each_rank_knows_its_place_and_answers_by_itself():
    with Workers(MODULE, "echo", num_ranks=3) as workers:
        for rank in (2, 0, 1):
            workers.send(f"order {rank}", rank)
        assert [(rank, 3, f"order {rank}") for rank in range(3)] == [workers.receive(rank) for rank in range(3)]


def test_the_last_answers_are_gathered_and_what_the_first_rank_says_before_is_heard():
    heard = []
    with Workers(MODULE, "count", num_ranks=2) as workers:
        assert ["done 0", "done 1"] == workers.gather(heard.append)
    assert [0, 1, 2] == heard


@pytest.mark.parametrize(
    ("how", "message"),
    [("raise", "ValueError: out of luck"), ("leave", "ended with 7"), ("die", "killed by SIGKILL"), ("quiet", "2 s")],
)
def test_the_end_of_one_is_told_with_its_last_words_and_ends_the_others(how, message):
    with Workers(MODULE, how, num_ranks=2, title="job", patience_s=2.0) as workers:
        with pytest.raises(WorkerError, match=message) as refusal:
            workers.receive()
        process_ids = [one.pid for one in workers._processes]
    assert "the job did not answer" in refusal.value.message
    assert "last words of rank 1" in refusal.value.log_tail
    assert not any(is_alive(one) for one in process_ids)


def test_a_stopped_group_does_nothing_until_it_is_resumed():
    with Workers(MODULE, "tick") as workers:
        workers.receive()
        workers.stop()
        time.sleep(0.1)
        while workers._lines[0].poll(0):
            workers.receive()
        assert not workers._lines[0].poll(0.2)
        workers.resume()
        assert workers.receive() > 0


@pytest.mark.parametrize("state", ["running", "stopped"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_parent_that_is_killed_or_interrupted(state, number):
    command = [sys.executable, "-c", PARENT, state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        process_ids = [int(word) for word in parent.stdout.readline().split()]
        assert 4 == len(process_ids)
        assert all(is_alive(one) for one in process_ids)
        parent.send_signal(number)

    assert until(lambda: not any(is_alive(one) for one in process_ids))


def test_a_command_is_run_to_its_end_or_to_its_limit():
    done = run_to_end(
        [sys.executable, "-c", "import os; print(os.environ['A']); raise SystemExit(3)"], environment={"A": "b"}
    )

    assert done is not None
    assert (3, "b\n") == (done.code, done.stdout)
    assert run_to_end(["no such command"]) is None
    assert run_to_end([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2) is None
