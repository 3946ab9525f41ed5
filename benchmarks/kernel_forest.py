"""Nets priced by the sum of their kernels, each by a forest that learned from measured kernels (after nn-Meter).

On each runtime: which layers it fuses is found from times; kernels of a prior of real nets are measured, more where
the forest errs; then nets are priced and really run, in turn, on one thread. Kernels that occur in those nets are not
measured beforehand. Published (nn-Meter, MobiSys 2021): 99 % of nets within 10 % on a mobile CPU, from thousands of
kernels per kind.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tests.shared_data import find_shared

from benchmarks import bar
from windtunnel.cost.ceilings import Ceilings, measured_ceilings
from windtunnel.measure.threads import threads
from windtunnel.systems.tensor_programs.runtimes.layer_kernels import LayerKernel, read_prior, split
from windtunnel.systems.tensor_programs.runtimes.model import PRESETS, KernelSample, fit_forests, sample_adaptively
from windtunnel.systems.tensor_programs.runtimes.run import (
    RUNTIMES,
    compile_for,
    find_fusions,
    in_turn,
    measure_kernels,
)
from windtunnel.workloads.vision import vision_model

NETS = ("resnet10", "resnet18", "mobilenet_w1", "mobilenet_wd2", "fdmobilenet_w1", "mnasnet_b1", "fbnet_cb",
        "densenet121", "vovnet39", "dla46c")  # fmt: skip
ONEDNN = {
    (kind, layer)
    for head in ("conv", "dwconv")
    for kind, layer in ((head, "bn"), (head, "relu"), (f"{head}-bn", "relu"))
}
FUSED = {"eager": set(), "onednn": ONEDNN}
MOST_FLOPS, MOST_ERROR, NUM_DERIVED = 5e8, 0.10, 60
SIZE, ROUNDS = 224, 7

Net = tuple[torch.nn.Module, list[torch.Tensor]]


def prior(folder: Path, kinds: set[str], without: set[LayerKernel]) -> list[LayerKernel]:
    """Kernels of real nets of the given kinds; elementwise ones have the shapes of what convolutions put out."""
    rng = np.random.default_rng(0)
    convs = [one for one in read_prior(folder / "prior_conv.csv", "conv") if one.flops <= MOST_FLOPS]
    depthwise = read_prior(folder / "prior_dwconv.csv", "dwconv")
    pools, linear = read_prior(folder / "prior_pooling.csv", "maxpool"), read_prior(folder / "prior_fc.csv", "fc")
    found: list[LayerKernel] = []
    for kind in sorted(kinds):
        head = kind.split("-")[0]
        known = {"conv": convs, "dwconv": depthwise, "maxpool": pools, "avgpool": pools, "fc": linear}
        rows = known.get(head)
        if rows is None:
            chosen = [convs[row] for row in rng.permutation(len(convs))[:NUM_DERIVED].tolist()]
            rows = [LayerKernel(kind, one.out_size, one.out_channels, one.out_channels) for one in chosen]
        found += [replace(one, kind=kind) for one in rows]
    return [one for one in dict.fromkeys(found) if one not in without]


def study(
    runtime: str, nets: dict[str, Net], folder: Path, ceilings: Ceilings, clock: Callable[[], int], num_kernels: int
) -> dict[str, object]:
    """One runtime: what it fuses, the forests, and the nets."""
    tests = find_fusions(runtime, clock=clock)
    fused = {test.pair for test in tests if test.is_fused}
    kernels = {name: split(*net, fused) for name, net in nets.items()}
    inside = {kernel for row in kernels.values() for kernel in row}
    known = prior(folder, {kernel.kind for kernel in inside}, inside)
    forests, sample, errors = sample_adaptively(
        known,
        lambda some: measure_kernels(some, runtime, clock=clock),
        ceilings,
        num_first=num_kernels,
        most_per_round=num_kernels // 4,
    )
    published = fit_forests(sample, ceilings, PRESETS["paper"])
    runs = [compile_for(runtime, *net) for net in nets.values()]
    took_ns = dict(zip(nets, in_turn(runs, ROUNDS, clock), strict=True))
    distinct = sorted(inside, key=str)
    alone = dict(zip(distinct, measure_kernels(distinct, runtime, clock=clock).tolist(), strict=True))
    measured = KernelSample(tuple(distinct), np.array(list(alone.values())))
    priced = forests.prices(distinct)
    covered = (priced.duration_low_ns <= measured.duration_ns) & (measured.duration_ns <= priced.duration_high_ns)
    rate = sum(kernel.flops for kernel in sample.kernels) / float(sample.duration_ns.sum())
    rows = [
        {
            "runtime": runtime,
            "net": name,
            "kernels": len(row),
            "measured_ms": took_ns[name] / 1e6,
            "forest": forests.net_ns(row) / took_ns[name] - 1,
            "forest, paper": published.net_ns(row) / took_ns[name] - 1,
            "sum of measured": sum(alone[kernel] for kernel in row) / took_ns[name] - 1,
            "flops": sum(kernel.flops for kernel in row) / rate / took_ns[name] - 1,
        }
        for name, row in kernels.items()
    ]
    if bar.is_verbose():
        print(bar.table(rows))
        print(bar.table([{"pair": "-".join(test.pair), "saved of the shorter": saved(test), "fused": test.is_fused}
                         for test in tests]))  # fmt: skip
    return {
        "errors": {key: statistics.median(abs(row[key]) for row in rows) for key in list(rows[0])[4:]},
        "within_10": statistics.mean(abs(row["forest"]) <= MOST_ERROR for row in rows),
        "kernel_errors_by_round": errors,
        "unseen_kernel_error": {
            name: float(np.mean(np.abs(one.duration_ns(distinct) / measured.duration_ns - 1)))
            for name, one in (("efficiency", forests), ("paper", published))
        },
        "coverage_of_90": float(covered.mean()),
        "num_measured": len(sample),
        "num_unseen": len(distinct),
        "fusions_found": fused == FUSED[runtime],
    }


def saved(test: object) -> float:
    both = test.first_ns + test.second_ns - test.chained_ns
    return both / min(test.first_ns, test.second_ns)


def main() -> None:
    """Print the bar, and with --verbose its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="print the table, not only the line")
    parser.add_argument("--kernels", type=int, default=300, help="first kernels per runtime; 3/4 more follow")
    parser.add_argument("--runtimes", nargs="*", default=list(RUNTIMES), help="both unless given")
    options = parser.parse_args()
    folder = find_shared("cost/nnmeter")
    if folder is None:
        bar.report("kernel_forest", 1.0, f"<= {MOST_ERROR}", holds=False, reason="public data is not here")
        return
    nets = {name: (vision_model(name, size=SIZE), [torch.rand(1, 3, SIZE, SIZE)]) for name in NETS}
    with threads(1):
        ceilings = measured_ceilings(num_threads=1)
        # time of the thread leaves out what others run on the same core
        found = {
            name: study(name, nets, folder, ceilings, time.thread_time_ns, options.kernels) for name in options.runtimes
        }
    value = max(one["errors"]["forest"] for one in found.values())
    bar.report(
        "kernel_forest",
        value,
        f"<= {MOST_ERROR} median error over {len(NETS)} nets on each runtime, fusions found",
        value <= MOST_ERROR and all(one["fusions_found"] for one in found.values()),
        **found,
    )


if __name__ == "__main__":
    main()
