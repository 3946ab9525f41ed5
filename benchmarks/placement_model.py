"""S on measured placements: four applications on up to several nodes of four T4-class GPUs (Pollux's measurements).

Per application a step is that of one GPU with this local batch, which was measured, plus what synchronization
exposes: a ring over all GPUs, in one node by its alpha and beta, over nodes by another beta; fitted on placements of
one and two nodes by non-negative least squares on relative errors. Steps on three and more nodes are predicted. A
second prediction adds a term for GPUs that share the card of the fullest node.

The measurements themselves limit this: two nodes of 4 GPUs are slower than three of them for most applications, which
no such model says; the share of batches where that is so stands in the line.
"""

import argparse
import csv
import gzip
from collections import defaultdict

import numpy as np
from scipy.optimize import nnls
from tests.shared_data import find_shared

from benchmarks import bar

TARGET = "median error of steps on >= 3 nodes <= 10 % per application, <= 7 % with the contended-node term"


def rows():
    path = find_shared("cluster/pollux/placements.csv.gz")
    if path is None:
        raise SystemExit("the placements are not here; point WINDTUNNEL_SHARED at the folder that holds cluster/pollux")
    found = defaultdict(list)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            counts = [int(digit) for digit in row["placement"]]
            found[row["app"]].append((counts, float(row["local_bsz"]), float(row["step_time_s"])))
    return found


def terms(counts, contended):
    """What synchronization is a sum of, with factors to fit."""
    gpus, nodes, fullest = sum(counts), len(counts), max(counts)
    ring, apart = 2 * (gpus - 1) / gpus, nodes > 1
    crowd = [apart * (fullest - 1) / nodes] if contended else []
    return [0.0 if apart else ring, 0.0 if apart else gpus - 1.0, apart * ring, *crowd]


def errors(found, contended):
    alone = defaultdict(list)
    for counts, batch, time in found:
        if counts == [1]:
            alone[batch].append(time)
    batches = sorted(alone)
    means = [np.mean(alone[one]) for one in batches]

    def columns(rows):
        matrix = np.array([terms(counts, contended) for counts, _, _ in rows])
        step = np.interp([batch for _, batch, _ in rows], batches, means)
        return matrix, step, np.array([time for _, _, time in rows])

    matrix, step, times = columns([row for row in found if len(row[0]) <= 2 and sum(row[0]) > 1])
    factors, _ = nnls(matrix / times[:, None], np.maximum(times - step, 0) / times)
    matrix, step, times = columns([row for row in found if len(row[0]) >= 3])
    return np.abs((matrix @ factors + step) / times - 1)


def slower_on_two(found):
    """Share of batches for which 4 + 4 GPUs take longer than 4 + 4 + 4."""
    times = {(tuple(counts), batch): time for counts, batch, time in found}
    both = [batch for counts, batch in times if counts == (4, 4) and ((4, 4, 4), batch) in times]
    return sum(times[(4, 4), batch] > times[(4, 4, 4), batch] for batch in both) / len(both)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    table = []
    for app, found in rows().items():
        plain, contended = (float(np.median(errors(found, extra))) for extra in (False, True))
        number = sum(len(counts) >= 3 for counts, _, _ in found)
        table.append({"application": app, "predicted": number, "median_error": plain, "with_contention": contended,
                      "slower_on_two_nodes": slower_on_two(found)})  # fmt: skip
    if options.verbose:
        print(bar.table(table))
    odd = float(np.mean([row["slower_on_two_nodes"] for row in table]))
    worst, worst_contended = (max(row[key] for row in table) for key in ("median_error", "with_contention"))
    checks = {f"{row['application']}: <= 10 %": row["median_error"] <= 0.1 for row in table}
    checks |= {f"{row['application']}: <= 7 % with contention": row["with_contention"] <= 0.07 for row in table}
    bar.report("placement_model", worst, TARGET, all(checks.values()), checks=checks,
               with_contention=worst_contended,
               slower_on_two_nodes=odd, placements=sum(row["predicted"] for row in table))  # fmt: skip


if __name__ == "__main__":
    main()
