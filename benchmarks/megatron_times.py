"""Models of 22 to 530 billion parameters, pipelined over 8 to 280 A100s, take the time and memory that was published.

The shipped cases of ``shared/data/placement/calculon``: what each runs, the system as described there, and what was
measured. One tensor-parallel group of a Megatron-shaped model runs one microbatch under ``dry_run``; its operators and
messages are priced by the description, cut into stages, and replayed under interleaved 1F1B. Nothing is fitted to the
measured rows. Beside it: the same with messages in the backward pass overlapped, as Megatron-LM does while the cases
say that nothing overlaps, and by the catalog's own A100, whose prices are bounds.

    python -m benchmarks.megatron_times --verbose
"""

import json
import sys
from collections.abc import Mapping
from statistics import mean

from tests.shared_data import find_shared

from benchmarks import bar
from benchmarks.megatron.job import Case, by_catalog, described, iteration_ns, kept_bytes, most_kept
from benchmarks.megatron.system import System
from windtunnel.graph import Graph

MODELS = ("megatron-22B", "gpt3-175B", "turing-530B")
TIMED = ("full", "seqsel")
MODES = ("none", "seq", "sel", "seqsel", "full")
MEAN_TARGET, WORST_TARGET, MEMORY_TARGET = 0.0365, 0.0887, 0.021
TARGET = f"time within {MEAN_TARGET:.2%} on average, {WORST_TARGET:.2%} at worst, activations {MEMORY_TARGET:.1%}"
GIB = 2**30


def times(case: Case, graph: Graph, system: System) -> dict[str, float]:
    """Seconds of an iteration by whose word."""
    return {
        "as described": iteration_ns(case, described(graph, system), system) * 1e-9,
        "overlapped": iteration_ns(case, described(case.traced(overlaps=True), system), system) * 1e-9,
        "catalog": iteration_ns(case, by_catalog(graph), system) * 1e-9,
    }


def memory_errors(kept: Mapping[str, int], measured: Mapping[str, Mapping[str, float]], shares: Mapping[str, float]):
    """Of activations in bytes, and as a share of those without recomputation."""
    found = {f"{mode} GiB": kept[mode] / GIB / said["activations"] - 1 for mode, said in measured.items()}
    return found | {
        f"{mode} share": 100 * kept[mode] / kept["none"] / share - 1 for mode, share in shares.items() if mode != "none"
    }


def main() -> int:
    """Print the bar."""
    published = find_shared("placement/calculon/measured.json")
    if published is None:
        bar.report("megatron_times", 0.0, TARGET, holds=False, skipped="public data placement/calculon is not here")
        return 0
    folder, measured = published.parent, json.loads(published.read_text())
    system = System.read(folder / "systems/a100_80g.json")
    errors: dict[str, dict[str, float]] = {}
    memory: dict[str, dict[str, float]] = {}
    for model in MODELS:
        kept: dict[str, int] = {}
        for mode in MODES:
            case = Case.read(folder, model, "tab5" if mode in TIMED else "fig7", mode)
            graph = case.traced()
            kept[mode] = most_kept(case.schedule(), kept_bytes(graph) * case.blocks_per_stage)
            if mode in TIMED:
                seconds = measured["iteration_seconds"][model][mode]
                found = times(case, graph, system)
                errors[f"{model} {mode}"] = {name: value / seconds - 1 for name, value in found.items()}
        memory[model] = memory_errors(
            kept, measured["memory_gib_per_device"][model], measured["activation_percent_of_none"][model]
        )
        if bar.is_verbose():
            print(model, {name: row for name, row in errors.items() if model in name}, memory[model])
    sizes = {name: [abs(row[name]) for row in errors.values()] for name in next(iter(errors.values()))}
    held = [abs(error) for row in memory.values() for error in row.values()]
    value, worst = mean(sizes["as described"]), max(sizes["as described"])
    bar.report(
        "megatron_times",
        value,
        TARGET,
        value <= MEAN_TARGET and worst <= WORST_TARGET and mean(held) <= MEMORY_TARGET,
        worst=worst,
        memory=mean(held),
        worst_memory=max(held),
        others={name: mean(row) for name, row in sizes.items() if name != "as described"},
        errors=errors,
        memory_errors=memory,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
