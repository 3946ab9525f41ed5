"""Strategies of a captured job: found, written, read again."""

import json

import numpy as np
import pytest

from tests.averaging_job import averaging_job
from tests.cli.command import windtunnel
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import save
from windtunnel.simulate import replay
from windtunnel.systems.strategy.optimizer import Strategy, chain_of, load_strategy, optimize
from windtunnel.whatifs import whatif
from windtunnel.whatifs.buckets import averaging_of

LINK = {"latency_ns": 10, "bandwidth_bytes_per_s": 1e9}


def test_large_gradients_of_one_late_message_go_apart():
    graph = averaging_job()
    found = optimize(graph, **LINK)
    assert "gradient-buckets" in found.request
    assert found.speedup > 1.2
    again = whatif(graph, [found.request])[0]
    assert again.predicted_ns == found.predicted_ns


def test_messages_as_they_are_are_no_strategy():
    """However much quicker than captured the link is said to be: nothing would change in the program."""
    apart = averaging_job(((0,), (1,), (2,)), (700 + 1000, 700 + 2000, 700 + 4000))
    found = optimize(apart, latency_ns=0, bandwidth_bytes_per_s=1e12)

    assert "gradient-buckets:caps_bytes=1000/2000/4000" not in " ".join([found.request, *dict(found.others)])


def test_nothing_is_better_than_the_best():
    found = optimize(averaging_job(), latency_ns=10_000_000, bandwidth_bytes_per_s=1e9)
    assert found.request == ""
    assert found.speedup == 1


def test_the_chain_ends_when_the_last_rank_has_its_gradients():
    for slow in (None, 1):
        graph = averaging_job(slow_rank=slow)
        chain = chain_of(graph, averaging_of(graph))
        ready = averaging_of(graph).ready
        ends_ns = chain.begin_ns + np.cumsum(chain.compute_ns)
        assert ends_ns.tolist() == replay(graph).finish_ns[ready].max(axis=0).tolist()


def test_a_job_that_cannot_fit_is_told():
    with pytest.raises(NotApplicableError, match="fit into"):
        optimize(averaging_job(), memory_bytes=1)


def test_a_strategy_is_written_and_read(tmp_path):
    strategy = Strategy("gradient-buckets:caps_bytes=1000", 1.5, 30.0, 20.0, others=(("amp", 1.1),), graph="x.wt")
    strategy.save(tmp_path / "one.json")
    assert load_strategy(tmp_path / "one.json") == strategy


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"request": 3}', '{"request": "a", "speedup": "fast"}'])
def test_what_is_no_strategy_is_refused(tmp_path, text):
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(InputError, match="no strategy"):
        load_strategy(tmp_path / "one.json")


def test_another_version_is_refused(tmp_path):
    Strategy("", 1.0, 1.0, 1.0, schema="windtunnel.strategy/9").save(tmp_path / "one.json")
    with pytest.raises(InputError, match="version"):
        load_strategy(tmp_path / "one.json")


def test_the_verb_writes_a_strategy(tmp_path):
    save(averaging_job(), tmp_path / "job.wt")
    done = windtunnel("whatif", "--search", tmp_path / "job.wt", "--bandwidth", "1GB/s", "--latency", "10ns", "--json")
    assert done.code == 0
    assert json.loads(done.stdout)["request"] == load_strategy(tmp_path / "job.strategy.json").request
