"""Bar ``utilization``: flops exact, latency predicted without running, a waterfall that adds up.

Flops of 24 layer shapes against the formulas on paper. Latency of 100 random nets out of 15,625 cells (batch 2, 32 x
32 pixels, one thread), predicted from a table of a few dozen kernels and one constant fitted on 12 other cells, beside
flops alone, fitted on the same 12. A survey of vision models at 96 pixels,
batches of 1 and of 4. Nets and kernels are measured
in turn; times are lower quartiles. One thread, so that the bar says the same on two cores and on two hundred.
A machine that gives a busy thread less than 97 % of a core is shared: there processor time counts instead of the
clock's, and the line says so (``--clock`` decides otherwise).
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time

import numpy as np
import torch
from torch import nn

from benchmarks.bar import rank_correlation, report, table
from windtunnel.cost import measure_ceilings
from windtunnel.cost.lookup import fit_overhead
from windtunnel.measure import ProfileDatabase
from windtunnel.sources.torch.flop_count import conv_flops, count
from windtunnel.sources.torch.step import capture
from windtunnel.systems.utilization.cells.networks import NUM_CELLS, network
from windtunnel.systems.utilization.inference import FlownNet, SurveyRow, fly_nets, survey
from windtunnel.systems.utilization.model import utilization
from windtunnel.workloads.vision import vision_names

NUM_FITTED, NUM_TESTED = 12, 100
CELL_BATCH, CELL_ROUNDS = 2, 9
SURVEY_SIZE, SURVEY_BATCHES, SURVEY_ROUNDS = 96, (1, 4), 5
_CONVOLUTIONS = [
    (inputs, outputs, kernel, size, {"padding": kernel // 2, "groups": groups, "stride": stride, "dilation": dilation})
    for inputs, outputs, kernel, size in ((16, 32, 3, 14), (24, 48, 5, 17))
    for groups in (1, 8)
    for stride in (1, 2)
    for dilation in (1, 2)
]
_TRANSPOSED = [(8, 16, 4, 9, {"stride": stride, "groups": groups}) for stride in (1, 2) for groups in (1, 4)]
_LINEARS = [(64, 10, 8), (17, 33, 5), (768, 3072, 2), (1, 1, 1)]


def share_of_a_core(seconds: float = 1.0) -> float:
    """Processor time that a busy thread gets per second."""
    begin, worked = time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < seconds:
        pass
    return (time.thread_time() - worked) / (time.perf_counter() - begin)


def flops_exact() -> tuple[int, int]:
    """Shapes whose counted flops, forward and backward, equal those on paper; and shapes in all."""
    right = []
    for kind, rows in ((nn.Conv2d, _CONVOLUTIONS), (nn.ConvTranspose2d, _TRANSPOSED)):
        for inputs, outputs, kernel, size, settings in rows:
            layer = kind(inputs, outputs, kernel, **settings)
            images = torch.zeros(2, inputs, size, size, requires_grad=True)
            transposed = kind is nn.ConvTranspose2d
            paper = conv_flops(
                inputs, outputs, (kernel,) * 2, (size,) * 2, batch_size=2, transposed=transposed, **settings
            )
            right.append(count(lambda layer=layer, x=images: layer(x).sum().backward()).total == 3 * paper)
    for inputs, outputs, positions in _LINEARS:
        layer, features = nn.Linear(inputs, outputs), torch.zeros(positions, inputs)
        right.append(count(functools.partial(layer, features)).total == 2 * inputs * outputs * positions)
    return sum(right), len(right)


def kendall_tau(first: np.ndarray, second: np.ndarray) -> float:
    """Pairs in the same order less pairs in the other, over all pairs."""
    rows, columns = np.triu_indices(len(first), 1)
    return float(np.mean(np.sign(first[rows] - first[columns]) * np.sign(second[rows] - second[columns])))


def errors(predicted: np.ndarray, measured: np.ndarray) -> tuple[float, float]:
    """Median of the relative error, and Kendall's tau."""
    return float(np.median(np.abs(predicted / measured - 1))), kendall_tau(predicted, measured)


def cells(clock) -> dict[str, float]:
    chosen = random.Random(2212).sample(range(NUM_CELLS), NUM_FITTED + NUM_TESTED)
    images = torch.rand(CELL_BATCH, 3, 32, 32)
    prices: dict = {}
    nets = fly_nets(
        {str(index): (network(index), [images]) for index in chosen}, prices, rounds=CELL_ROUNDS, clock=clock
    )
    fitted, tested = nets[:NUM_FITTED], nets[NUM_FITTED:]
    overhead = fit_overhead([net.kernels for net in fitted], prices, [net.measured_ns for net in fitted])
    measured = np.array([net.measured_ns for net in tested])
    error, tau = errors(np.array([overhead.latency_ns(net.kernels, prices) for net in tested]), measured)
    flops_error, flops_tau = errors(by_flops(fitted, tested), measured)
    return {
        "cell_error": error,
        "cell_tau": tau,
        "flops_error": flops_error,
        "flops_tau": flops_tau,
        "num_kernels": len(prices),
        "per_call_us": overhead.per_call_ns / 1e3,
        "fastest_ms": measured.min() / 1e6,
        "slowest_ms": measured.max() / 1e6,
    }


def by_flops(fitted: list[FlownNet], tested: list[FlownNet]) -> np.ndarray:
    """Latency as a + b flops, least squares of relative errors on the same nets that fixed the constant."""
    measured = np.array([net.measured_ns for net in fitted])
    design = np.array([[net.flops, 1.0] for net in fitted]) / measured[:, None]
    slope, base = np.linalg.lstsq(design, np.ones(len(fitted)), rcond=None)[0]
    return np.array([slope * net.flops + base for net in tested])


def waterfall(database: ProfileDatabase) -> float:
    """Greatest distance of a waterfall's sum from 100, over four captured nets."""
    torch.set_num_threads(1)
    ceilings = measure_ceilings(("float32",), 1, database=database)
    worst = 0.0
    for index in (777, 4_321, 9_999, 15_624):
        model, images = network(index), torch.rand(CELL_BATCH, 3, 32, 32)

        def step(model=model, images=images):
            with torch.inference_mode():
                model(images)

        use = utilization(capture(step, iterations=5, warmup=1, model=model), ceilings)
        worst = max(worst, abs(sum(loss.percent for loss in use.waterfall) - 100.0))
    return worst


def ranked(rows: list[SurveyRow]) -> dict[str, float]:
    """Rank correlation of predicted and measured latency, that of flops, and the median error."""
    measured, predicted = [row.net.measured_ns for row in rows], [row.predicted_ns for row in rows]
    return {
        "models": len(rows),
        "correlation": rank_correlation(predicted, measured),
        "correlation_by_flops": rank_correlation([float(row.net.flops) for row in rows], measured),
        "error": errors(np.array(predicted), np.array(measured))[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="print the survey, not only the line")
    parser.add_argument("--clock", choices=("auto", "wall", "processor"), default="auto", help="which time counts")
    options = parser.parse_args()
    share = share_of_a_core()
    is_wall = options.clock == "wall" or (options.clock == "auto" and share >= 0.97)
    clock = time.perf_counter_ns if is_wall else time.thread_time_ns
    database = ProfileDatabase(":memory:")
    exact, shapes = flops_exact()
    found = cells(clock)
    worst = waterfall(database)
    models = survey(
        vision_names(), SURVEY_BATCHES, image_size=SURVEY_SIZE, rounds=SURVEY_ROUNDS, clock=clock, database=database
    )
    proven = [row for row in models.rows if not row.is_fitted]
    ranks = {size: ranked([row for row in proven if row.net.batch_size == size]) for size in SURVEY_BATCHES}
    num_models = min(one["models"] for one in ranks.values())
    correlation = min(one["correlation"] for one in ranks.values())
    uses = sorted(row.utilization for row in models.rows)
    holds = (
        exact == shapes >= 20
        and found["cell_error"] <= 0.08
        and found["cell_tau"] >= 0.9
        and found["flops_error"] > 2 * found["cell_error"]
        and found["flops_tau"] < found["cell_tau"] - 0.1
        and num_models >= 40
        and correlation >= 0.9
        and worst <= 0.1
    )
    if options.verbose:
        print(table([_shown(row) for row in models.rows]))
        print(models.failures)
    report(
        "utilization",
        found["cell_error"],
        "cells: median error <= 8%, tau >= 0.9, flops alone clearly worse; >= 40 models: rank correlation >= 0.9; "
        "flops exact on >= 20 shapes; waterfall 100 +- 0.1%",
        holds,
        shapes_exact=f"{exact}/{shapes}",
        **found,
        survey_models=num_models,
        survey_correlation=correlation,
        survey_by_batch=ranks,
        survey_utilization_median=uses[len(uses) // 2],
        survey_utilization_best=uses[-1],
        survey_failures=len(models.failures),
        waterfall_off=worst,
        peak_gflops_per_s=models.peak.flops_per_s / 1e9,
        peak_spread=models.peak.spread,
        isa=models.peak.isa,
        clock="wall" if is_wall else "processor",
        share_of_a_core=share,
    )
    return int(not holds)


def _shown(row) -> dict[str, object]:
    return {
        "model": row.net.name,
        "batch": row.net.batch_size,
        "measured ms": row.net.measured_ns / 1e6,
        "predicted ms": row.predicted_ns / 1e6,
        "GFLOP": row.net.flops / 1e9,
        "utilization": row.utilization,
        "predicted": row.predicted_utilization,
        "fitted": row.is_fitted,
    }


if __name__ == "__main__":
    sys.exit(main())
