"""Networks of compiled programs: priced by the learned model alone, replayed, and really run (R5, first half of A9).

The model has seen no task of these networks. For each task it chooses the fastest of its candidates; the chain of the
chosen programs is priced, replayed and run. ``measured`` prices the same chain by what each program takes when it is
visited among all others in random order, in turn with the passes, and shows what the chain itself costs.

How much of a network stays in a cache that others on the machine share changes by the minute: what the device's sheet
says of that cache is measured again before each network.
"""

import argparse
import statistics
import sys
from dataclasses import replace

from benchmarks.bar import is_verbose, report, table
from benchmarks.program_data import MISSING, default_predictor, shipped_set

NETWORKS = ("resnet18", "mobilenetv2_w1", "efficientnet_b0", "bert:tiny")
LEARNED, MEASURED, SHARE = 0.10, 0.05, 0.75
NUM_CANDIDATES = 32


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="avx512-1")
    parser.add_argument("--budget", type=float, default=240.0)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    return parser.parse_known_args()[0]


def row_of(name: str, worker, target, predictor, sheet) -> dict[str, object]:
    from benchmarks.peers.network import call_ns, chain, fly, library_of
    from windtunnel.cost.pricing import price
    from windtunnel.graph import Kind
    from windtunnel.hardware import Device
    from windtunnel.simulate import replay
    from windtunnel.systems.tensor_programs.pricer import AstPricer
    from windtunnel.systems.tensor_programs.run.harvest import record
    from windtunnel.systems.tensor_programs.run.pages import OTHERS, RATES

    tasks, uncovered = record(name)
    library, candidates = library_of(worker, tasks, NUM_CANDIDATES)
    rates = worker.ask("describe", target.isa, target.num_threads)
    sheet = sheet | {rate: rates[rate] for rate in RATES}
    told = replace(predictor, header=predictor.header | {"device_sheets": {sheet["name"]: sheet}})
    pricer = AstPricer(told, library)
    chosen = pricer.choose(dict.fromkeys(task.name for task in tasks), sheet)
    of_call_ns = call_ns(worker, target)
    graph = chain(tasks, of_call_ns)
    device = Device(
        sheet["name"], 2**34, sheet["bandwidth_bytes_per_s"], {"fp32": sheet["peak_flops_per_s"]}, kind="cpu"
    )
    predicted_ns = replay(price(graph, device, [pricer])).makespan_ns
    warm_ns = sum(of_call_ns + 1e9 * chosen[task.name][1] for task in tasks)
    programs = {task: candidates[row] for task, (row, _) in chosen.items()}
    passes, visited = fly(worker, tasks, programs, target)
    measured_ns = 1e9 * statistics.median(passes)

    own_ns = [max(0, round(1e9 * visited[task.name]) - of_call_ns) for task in tasks]
    by_measured_ns = replay(graph.set_duration(graph.select(kind=Kind.COMPUTE), own_ns)).makespan_ns
    return {
        "network": name,
        "tasks": len(tasks),
        "distinct": len(chosen),
        "uncovered_calls": sum(uncovered.values()),
        "measured_ms": measured_ns / 1e6,
        "learned": predicted_ns / measured_ns - 1,
        "learned_warm": warm_ns / measured_ns - 1,
        "measured": by_measured_ns / measured_ns - 1,
        "others_gb_per_s": rates[OTHERS] / 1e9,
        "peak_now_of_sheet": rates["peak_flops_per_s"] / sheet["peak_flops_per_s"],
    }


def main() -> int:
    from benchmarks.program_data import device_here
    from windtunnel.systems.tensor_programs.model.predictor import with_intervals
    from windtunnel.systems.tensor_programs.model.splits import split_by_network
    from windtunnel.systems.tensor_programs.run.build import parse_target
    from windtunnel.systems.tensor_programs.run.worker import Worker

    asked = options()
    claim = f"learned within {LEARNED:.0%} on >= {SHARE:.0%} of networks, measured within {MEASURED:.0%}"
    programs = shipped_set()
    if programs is None:
        report("compiled_networks", float("nan"), claim, holds=False, reason=MISSING)
        return 1
    names = asked.networks.split(",")
    target, rows = parse_target(asked.target), []
    device = device_here(programs, target)
    split = split_by_network(programs, device, names)
    predictor = with_intervals(default_predictor(programs, split, asked.budget), programs, split.validation)
    own = programs.devices[programs.column(device)]
    with Worker() as worker:
        for name in names:
            rows.append(row_of(name, worker, target, predictor, own))
            print(rows[-1], file=sys.stderr, flush=True)
    if is_verbose():
        print(table(rows))
    shares = {
        kind: sum(abs(float(str(row[kind]))) <= limit for row in rows) / len(rows)
        for kind, limit in (("learned", LEARNED), ("measured", MEASURED))
    }
    holds = min(shares.values()) >= SHARE
    report(
        "compiled_networks",
        statistics.median(abs(float(str(row["learned"]))) for row in rows),
        claim,
        holds,
        device=device,
        learned={str(row["network"]): row["learned"] for row in rows},
        learned_warm={str(row["network"]): row["learned_warm"] for row in rows},
        measured={str(row["network"]): row["measured"] for row in rows},
        others_gb_per_s={str(row["network"]): row["others_gb_per_s"] for row in rows},
        uncovered_calls={str(row["network"]): row["uncovered_calls"] for row in rows},
        peak_now_of_sheet=statistics.median(float(str(row["peak_now_of_sheet"])) for row in rows),
    )
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
