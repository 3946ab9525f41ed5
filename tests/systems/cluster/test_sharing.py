"""Jobs that send over one link slow each other down."""

from dataclasses import replace

import numpy as np
import pytest

from tests.systems.cluster.reference import Reference
from tests.systems.cluster.test_engine import happened, in_the_reference
from tests.systems.cluster.worlds import POLICIES, ShapeSpeeds, cluster, world
from windtunnel.errors import InputError
from windtunnel.hardware import Link
from windtunnel.search.speeds import LayerSpeeds, Profile
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.links import link_use
from windtunnel.systems.cluster.metrics import communication_ns, honest_notes
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.policy import Policy, Start


class Half:
    """A job on several machines sends half of its time."""

    def speed(self, model, batch, shape):
        return 0.5 if sum(map(len, shape)) > 1 else 1.0


def placed(*places):
    """A policy that puts each job where it is told, as soon as it is there."""

    def decide(state):
        for job in state.waiting:
            yield Start(int(job), places[job])

    return Policy(has_lease=False, decide=decide)


def ends_s(made, jobs, policy, speeds=None):
    return (simulate(made, jobs, speeds or Half(), policy).end_ns / 1e9).tolist()


TWO = {"arrival_s": [0, 50], "gpus": [2, 2], "work_s": [100, 100]}


@pytest.mark.parametrize("racks", [1, 2])
def test_two_equal_jobs_lose_what_the_other_sends_while_both_run(racks):
    """Alone a job takes 200 s; beside another each goes at 0.5 / (1 + 0.5 * 0.5), from 50 to 237.5 s."""
    made = replace(cluster(gpus=2, machines=2 // racks, racks=racks), shares_links=True)
    both = placed({0: 1, 1: 1}, {0: 1, 1: 1})

    assert [237.5, 287.5] == pytest.approx(ends_s(made, Jobs.of(**TWO), both), abs=1e-6)
    assert [200, 250] == ends_s(replace(made, shares_links=False), Jobs.of(**TWO), both)


def test_jobs_on_other_links_or_on_one_machine_do_not_matter():
    made = replace(cluster(gpus=2, machines=5), shares_links=True)

    apart = placed({0: 1, 1: 1}, {2: 1, 3: 1})
    assert [200, 250] == ends_s(made, Jobs.of(**TWO), apart)
    assert [200, 150] == ends_s(made, Jobs.of(**TWO), placed({0: 1, 1: 1}, {4: 2}))


def test_a_ring_over_slow_uplinks_hardly_loads_the_cards_under_it():
    """An uplink of a tenth of a card takes a tenth of it, and others lose a ninth of the time that it sends."""
    links = (Link("m", 1e9), Link("r", 1e9), Link("n", 1e8))
    made = replace(cluster(gpus=2, machines=2, racks=2), shares_links=True, links=links)
    jobs = Jobs.of(arrival_s=[0, 0], gpus=[2, 2], work_s=[100, 1000])

    within, between = simulate(made, jobs, Half(), placed({0: 1, 1: 1}, {0: 1, 2: 1})).end_ns / 1e9
    assert within == pytest.approx(200 * (1 + 0.5 * 0.5 / 9), rel=1e-9)
    assert between == pytest.approx(2000, rel=1e-9)  # a card has room for the uplink's tenth


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(2))
def test_every_event_is_that_of_a_naive_simulator(name, seed):
    """Sums of loads come in another order there, so that times may differ in the last digit."""
    made, jobs = world(seed)
    made = replace(made, shares_links=True)

    slow = in_the_reference(Reference(made, jobs, ShapeSpeeds(), POLICIES[name]).run())
    fast = happened(simulate(made, jobs, ShapeSpeeds(), POLICIES[name]))

    assert [(one[0], one[3]) for one in slow] == [(one[0], one[3]) for one in fast]
    times = [np.array([one[1:3] for one in found]) for found in (slow, fast)]
    assert np.abs(times[0] - times[1]).max() <= 1000


@pytest.mark.parametrize("seed", range(6))
def test_work_is_done_once_whatever_the_speeds(seed):
    made, jobs = world(seed + 50)
    alone = simulate(made, jobs, ShapeSpeeds(), POLICIES["timers"])
    run = simulate(replace(made, shares_links=True), jobs, ShapeSpeeds(), POLICIES["timers"])

    done = np.bincount(run.segments["job"], run.segments["done"], minlength=len(jobs))
    assert np.allclose(jobs.work_ns, done, rtol=1e-9)
    ran = np.bincount(run.segments["job"], (run.segments["end"] - run.segments["begin"]).clip(0), minlength=len(jobs))
    assert np.allclose(ran, run.run_ns)
    spread = run.segments["tier"] > 0
    whole = run.segments["end"] - run.segments["begin"]
    assert np.allclose(
        (run.segments["done"] / whole.clip(1))[spread & (whole > 10**6)],
        run.segments["speed"][spread & (whole > 10**6)], rtol=1e-6,
    )  # fmt: skip
    assert communication_ns(run).sum() >= 0.99 * communication_ns(alone).sum() or not spread.any()


def test_layers_say_what_each_tier_takes():
    """Parts of an iteration: what is left is computing and sending within machines."""
    profile = Profile("net", 8, np.full(3, 1e6), np.full(3, 1e6), np.full(3, 1e6), np.full(3, 4_000_000))
    links = (Link("m", 50e9), Link("r", 10e9, latency_ns=1000), Link("n", 1e9, latency_ns=5000))
    speeds, shape = LayerSpeeds({"net": profile}, links), ((2, 2), (2, 2))
    card, uplink, load, both = link_use(speeds, "net", 0, shape, links)
    iteration_ns = 9e6 / speeds.speed("net", 0, shape)
    inner_ns = 3 * 4_000_000 / 50e9 * 1e9  # two in a ring

    assert (card + uplink) * iteration_ns == pytest.approx(iteration_ns - 9e6 - inner_ns, rel=1e-6)
    assert 0 < card < uplink
    assert (load, both) == (pytest.approx(card + uplink / 9), 0.0)
    assert link_use(speeds, "net", 16, shape, links)[1] < uplink  # twice the computing
    assert link_use(Half(), "net", 0, ((2,),), links) == (0.0, 0.0, 0.0, 0.0)


def test_what_cannot_be_shared_is_refused():
    made, jobs = world(3)
    with pytest.raises(InputError, match="within a quantum"):
        simulate(replace(made, shares_links=True), jobs, ShapeSpeeds(), POLICIES["timers"], quantum=3)
    profile = Profile("net", 8, np.ones(1), np.ones(1), np.ones(1), np.ones(1, np.int64))
    links = cluster().links
    with pytest.raises(InputError, match="no communication overlaps"):
        link_use(LayerSpeeds({"net": profile}, links, overlap=True), "net", 0, ((1, 1),), links)


def test_the_note_about_shared_links_names_the_way_out_and_goes():
    made = cluster(gpus=2, machines=2)
    policy = placed({0: 1, 1: 1}, {0: 1, 1: 1})
    alone, shared = (
        honest_notes(simulate(replace(made, shares_links=one), Jobs.of(**TWO), Half(), policy)) for one in (False, True)
    )

    assert any("--shared-links" in note for note in alone)
    assert not any("--shared-links" in note for note in shared)
