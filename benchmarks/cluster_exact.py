"""The simulator of clusters beside what one can work out, and beside a naive simulator, event by event.

Golden cases (one rack of two machines of 4 GPUs, three jobs); speeds of five models on four placements by the closed
form, to 1e-6; 200 random workloads under all policies in a slow simulator of objects
(``tests/systems/cluster/reference.py``): every segment of every job, with its machines; network sensitivity is the
harmonic mean of speeds, work is conserved, and GPU time held, idle and in checkpoints is the capacity.
"""

import argparse

import numpy as np
from tests.systems.cluster.reference import Reference
from tests.systems.cluster.test_engine import THREE, HalfOverTheRack, happened, in_the_reference
from tests.systems.cluster.test_speeds import LINKS, PUBLISHED, SHAPES
from tests.systems.cluster.worlds import INF, POLICIES, ShapeSpeeds, cluster, world

from benchmarks import bar
from benchmarks.clusters import folder
from windtunnel.search.shapes import parse_shape
from windtunnel.search.speeds import LayerSpeeds, read_profiles
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.metrics import segment_gpu_ns
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.policy import Policy

TARGET = "0 differing: golden cases, speeds to 1e-6, every event of 200 workloads x all policies, conservation to 1e-9"
GOLDEN = ((0.0, True, 100.0), (INF, True, 110.0), (30.0, True, 130.0), (30.0, False, 110.0))


def golden():
    wrong = 0
    for timer_s, timer_events, end_s in GOLDEN:
        policy = Policy(order="nw_sens", rack_timer_s=timer_s, network_timer_s=INF, timer_events=timer_events)
        run = simulate(cluster(lease_s=1e6), Jobs.of(**THREE), HalfOverTheRack(), policy)
        wrong += [60.0, 150.0, end_s] != (run.end_ns / 1e9).tolist()
    return wrong


def closed_form(profile, text):
    """S without whole ns: 2 (p - 1) / p of the bytes over each link, bytes / p to the next, 2 (p - 1) latencies."""
    shape, total_s = parse_shape(text), 0.0
    sizes = (shape[0][0], len(shape[0]), len(shape))
    for size in profile.gradient_bytes[profile.gradient_bytes > 0]:
        left = float(size)
        for count, link in zip(sizes, LINKS, strict=True):
            total_s += 2 * (count - 1) / count * left / link.bandwidth_bytes_per_s
            total_s += 2 * (count - 1) * link.latency_ns / 1e9
            left /= count
    compute_s = profile.compute_ns / 1e9
    return compute_s / (compute_s + total_s)


def speeds():
    """Models on placements whose S is off, and the largest relative error."""
    profiles = read_profiles(folder() / "layers")
    model, wrong, worst = LayerSpeeds(profiles, LINKS), 0, 0.0
    for name, published in PUBLISHED.items():
        for text, printed in zip(SHAPES, published, strict=True):
            found, exact = model.speed(name, 0, parse_shape(text)), closed_form(profiles[name], text)
            error = abs(found / exact - 1)
            worst = max(worst, error)
            wrong += error > 1e-6 or abs(exact - printed) > 0.51e-6
    return wrong, worst


def worlds(num, first=1000):
    """Runs that differ from the naive simulator, or do not conserve."""
    differing, lost, segments = [], [], 0
    for seed in range(first, first + num):
        made, jobs = world(seed)
        for name, policy in POLICIES.items():
            run = simulate(made, jobs, ShapeSpeeds(), policy)
            segments += len(run.segments)
            if in_the_reference(Reference(made, jobs, ShapeSpeeds(), policy).run()) != happened(run):
                differing.append((seed, name))
            if not conserves(run):
                lost.append((seed, name))
    return differing, lost, segments


def conserves(run):
    segments, jobs = run.segments, run.jobs
    work = np.bincount(segments["job"], segments["done"], minlength=len(jobs))
    ran = np.bincount(segments["job"], segments["done"] / segments["speed"], minlength=len(jobs))
    # a segment ends at a whole ns: one ns each is what the harmonic mean may be off by
    rounding = np.bincount(segments["job"], minlength=len(jobs)) / run.run_ns
    mean_is_harmonic = np.abs(ran / run.run_ns - 1) <= 1e-9 + 2 * rounding
    last = int(segments["back"].max())
    capacity = run.cluster.num_gpus * (last - int(jobs.arrival_ns.min()))
    in_checkpoint = int(((segments["back"] - segments["end"]) * jobs.gpus[segments["job"]]).sum())
    total = int(segment_gpu_ns(run).sum()) + in_checkpoint + idle(run, last)
    return np.allclose(work, jobs.work_ns, rtol=1e-12) and mean_is_harmonic.all() and abs(total / capacity - 1) <= 1e-9


def idle(run, last):
    """GPU time in which nobody held a GPU, summed over intervals between events."""
    rows, places = run.segment_placements
    count, start, back = run.placements["gpus"][places], run.segments["start"][rows], run.segments["back"][rows]
    times = np.concatenate([start, back, [run.jobs.arrival_ns.min(), last]])
    change = np.concatenate([-count, count, [run.cluster.num_gpus, 0]])
    order = np.argsort(times, kind="stable")
    free = np.cumsum(change[order])
    return int((free[:-1] * np.diff(times[order])).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    wrong_golden, (wrong_speeds, worst) = golden(), speeds()
    differing, lost, segments = worlds(options.worlds)
    if options.verbose:
        print(differing[:20], lost[:20])
    total = wrong_golden + wrong_speeds + len(differing) + len(lost)
    bar.report(
        "cluster_exact", total, TARGET, total == 0 and options.worlds >= 200, golden_wrong=wrong_golden,
        speeds_wrong=wrong_speeds, worst_speed_error=worst, workloads=options.worlds, policies=len(POLICIES),
        segments=segments, events_differing=len(differing), not_conserved=len(lost),
    )  # fmt: skip


if __name__ == "__main__":
    main()
