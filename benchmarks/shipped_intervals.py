"""Intervals of predictions that nobody has flown yet hold what they say, by the flights that come with the package.

Every one of these flights is predicted by those of other jobs, as a user's first prediction is: the share inside of
nominal 90 % intervals is to be 85 to 95 %.
"""

import math
import statistics
import sys
from collections import defaultdict

from benchmarks.bar import report
from windtunnel.flights.intervals import interval_of
from windtunnel.flights.ledger import read_shipped_residuals

LEVEL, LOW, HIGH = 0.9, 0.85, 0.95


def main() -> int:
    flights = read_shipped_residuals()
    inside, reach = defaultdict(list), defaultdict(list)
    alone = 0
    for flight in flights:
        job = flight.subject.partition("/")[0]
        others = [one for one in flights if one.subject.partition("/")[0] != job]
        backing = interval_of(flight.whatif, 1.0, [], confidence=LEVEL, shipped=others)
        if not backing.is_backed:
            alone += 1
            continue
        inside[flight.whatif].append(abs(flight.log_residual) <= math.log(backing.high))
        reach[flight.whatif].append(backing.high)
    judged = [one for row in inside.values() for one in row]
    share = statistics.fmean(judged)
    holds = LOW <= share <= HIGH
    report(
        "shipped_intervals",
        100 * share,
        f"{100 * LOW:g} to {100 * HIGH:g} % of flights inside the nominal 90 % interval from flights of other jobs",
        holds,
        num_flights=len(flights),
        num_without_interval=alone,
        factor_median=statistics.median(one for row in reach.values() for one in row),
        inside={name: f"{sum(row)} of {len(row)}" for name, row in sorted(inside.items())},
        factor={name: statistics.median(row) for name, row in sorted(reach.items())},
    )
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
