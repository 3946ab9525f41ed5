"""The eight observations of the TBD paper, shown or refuted on this machine.

Sweeps over batch sizes on one thread of two convolutional, two recurrent and two dense workloads of the suite, three
of them on two threads too, two of them in two gloo processes over a free link, one of 1 Gb/s, and one that is as slow
beside this processor as 1 Gb/s was beside the paper's GPU; feature maps as the fake run of the memory tracker tells
them at size small. The verdicts are those of ``benchmarks.tbd_observations``: nothing is tuned towards the
paper, and what is refuted is reported as refuted.

    python -m benchmarks.observations --verbose
    python -m benchmarks.observations --verbose --folder results     # kept, and gone on with
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import bar
from benchmarks.tbd_observations import observe
from windtunnel.graph import Graph, Kind, load
from windtunnel.systems.suite.model import fitting_parameters, predict_step_memory
from windtunnel.systems.suite.results import Cell, SuiteRun, load_run
from windtunnel.systems.suite.run import run_suite

CONVOLUTIONAL, RECURRENT, DENSE = ("resnet50", "diffusion-unet"), ("seq2seq", "deep-speech-2"), ("vit", "bert")
BATCH_SIZES = (1, 4, 16)
BUDGET_S = 3.0
GIGABIT_BYTES_PER_S = 125_000_000
PAPER_PEAK_FLOPS_PER_S = 5.3e12  # Quadro P4000: 1792 cores x 2 x 1.48 GHz
REMEMBERED = ("resnet50", "inception-v3", "convnext", "vit", "bert", "deep-speech-2", "diffusion-unet", "wgan-gp")


def measured(folder: str) -> SuiteRun:
    """Every cell that the observations need, in one folder."""
    options = {"output": folder, "resume": True, "budget_s": BUDGET_S, "fewest": 4}
    swept = (*CONVOLUTIONAL, *RECURRENT, *DENSE)
    run_suite(swept, batch_sizes=BATCH_SIZES, num_threads=[1], graph_iterations=3, keep_graphs=True, **options)
    threaded = (CONVOLUTIONAL[0], RECURRENT[0], DENSE[0])
    run = run_suite(threaded, batch_sizes=BATCH_SIZES[-1:], num_threads=[2], graph_iterations=0, **options)
    for link in (0, GIGABIT_BYTES_PER_S, scaled_link(run)):
        ranks = {"num_threads": [1], "num_ranks": [2], "link_bytes_per_s": link, "graph_iterations": 0}
        run_suite((CONVOLUTIONAL[0], DENSE[0]), batch_sizes=BATCH_SIZES[1:2], **ranks, **options)
    return load_run(folder)


def scaled_link(run: SuiteRun) -> int:
    """A link as slow beside this processor as 1 Gb/s beside the paper's GPU."""
    peak = max(rate for result in run.measured for rate in result.peak_flops_per_s.values())
    return round(GIGABIT_BYTES_PER_S * peak / PAPER_PEAK_FLOPS_PER_S)


def feature_maps() -> dict[str, float]:
    """Share of feature maps in the peak of a step at size small; what cannot be faked is left out."""
    needed = {name: predict_step_memory(name, fitting_parameters(Cell(name, "small"))) for name in REMEMBERED}
    return {
        name: each.by_category["feature map"] / each.total_bytes for name, each in needed.items() if each.by_category
    }


def low_kernels(graph: Graph, peak_flops_per_s: float) -> list[tuple[str, float, float]]:
    """Operators that take long and compute little: name, share of the operators' time, arithmetic utilization.

    Those with at least 5 % of the time and less than a tenth of the peak, longest first; FLOP as the graph's column has
    them, one per element where no products are summed.
    """
    is_operator = graph.tasks["kind"] == int(Kind.COMPUTE)
    ops = graph.tasks.strings("op")
    duration_ns, flops = (np.where(is_operator, graph.tasks[name], 0) for name in ("duration_ns", "flops"))
    time_by_op, flops_by_op = (np.bincount(ops.codes, weights=values) for values in (duration_ns, flops))
    whole_ns = time_by_op.sum() or 1.0
    used = flops_by_op / np.maximum(time_by_op / 1e9 * peak_flops_per_s, 1e-9)
    return [
        (ops.values[code], float(time_by_op[code] / whole_ns), float(used[code]))
        for code in np.argsort(-time_by_op)
        if time_by_op[code] >= 0.05 * whole_ns and used[code] < 0.1
    ]


def kernels(run: SuiteRun) -> dict[str, list[tuple[str, float, float]]]:
    """Long kernels with little arithmetic of the convolutional workloads at their largest batch."""
    found = {}
    for result in run.measured:
        if result.cell.workload in CONVOLUTIONAL and result.batch_size == max(BATCH_SIZES) and result.graph:
            peak = result.peak_flops_per_s["float32"]
            found[result.cell.workload] = low_kernels(load(Path(run.path) / result.graph), peak)
    return found


def main() -> None:
    """Print the bar, and with --verbose every observation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="print every observation")
    parser.add_argument("--folder", default="", help="keep the results here, and go on with those that are there")
    asked = parser.parse_args()
    kept = contextlib.nullcontext(asked.folder) if asked.folder else tempfile.TemporaryDirectory()
    with kept as folder:
        run = measured(folder)
        found = observe(run.results, feature_maps(), kernels(run))
    if asked.verbose:
        for each in found:
            print(f"{each.number}. {each.claim}\n   {each.verdict}: {each.finding}")
    checked = [each for each in found if each.is_shown is not None]
    failed = {result.cell.key: result.message for result in run.results if not result.is_measured}
    bar.report(
        "tbd_observations",
        sum(bool(each.is_shown) for each in checked),
        "all eight checked, shown or refuted with their numbers",
        len(checked) == len(found),
        num_checked=len(checked),
        verdicts={str(each.number): each.verdict for each in found},
        findings={str(each.number): each.finding for each in found},
        worst_waited_ratio=max(result.waited_ratio for result in run.measured),
        failed=failed,
    )


if __name__ == "__main__":
    main()
