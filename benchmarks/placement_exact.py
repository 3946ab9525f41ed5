"""Every published value of the throughput problems and of PipeDream's planner, recomputed.

Counts must be equal, values equal to nine digits, or to those that are published where there are fewer. Of PipeDream's
plans the times must be equal and the published stages as good as ours: which of several equal plans the released
planner prints depends on the order of a Python set.
"""

import argparse
import math
from dataclasses import dataclass

from tests.shared_data import find_shared

from benchmarks import bar
from benchmarks.peers import placement_rules
from benchmarks.peers.pipedream_planner import Level, plan_stages
from benchmarks.peers.pipedream_profile import read_profile
from benchmarks.placement_data import (
    MISSING,
    PLANS,
    TABLE,
    Published,
    assignment_of,
    folder,
    ignored,
    problem,
    stages_time_s,
)
from windtunnel.search.downsets import downsets
from windtunnel.search.minmax import solve
from windtunnel.search.placement.contraction import contract
from windtunnel.search.placement.throughput import solve_linearization

TARGET = "every count and value equal (1e-9, or all published digits)"


@dataclass(frozen=True)
class Check:
    """One number."""

    where: str
    what: str
    found: float
    published: float
    digits: float  # what the published value may be off by

    @property
    def is_equal(self) -> bool:
        return abs(self.found - self.published) <= max(self.digits, 1e-9 * abs(self.published))


def of_row(row: Published) -> list[Check]:
    """Counts, one accelerator, expert, chain, PipeDream baseline and the exact value of one problem."""
    one = problem(row.name)
    contraction = contract(one)
    lattice = downsets(contraction.num_nodes, contraction.src, contraction.dst)
    chain = solve_linearization(one, orders=["depth-first"])
    checks = [
        Check(row.name, "nodes", one.num_nodes, row.num_nodes, 0),
        Check(row.name, "supernodes", contraction.num_nodes, row.num_supernodes, 0),
        Check(row.name, "downsets", lattice.num_downsets, row.num_downsets, 0),
        Check(row.name, "pairs", lattice.num_pairs, row.num_pairs, 0),
        Check(row.name, "one accelerator", placement_rules.single(one).value_ns / 1e6, row.single, 5e-7),
    ]
    if row.expert:
        device, kind = assignment_of(folder() / "experts" / f"{row.expert}_expert.json", one)
        value = one.loads(device, kind).max_load_ns() / 1e6
        checks.append(Check(row.name, "expert", value, row.expert_value, 5e-7))
    if row.pipedream:
        value = placement_rules.pipedream(one, ignored=ignored(row.name)).value_ns / 1e6
        checks.append(Check(row.name, "pipedream", value, row.pipedream, 5e-7))
    table = solve(lattice, contraction.work, upper=chain.value_ns)
    if row.exact is None:  # published: not above its chain's
        checks.append(Check(row.name, "exact, at most", max(table.value / 1e6, row.chain), row.chain, 0))
    else:
        checks.append(Check(row.name, "chain", chain.value_ns / 1e6, row.chain, 5e-7))
        checks.append(Check(row.name, "exact", table.value / 1e6, row.exact, 5e-10 * row.exact))
    return checks


def of_plans() -> list[Check]:
    """PipeDream's planner."""
    profiles = find_shared("placement/pipedream_profiles")
    checks = []
    for name, levels, options, stages, time_s, over_one, over_parallel in PLANS:
        profile = read_profile(profiles / f"{name}.txt")
        topology = [Level(*one) for one in levels]
        plan = plan_stages(profile, topology, **options)
        where = f"{name}, {' x '.join(str(count) for count, _ in levels)}{', ' + str(options) if options else ''}"
        theirs = stages_time_s(profile, topology, stages, **options)
        checks += [
            Check(where, "time", plan.time_s, time_s, 5e-10),
            Check(where, "published stages", theirs, time_s, 5e-10),
            Check(where, "over one", plan.speedup, over_one, 5e-6),
            Check(where, "over data parallel", plan.speedup_over_data_parallel, over_parallel, 5e-6),
        ]
    return checks


def main() -> None:
    """Print the bar, and with --verbose every number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="print every number")
    options = parser.parse_args()
    if folder() is None:
        bar.report("placement_exact", math.nan, TARGET, holds=False, reason=MISSING)
        return
    checks = [check for row in TABLE for check in of_row(row)] + of_plans()
    wrong = [one for one in checks if not one.is_equal]
    if options.verbose:
        rows = [{"where": one.where, "what": one.what, "found": one.found, "published": one.published,
                 "equal": one.is_equal} for one in checks]  # fmt: skip
        print(bar.table(rows))
    bar.report(
        "placement_exact",
        len(wrong),
        TARGET,
        not wrong,
        num_checked=len(checks),
        wrong=[[one.where, one.what, one.found, one.published] for one in wrong],
    )


if __name__ == "__main__":
    main()
