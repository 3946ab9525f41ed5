"""One training that goes on in several ways, and the best way chosen."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.systems.uneven.small import fleet_of, small_job  # noqa: E402
from windtunnel import registry  # noqa: E402
from windtunnel.errors import InputError  # noqa: E402
from windtunnel.systems.uneven.goal import Goal  # noqa: E402
from windtunnel.systems.uneven.model import VirtualTraining, train_virtually  # noqa: E402
from windtunnel.systems.uneven.search import Candidate  # noqa: E402
from windtunnel.systems.uneven.tuning import tune  # noqa: E402

GOAL = Goal(1_000_000_000, every_ns=100_000_000)
HALF_NS, END_NS = 430_000_000, 1_000_000_000


@pytest.fixture
def fleet(tmp_path):
    return fleet_of(tmp_path, [1.0, 2.0, 3.0])


def begun(fleet, name, seed=3, **numbers):
    policy = registry.get("strategy", name).function(**numbers)
    return VirtualTraining(small_job(momentum=0.9), fleet, name, policy, GOAL, seed=seed)


def same(one, other):
    """Whether two runs are equal bit for bit."""
    return (
        one.points == other.points
        and np.array_equal(one.weights, other.weights)
        and np.array_equal(one.steps, other.steps)
        and np.array_equal(one.messages, other.messages)
    )


@pytest.mark.parametrize("name", sorted(registry.all("strategy")))
def test_a_fork_goes_on_as_the_training_does_and_leaves_it_alone(fleet, name):
    whole = begun(fleet, name)
    whole.advance(END_NS)
    split = begun(fleet, name)
    split.advance(HALF_NS)
    forks = [split.fork(), split.fork()]
    for one in (*forks, split):
        one.advance(END_NS)

    assert all(same(whole.result_so_far(), one.result_so_far()) for one in (*forks, split))


@pytest.mark.parametrize(
    ("name", "number", "first", "second"),
    [
        ("adsp", "commits", 1, 8),
        ("local-sgd", "tau", 2, 16),
        ("fedavg", "local", 2, 16),
        ("gaia", "threshold", 0.01, 2.0),
    ],
)
def test_another_number_changes_what_is_sent_from_then_on(fleet, name, number, first, second):
    more = {"period_s": 0.1} if name == "adsp" else {}
    plain = begun(fleet, name, **{number: first}, **more)
    plain.advance(HALF_NS)
    changed = plain.fork()
    changed.retune(second)
    for one in (plain, changed):
        one.advance(END_NS)
    sent = [one.result_so_far().messages for one in (plain, changed)]
    early = [one[one[:, 3] <= HALF_NS] for one in sent]
    is_more = sent[1][:, 4].sum() > sent[0][:, 4].sum()

    assert np.array_equal(*early)
    assert is_more == (name == "adsp")


def test_a_number_that_is_set_again_changes_nothing(fleet):
    plain, again = begun(fleet, "local-sgd", tau=4), begun(fleet, "local-sgd", tau=4)
    again.advance(HALF_NS)
    again.retune(4)
    for one in (plain, again):
        one.advance(END_NS)

    assert same(plain.result_so_far(), again.result_so_far())


def test_the_run_is_that_of_the_chosen_forks(fleet):
    found = tune(small_job(), fleet, Candidate("local-sgd"), [2, 4, 8], GOAL, 200_000_000, seed=3)

    assert [0, 200_000_000, 400_000_000, 600_000_000, 800_000_000] == [one.begin_ns for one in found.periods]
    assert END_NS == found.run.elapsed_ns
    before = 2
    for one in found.periods:
        losses = dict(one.losses)
        assert losses[one.selected] == min(losses.values())
        assert before in losses
        before = one.selected


def test_one_good_value_is_found_and_kept(fleet):
    """Averaging every step on slow links leaves hardly any steps."""
    found = tune(small_job(), fleet, Candidate("local-sgd"), [1, 32], GOAL, 250_000_000, seed=3)
    fixed = {
        tau: train_virtually(
            small_job(), fleet, "local-sgd", registry.get("strategy", "local-sgd").function(tau=tau), GOAL, seed=3
        ).points[-1].loss
        for tau in (1, 32)
    }  # fmt: skip

    assert "local-sgd:tau=32" == str(found.candidate)
    assert fixed[32] < fixed[1]
    assert found.run.points[-1].loss <= fixed[1]


def test_it_begins_with_the_number_of_the_strategy(fleet):
    found = tune(small_job(), fleet, Candidate("local-sgd", {"tau": 8}), [2, 4], GOAL, END_NS, seed=3)

    assert 8 == found.periods[0].losses[0][0]
    assert 1 == len(found.periods)


@pytest.mark.parametrize(
    ("name", "values", "period_ns", "said"),
    [
        ("bsp", [1, 2], 10**8, r"bsp has no parameter that may change.*"),
        ("local-sgd", [2], 10**8, "nothing to tune: 1 values"),
        ("local-sgd", [2, 2], 10**8, "nothing to tune: 1 values"),
        ("local-sgd", [2, 4], 0, "nothing to tune"),
        ("local-sgd", [2, 4], 2 * 10**9, "nothing to tune"),
    ],
)
def test_what_cannot_be_tuned_is_refused(fleet, name, values, period_ns, said):
    with pytest.raises(InputError, match=said):
        tune(small_job(), fleet, Candidate(name), values, GOAL, period_ns)
