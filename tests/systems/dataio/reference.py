"""The loader's recurrence as it is written down, in plain loops."""

from __future__ import annotations


def loader_times(
    make_RN: list[list[int]],
    compute_RN: list[list[int]],
    num_workers: int,
    prefetch_factor: int,
    transfer_ns: int = 0,
    get_ns: int = 0,
    barrier_ns: int = 0,
) -> tuple[list[list[int]], list[int]]:
    """When each rank got each batch, and when each step ended."""
    ranks, steps = range(len(make_RN)), range(len(make_RN[0]))
    done = [[0] * len(steps) for _ in ranks]
    got = [[0] * len(steps) for _ in ranks]
    end = [0] * len(steps)
    ahead = num_workers * prefetch_factor
    for k in steps:
        before = end[k - 1] if k else 0
        for r in ranks:
            if num_workers:
                issue = 0 if k < ahead else got[r][k - ahead]
                free = done[r][k - num_workers] if k >= num_workers else 0
                done[r][k] = max(issue, free) + make_RN[r][k]
                got[r][k] = max(done[r][k] + transfer_ns, before) + get_ns
            else:
                got[r][k] = before + make_RN[r][k]
        end[k] = max(got[r][k] + compute_RN[r][k] for r in ranks) + barrier_ns
    return got, end
