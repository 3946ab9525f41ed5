"""Bar whatif_bias: no what-if is off in the same direction wherever it is flown.

Of the flights that come with the package, each job counts once per what-if, by the median of ``measured / predicted``.
A what-if is biased if a two-sided sign test over at least eight jobs says so, at 5 % over all what-ifs together, and
its median is off by more than 2 %: then a part of the model is missing, and wider intervals are no remedy.
"""

import math
import statistics
import sys
from collections import defaultdict

from benchmarks.bar import report
from windtunnel.flights.ledger import read_shipped_residuals

MIN_JOBS, LEVEL, MAX_MEDIAN = 8, 0.05, 0.02


def sign_test(values: list[float]) -> float:
    """Probability of signs at least as uneven if both were as likely."""
    signs = [value > 0 for value in values if value]
    rarer = min(sum(signs), len(signs) - sum(signs))
    return min(1.0, 2 * sum(math.comb(len(signs), k) for k in range(rarer + 1)) / 2 ** len(signs))


def main() -> int:
    by_job = defaultdict(lambda: defaultdict(list))
    for flight in read_shipped_residuals():
        by_job[flight.whatif.partition(":")[0]][flight.subject.partition("/")[0]].append(flight.log_residual)
    medians = {name: [statistics.median(rows) for rows in jobs.values()] for name, jobs in by_job.items()}
    judged = {name: values for name, values in medians.items() if len(values) >= MIN_JOBS}
    found = {
        name: {
            "num_jobs": len(values),
            "median_percent": 100 * math.expm1(statistics.median(values)),
            "probability": sign_test(values),
        }
        for name, values in sorted(judged.items())
    }
    biased = [
        name
        for name, row in found.items()
        if row["probability"] < LEVEL / len(found) and abs(row["median_percent"]) > 100 * MAX_MEDIAN
    ]
    report(
        "whatif_bias",
        len(biased),
        f"0 of the what-ifs with {MIN_JOBS} jobs or more",
        not biased,
        biased=biased,
        whatifs=found,
        too_few_jobs={name: len(values) for name, values in sorted(medians.items()) if name not in judged},
    )
    return int(bool(biased))


if __name__ == "__main__":
    sys.exit(main())
