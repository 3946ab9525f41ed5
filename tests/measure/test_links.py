"""Links that are really as slow as asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.measure.links import KERNEL, USER_SPACE, Bucket, shape_link
from windtunnel.measure.spaces import can_shape
from windtunnel.measure.workers import Workers

needs_namespaces = pytest.mark.skipif(not can_shape(), reason="this process may make no network namespaces")
MBIT = 1e6 / 8


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**9)), min_size=1, max_size=20))
def test_a_bucket_carries_one_message_after_the_other_at_its_rate(messages):
    bucket, free_ns, now_ns = Bucket(1e9), 0, 0
    for size_bytes, pause_ns in messages:
        now_ns += pause_ns
        free_ns = max(free_ns, now_ns) + size_bytes + 7
        assert free_ns == bucket.due_ns(size_bytes, now_ns, latency_ns=7)


def test_in_user_space_nothing_is_made_and_the_sender_is_told_the_latency():
    with shape_link(2, 1e6, 5_000, is_in_kernel=False) as link:
        assert (USER_SPACE, ((), ()), 5_000) == (link.how, link.prefixes, link.delay_ns)


@pytest.mark.parametrize("given_", [(0, 1e6, 0), (2, 0.0, 0), (2, float("nan"), 0), (2, 1e6, -1)])
def test_a_link_that_means_nothing_is_refused(given_):
    with pytest.raises(InputError, match="no link joins"), shape_link(*given_):
        pass


@needs_namespaces
@pytest.mark.parametrize("mbit", [100, 1000])
def test_the_payload_rate_is_that_of_the_link(mbit):
    """100 Mbit are 12.5 MB/s with headers; gloo is told which interface to use."""
    with shape_link(2, mbit * MBIT) as link:
        config = (link.addresses[0], round(mbit * MBIT / 4))
        with Workers("tests.measure.sending", config, num_ranks=2, prefixes=link.prefixes, patience_s=20) as ranks:
            rate_bytes_per_s = ranks.gather()[0]

    assert link.how == KERNEL
    assert 0 < rate_bytes_per_s < 1.02 * mbit * MBIT  # a busy host may be slower than the link
    assert not any(str(os.getpid()) in name for name in spaces())


@needs_namespaces
@pytest.mark.slow
def test_gloo_sends_over_the_link():
    pytest.importorskip("torch")
    with shape_link(2, 100 * MBIT) as link:
        config = (link.addresses[0], 4_000_000)
        with Workers(
            "tests.measure.reducing",
            config,
            num_ranks=2,
            prefixes=link.prefixes,
            environment=link.environment,
            patience_s=60,
        ) as ranks:
            seconds = ranks.gather()[0]

    assert 0.9 < seconds / (4_000_000 / (100 * MBIT)) < 1.5  # a ring of two sends every byte once


@needs_namespaces
def test_what_a_killed_process_left_is_swept_away_at_the_next_start():
    body = "with shape_link(2, 1e6): print(flush=True); time.sleep(60)"
    script = f"import time\nfrom windtunnel.measure.links import shape_link\n{body}"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert sum(str(process.pid) in name for name in spaces()) == 3
        process.send_signal(signal.SIGKILL)
    with shape_link(1, 1e6):
        time.sleep(0.05)
    assert not any(str(process.pid) in name for name in spaces())


def spaces():
    """Names of the network namespaces of this host."""
    folder = Path("/run/netns")
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
