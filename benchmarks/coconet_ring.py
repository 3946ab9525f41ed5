"""Our ring all-reduce over shared memory against gloo's, on 2 and 4 processes.

Float32 sums of 4, 16 and 64 MiB. Both groups of processes exist at the same time and take turns, so that a disturbed
moment hits both; sums are of integers and have to be equal to the bit. Ours is an all-reduce that is split and fused
again, so that it goes piece by piece, lowered and run by the executor. ``--rounds N``, ``--mib N ...``.
"""

import argparse

import numpy as np

from benchmarks import bar
from benchmarks.peers.gloo_all_reduce import values
from windtunnel.measure.workers import Workers
from windtunnel.systems.collectives.build import Builder
from windtunnel.systems.collectives.executor import Executor
from windtunnel.systems.collectives.grouping import fuse
from windtunnel.systems.collectives.interpret import collect
from windtunnel.systems.collectives.lower import lower
from windtunnel.systems.collectives.transforms import split

TARGET = ">= 1.5x gloo's all_reduce at 4 to 64 MiB, k = 2 and 4, equal sums"
PIECE_BYTES = 1 << 20


def all_reduce(num_ranks, size):
    """The program, and its plan in pieces."""
    builder = Builder("all-reduce", num_ranks)
    whole = builder.program(builder.all_reduce(builder.declare_local("g", (size,)), name="total"))
    halves = split(whole, "total")
    program = fuse(halves, [stage.name for stage in halves.stages], "collective")
    return program, lower(program, max(1, 4 * size // num_ranks // PIECE_BYTES))


def compare(num_ranks, sizes_mib, rounds):
    """Milliseconds and ratio by size, and whether all sums are right."""
    result, is_equal = {}, True
    with Executor(num_ranks) as ours, Workers("benchmarks.peers.gloo_all_reduce", num_ranks=num_ranks) as gloo:
        for rank in range(num_ranks):
            gloo.receive(rank)
        for mib in sizes_mib:
            size = (mib << 20) // 4
            program, plan = all_reduce(num_ranks, size)
            number = ours.load(plan)
            parts = [values(rank, size) for rank in range(num_ranks)]
            buffers = ours.run(number, [{"g": part} for part in parts])
            for total in collect(plan, program, buffers)[program.outputs[0]]:
                is_equal &= bool((total == np.sum(parts, axis=0)).all())
            times = []
            for _ in range(rounds + 2):
                ours_ns = ours.time([number], 1, warmup=0).max()
                for rank in range(num_ranks):
                    gloo.send(size, rank)
                answers = [gloo.receive(rank) for rank in range(num_ranks)]
                is_equal &= all(is_right for _, is_right in answers)
                times.append((ours_ns, max(taken_ns for taken_ns, _ in answers)))
            ours_R, gloo_R = np.array(times[2:], dtype=np.float64).T
            ratios = gloo_R / ours_R
            result[f"{mib} MiB"] = {
                "ours_ms": float(np.median(ours_R)) / 1e6,
                "gloo_ms": float(np.median(gloo_R)) / 1e6,
                "ratio": float(np.median(ratios)),
                "quartiles": np.percentile(ratios, [25, 75]).tolist(),
            }
    return result, is_equal


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--mib", type=int, nargs="+", default=[4, 16, 64])
    arguments = parser.parse_args()
    runs = {num_ranks: compare(num_ranks, arguments.mib, arguments.rounds) for num_ranks in (2, 4)}
    worst = min(row["ratio"] for rows, _ in runs.values() for row in rows.values())
    is_equal = all(is_right for _, is_right in runs.values())
    details = {f"k={num_ranks}": rows for num_ranks, (rows, _) in runs.items()}
    bar.report("coconet_ring", worst, TARGET, worst >= 1.5 and is_equal, equal_sums=is_equal, **details)


if __name__ == "__main__":
    main()
