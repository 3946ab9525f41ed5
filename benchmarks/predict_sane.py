"""No prediction is nonsense: every device of the catalog, nine captured steps, three batches, every pricer to be had.

None may be refused, no task and no step may lie under the bound of its work, and a larger batch must never take less.
A device that is made twice as quick in all peaks and rates must answer otherwise, unless every kernel of the step is so
small that it takes the least time of any kernel. Pricers: what was published, else the roofline; the tile model,
trained within seconds on a part of the public measurements, where they are; and on this host what the captures
themselves measured, with the calibrated model between. The chip that states int8 alone is asked in int8, and those
without fp32 in bf16.

    python -m benchmarks.predict_sane --verbose
    python -m benchmarks.predict_sane --short --seed 1   # a third of the devices, by chance
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.shared_data import find_shared

from benchmarks import bar
from benchmarks.jobs import parameters
from windtunnel.cost.bounds import KERNEL_FLOOR_NS
from windtunnel.cost.host import host_device, is_host
from windtunnel.cost.measured import CalibratedPricer, MeasuredPricer, remember
from windtunnel.cost.operators.table import read_op_set, read_sheet
from windtunnel.cost.operators.tile import train_tile
from windtunnel.cost.operators.tile_pricer import TilePricer
from windtunnel.cost.pricer import Pricer
from windtunnel.cost.pricing import floor_of, in_type, with_known_peaks, with_library_types
from windtunnel.cost.published import PublishedPricer
from windtunnel.cost.roofline import RooflinePricer
from windtunnel.cost.work import work_of
from windtunnel.errors import WindtunnelError
from windtunnel.graph import Graph
from windtunnel.hardware import Device, devices
from windtunnel.measure import ProfileDatabase
from windtunnel.sources.targets import WorkloadName
from windtunnel.whatifs.another_batch import batch_of
from windtunnel.whatifs.forecast import Forecast, forecast

STEPS = ("mlp", "lstm", "transformer", "recommender", "bert", "resnet50", "decoder-lm", "ncf", "dlrm")
TIMES = (1, 2, 4)
TILE_ROWS = 20_000
TYPES = ("fp32", "bf16", "int8")


def tile_pricer() -> TilePricer | None:
    """Trained on some rows only: the bar is about sense, not about accuracy."""
    folder = find_shared("cost/neusight")
    if folder is None:
        return None
    rows = read_op_set(folder / "train_matmul.csv.gz", folder / "train_vector.csv.gz")
    some = np.sort(np.random.default_rng(0).choice(len(rows), TILE_ROWS, replace=False))
    return TilePricer(train_tile(rows.take(some), read_sheet(folder.parent / "devices.csv"), is_calibrated=False))


def asked_devices(arguments: argparse.Namespace) -> list[Device]:
    """All devices of the catalog, or a third of them by chance."""
    chips = list(devices().values())
    if not arguments.short:
        return chips
    selected = np.random.default_rng(arguments.seed).choice(len(chips), -(-len(chips) // 3), replace=False)
    return [chips[index] for index in sorted(selected.tolist())]


def captured() -> dict[str, Graph]:
    """Each step at its smallest size."""
    return {name: WorkloadName(name, parameters(name)).capture(2, None) for name in STEPS}


def dtype_of(chip: Device) -> str:
    """As captured where the device has fp32, else the first type that it states a peak for."""
    found = next(one for one in TYPES if one in chip.peak_flops_per_s)
    return "" if found == "fp32" else found


def quicker(chip: Device) -> Device:
    """The same chip with twice the peaks and rates."""
    cache = chip.cache_bandwidth_bytes_per_s
    return replace(
        chip,
        bandwidth_bytes_per_s=2 * chip.bandwidth_bytes_per_s,
        cache_bandwidth_bytes_per_s=2 * cache if cache else None,
        peak_flops_per_s={name: 2 * peak for name, peak in chip.peak_flops_per_s.items()},
    )


def num_under(found: Forecast, chip: Device, dtype: str) -> int:
    """Tasks under the bound of their work, worked out anew; what was measured here is what it is."""
    work, row_T = work_of(found.graph)
    typed = with_library_types(in_type(work, dtype) if dtype else work, chip)
    least = floor_of(with_known_peaks(typed, chip), chip).bound_ns
    sources = found.graph.tasks.strings("cost_source")
    modeled = (row_T >= 0) & ~sources.where({name: name == "measured" for name in sources.values})
    return int((found.graph.duration_ns[modeled] < least[row_T[modeled]] - 1).sum())


def failures_of(name: str, graph: Graph, chip: Device, pricers: list[Pricer]) -> Iterator[str]:
    """What is wrong with the answers for one step on one device by one list of pricers."""
    dtype, size, last_ns = dtype_of(chip), batch_of(graph), 0
    what = f"{name} on {chip.name} by {pricers[0].name}"
    given = {"dtype": dtype, "model": pricers, "host_factor": 0.0}
    try:
        found = [forecast(graph, chip, batch_size=times * size, **given) for times in TIMES]
        # what was measured on this host does not follow a sheet
        twin = None if is_host(chip) else forecast(graph, quicker(chip), **given)
    except WindtunnelError as error:
        yield f"refused: {what}: {error}"
        return
    for one in found:
        if num_under(one, chip, dtype) or one.makespan_ns < one.bound_ns:
            yield f"under its bound: {what}, batch {one.batch_size}"
        if one.device_ns < last_ns:
            yield f"not monotone: {what}, batch {one.batch_size}"
        last_ns = one.device_ns
    if twin is not None and not _is_told_apart(found[0], twin, pricers[0].name):
        yield f"not told apart: {what}"


def _is_told_apart(slow: Forecast, quick: Forecast, pricer: str) -> bool:
    """A bound falls with the device, but for kernels so small that each takes the least time of any kernel.

    What was learned of other devices need only answer otherwise.
    """
    if pricer not in ("published", "roofline"):
        return quick.device_ns != slow.device_ns
    priced = ~np.isnan(slow.graph.tasks["efficiency"])
    has_work = bool((slow.graph.duration_ns[priced] > KERNEL_FLOOR_NS).any())
    return quick.device_ns < slow.device_ns or not has_work


def main() -> None:
    """Print the bar, and with --verbose what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a third of the devices")
    parser.add_argument("--seed", type=int, default=0, help="which third")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    graphs, tile = captured(), tile_pricer()
    with tempfile.TemporaryDirectory() as folder:
        database = ProfileDatabase(Path(folder) / "profile.db")
        num_learned = sum(remember(graph, database) for graph in graphs.values())
        host = host_device(database=database)
        on_host = [MeasuredPricer(database), CalibratedPricer(database), RooflinePricer()]
        chips = asked_devices(arguments)
        asked = [(chip, [PublishedPricer(), RooflinePricer()]) for chip in chips]
        asked += [(chip, [tile, RooflinePricer()]) for chip in chips if tile and chip.kind == "gpu"]
        found: list[str] = []
        num_answers = 0
        for name, graph in graphs.items():
            for chip, pricers in [*asked, (host, on_host)]:
                found += failures_of(name, graph, chip, pricers)
                num_answers += len(TIMES)
    kinds = Counter(one.partition(":")[0] for one in found)
    if arguments.verbose:
        print("\n".join(found), file=sys.stderr)
    bar.report(
        "predict_sane",
        len(found),
        "0 answers refused, under their bound, falling with the batch, or blind to a device twice as quick",
        not found and len(graphs) >= 8,
        answers=num_answers,
        steps=len(graphs),
        devices=len(chips),
        pricers=["published", "roofline", *(["tile"] if tile else []), "measured", "calibrated"],
        operators_learned_here=num_learned,
        kinds=dict(kinds),
        examples=found[:5],
    )


if __name__ == "__main__":
    main()
