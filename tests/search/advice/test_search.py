"""Which machines to rent, beside trying everything."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputError
from windtunnel.hardware import Instance, device, instance, instances, link
from windtunnel.search.advice.model import Offer, Rented, StepTime, quote_training
from windtunnel.search.advice.search import advise_on


def machine(name, num_devices, usd, *, vcpus=8, memory=1 << 36, chip="t4"):
    return Instance(
        name, device(chip), num_devices, vcpus, memory, link("pcie3-x16") if num_devices > 1 else None, 1e9, usd,
        "2024-06", "",
    )  # fmt: skip


def drawn(random, most_kinds):
    """A training, and one to ``most_kinds`` kinds of machines."""
    job = Rented(
        int(random.integers(1, 10**7)), int(random.integers(1, 20)), int(random.integers(1, 512)),
        float(random.choice([0, 1e9, 1e12])), float(random.choice([0, 50, 5000])), float(random.choice([0, 2e8])),
        float(random.choice([0, 1e9, 40e9])),
    )  # fmt: skip
    chips = ["t4", "a10g", "a100-sxm4-80g"]
    kinds = [
        machine(f"m{at}", int(random.integers(1, 9)), float(random.uniform(0.1, 30)), vcpus=int(random.integers(1, 99)),
                memory=int(random.integers(2**30, 2**40)), chip=str(random.choice(chips)))
        for at in range(int(random.integers(1, most_kinds + 1)))
    ]  # fmt: skip
    return job, kinds


def plain_quote(job, offer, step):
    """The formulas once more, epoch by epoch."""
    if job.device_bytes > offer.instance.device.memory_bytes:
        return math.inf, math.inf
    total = 0.0
    for epoch in range(job.num_epochs):
        steps = -(-job.num_samples // (offer.count * offer.instance.num_devices * job.batch_size))
        trained = steps * step.step_ns / 1e9
        prep = 0.0
        if job.prep_per_core_per_s:
            prep = job.num_samples / (offer.count * offer.instance.num_vcpus * job.prep_per_core_per_s)
        is_cold = epoch == 0 or job.dataset_bytes > 0.8 * offer.instance.memory_bytes
        fetch = 0.0
        if is_cold and job.disk_bytes_per_s:
            fetch = job.dataset_bytes / (offer.count * job.disk_bytes_per_s)
        total += max(trained, prep, fetch)
    return total, max(60, math.ceil(round(total, 6))) / 3600 * offer.count * offer.instance.price_usd_per_h


@given(seed=st.integers(0, 2**32 - 1))
def test_it_is_what_trying_everything_gives(seed):
    random = np.random.default_rng(seed)
    job, kinds = drawn(random, 5)
    offers = [Offer(kind, count) for kind in kinds for count in (1, 2, 3)]
    steps = [StepTime(*random.uniform(1e6, 1e9, 3)) for _ in offers]
    deadline, budget = random.uniform(10, 1e6), random.uniform(0.1, 1e4)
    quotes = [quote_training(job, offer, step) for offer, step in zip(offers, steps, strict=True)]
    found = advise_on(quotes, deadline_s=deadline, budget_usd=budget)
    tried = [plain_quote(job, offer, step) for offer, step in zip(offers, steps, strict=True)]
    good = [(float(f"{cost:.12g}"), time) for time, cost in tried if time <= deadline and cost <= budget]

    for quote, (time, cost) in zip(quotes, tried, strict=True):
        assert (time, cost) == pytest.approx((quote.time_s, quote.cost_usd), rel=1e-9)
    if good:
        assert min(good) == pytest.approx((found.best.cost_usd, found.best.time_s), rel=1e-9)
    else:
        assert found.best is None
        assert found.relaxed
    for one in found.front:
        assert not any(time < one.time_s * (1 - 1e-9) and cost < one.cost_usd * (1 - 1e-9) for time, cost in tried)
    assert all(why for _, why in found.cheaper)


def test_of_two_that_cost_the_same_the_one_without_a_network_is_taken():
    """2 x p2.8xlarge costs exactly what p2.16xlarge does, as 2 x p3.8xlarge and p3.16xlarge do."""
    for pair, whole in (("p2.8xlarge", "p2.16xlarge"), ("p3.8xlarge", "p3.16xlarge")):
        offers = [Offer(instance(pair), 2), Offer(instance(whole), 1)]
        assert offers[0].usd_per_h == pytest.approx(offers[1].usd_per_h)
        steps = [StepTime(1e8, 2e7, 3e7), StepTime(1e8, 2e7)]
        quotes = [quote_training(Rented(10**6, 3, 64), *one) for one in zip(offers, steps, strict=True)]

        assert whole == advise_on(quotes).best.offer.instance.name


def test_unless_memory_asks_for_it():
    """Both hosts of the pair hold all files, the one does not."""
    small = machine("whole", 8, 2.0, memory=50 << 30)
    large = machine("half", 4, 1.0, memory=200 << 30)
    job = Rented(10**6, 10, 64, dataset_bytes=100 * 2**30, disk_bytes_per_s=1e8)
    quotes = [
        quote_training(job, Offer(small, 1), StepTime(1e7)),
        quote_training(job, Offer(large, 2), StepTime(1.2e7)),
    ]
    found = advise_on(quotes)

    assert "half" == found.best.offer.instance.name
    assert "fetch" == quotes[0].bound_by


def test_what_does_not_fit_says_so_and_is_never_taken():
    job = Rented(1000, 1, 8, device_bytes=20 * 2**30)
    quotes = [quote_training(job, Offer(instance(name), 1), StepTime(1e6)) for name in ("g4dn.xlarge", "p4d.24xlarge")]
    found = advise_on(quotes)

    assert "p4d.24xlarge" == found.best.offer.instance.name
    assert [("g4dn.xlarge", "needs 20.0 GiB, t4 has 16")] == [
        (one.offer.instance.name, why) for one, why in found.cheaper
    ]
    assert "no machine runs it" in advise_on(quotes[:1]).relaxed


def test_hours_are_paid_whole_and_seconds_by_the_minute():
    job, offer = Rented(1000, 1, 1), Offer(machine("one", 1, 3.6), 1)

    assert 3.6 == pytest.approx(quote_training(job, offer, StepTime(1e7), billing="hour").cost_usd)
    assert 0.06 == pytest.approx(quote_training(job, offer, StepTime(1e7)).cost_usd)
    assert 0.1 == pytest.approx(quote_training(job, offer, StepTime(1e8)).cost_usd)


def test_a_limit_that_nothing_keeps_says_the_least_change():
    job = Rented(36_000, 1, 1)
    quotes = [quote_training(job, Offer(machine(name, 1, usd), 1), StepTime(ns)) for name, usd, ns in
              (("slow", 1.0, 1e9), ("fast", 4.0, 5e8))]  # fmt: skip
    both = advise_on(quotes, deadline_s=6 * 3600, budget_usd=15)

    assert both.best is None
    assert "a deadline of 10.0 h (1 x slow)" in both.relaxed
    assert "a budget of 20.00 USD (1 x fast)" in both.relaxed
    assert "fast" == advise_on(quotes, deadline_s=6 * 3600).best.offer.instance.name


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Rented(0, 1, 1), "no training has 0 samples"),
        (lambda: Rented(1, 1, 1, math.nan), "below 0"),
        (lambda: advise_on([]), "nothing can be chosen"),
        (lambda: quote_training(Rented(1, 1, 1), Offer(instance("g5.xlarge"), 1), StepTime(0)), "is none"),
        (
            lambda: quote_training(Rented(1, 1, 1), Offer(instance("g5.xlarge"), 1), StepTime(1), billing="day"),
            "by the 'day'",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_the_catalog_says_when_and_where_each_price_was():
    for one in instances().values():
        assert one.price_date
        assert one.source
        assert one.num_vcpus > 0
        assert one.memory_bytes > 0


def test_a_bare_bound_is_said_to_be_one_and_has_no_interval():
    """``recommend`` once printed "+- 0 %" for a step that only a lower bound was known of."""
    assert "at least 2.00 ms (lower bound: no measured or learned price for 60% of it)" == str(
        StepTime(2e6, spread_ratio=0.01, bound_ratio=0.6)
    )
    assert "2.00 ms +- 10% (predicted)" == str(StepTime(2e6, spread_ratio=0.1))
    assert "2.00 ms (measured)" == str(StepTime(2e6, source="measured"))
