"""The recommender beside trying everything, on random catalogs; and pairs of machines that cost what one does.

1,000 catalogs of up to eight kinds, trainings with and without files, deadlines and budgets: the choice is the cheapest
offer that trying all of them, epoch by epoch, finds. Then, for the two pairs of the paper whose price is exactly that
of the machine twice as large, with averaging over their network taking any time from a microsecond on: how often is the
pair taken, where memory does not ask for it? ``--catalogs N``.
"""

import argparse
import math

import numpy as np

from benchmarks import bar

TARGET = "the choice of 1,000 catalogs is that of trying everything; a pair is never taken for its network alone"
PAIRS = (("p2.8xlarge", "p2.16xlarge"), ("p3.8xlarge", "p3.16xlarge"))


def main() -> None:
    from tests.search.advice.test_search import drawn, plain_quote

    from windtunnel.hardware import instance
    from windtunnel.search.advice.model import Offer, Rented, StepTime, quote_training
    from windtunnel.search.advice.search import advise_on

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalogs", type=int, default=1000)
    given = parser.parse_args()
    wrong = num_none = pairs = 0
    for seed in range(given.catalogs):
        random = np.random.default_rng(seed)
        job, kinds = drawn(random, 8)
        offers = [Offer(kind, count) for kind in kinds for count in (1, 2, 3, 4)]
        steps = [StepTime(*random.uniform(1e6, 1e9, 3)) for _ in offers]
        tried = [plain_quote(job, offer, step) for offer, step in zip(offers, steps, strict=True)]
        times = sorted(time for time, _ in tried if time < math.inf) or [1.0]
        deadline, budget = random.uniform(0.5, 1.5) * random.choice(times), random.uniform(0.1, 1e4)
        quotes = [quote_training(job, offer, step) for offer, step in zip(offers, steps, strict=True)]
        found = advise_on(quotes, deadline_s=deadline, budget_usd=budget)
        good = [cost for time, cost in tried if time <= deadline and cost <= budget]
        num_none += not good
        if found.best is None or not good:
            wrong += bool(good) != (found.best is not None)
        else:
            wrong += abs(found.best.cost_usd / min(good) - 1) > 1e-9
        for pair, whole in PAIRS:
            step, network = random.uniform(1e6, 1e9, 2), float(random.uniform(1e3, 1e9))
            both = [StepTime(step[0], step[1], network), StepTime(step[0], step[1])]
            same = [Offer(instance(pair), 2), Offer(instance(whole), 1)]
            plain = Rented(job.num_samples, job.num_epochs, job.batch_size)
            chosen = advise_on([quote_training(plain, *one) for one in zip(same, both, strict=True)]).best
            pairs += chosen is None or chosen.offer.count == 2
    holds = wrong == 0 and pairs == 0
    bar.report("recommender", wrong, TARGET, holds, catalogs=given.catalogs, without_choice=num_none, pairs_taken=pairs)


if __name__ == "__main__":
    main()
