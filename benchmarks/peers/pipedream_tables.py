"""Tables of PipeDream's planner: what lies between two states, the best stages of a level.

In: a profile and a lattice of its states, which may be a chain. Out: ``States``, ``LevelTable``. Not here: what they
are asked (``pipedream_planner``).

Source: PipeDream (Narayanan et al., SOSP 2019), section 3.1 and its released planner, whose ties are kept.
"""

# N layers, I states (downsets), m machines of a level

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.pipedream_profile import Profile
from windtunnel.search import downset_kernels as kernels
from windtunnel.search.downsets import Lattice

__all__ = ["Level", "LevelTable", "States"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """Machines that are joined by equal links.

    Parameters
    ----------
    num_machines : int
    bandwidth_bytes_per_s : float
    """

    num_machines: int
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, eq=False)
class States:
    """Downsets with what lies between any two that are nested.

    Parameters
    ----------
    inside_II : bool [I, I]
        Whether the first is a proper part of the second.
    time_II, weights_II, activations_II : float64 [I, I]
        Of the difference.
    out_I : float64 [I]
        Bytes that later layers read from a downset, or that it ends with.
    """

    lattice: Lattice
    inside_II: NDArray[np.bool_]
    time_II: Floats
    weights_II: Floats
    activations_II: Floats
    out_I: Floats

    @classmethod
    def of(cls, profile: Profile, lattice: Lattice) -> States:
        """Sum times and bytes between each pair of states."""
        num = lattice.num_downsets
        totals = lattice.sums(
            np.stack([profile.forward_s + profile.backward_s, profile.parameter_bytes, profile.activation_bytes], 1)
        )
        between = totals[None] - totals[:, None]
        members = np.stack([lattice.members(one) for one in range(num)])
        out = _outputs(profile, members)
        inside = kernels.nesting(lattice.words_IW, lattice.parent_I, lattice.added_I)
        return cls(lattice, inside, between[:, :, 0], between[:, :, 1], between[:, :, 2], out)


def _outputs(profile: Profile, members_IN: NDArray[np.bool_]) -> Floats:
    """Bytes that leave each state as the released planner counts them [I].

    Its last layers, and whatever lies before one of them and is read by a layer that does not: also by one that lies
    before another of the last layers, which is inside as well.
    """
    num = profile.num_layers
    reads = np.zeros((num, num), bool)
    reads[profile.src, profile.dst] = True
    before = reads.copy()  # before[a, b]: a comes before b
    for node in range(num):
        before[before[:, node]] |= before[node]
    inside = before | np.eye(num, dtype=bool)
    needed = reads.astype(np.float32) @ (~inside).astype(np.float32) > 0  # a has a reader that is not before b, nor b
    beside = before & needed
    is_last = members_IN & (members_IN.astype(np.float32) @ reads.T.astype(np.float32) == 0)
    extra = is_last.astype(np.float32) @ beside.T.astype(np.float32) > 0
    found: Floats = ((is_last | extra) * profile.activation_bytes).sum(axis=1)
    return found


@dataclass(frozen=True, eq=False)
class LevelTable:
    """Best time per stage from one state to another with so many machines, and the last stage of it.

    Parameters
    ----------
    best_IIM : float64 [starts, I, M + 1]
    split_IIM, replicas_IIM : int32
        State before the last stage, -1 where there is one stage only; machines of the last stage.
    """

    best_IIM: Floats
    split_IIM: NDArray[np.int32]
    replicas_IIM: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        states: States,
        time_II: Floats,
        level: Level,
        num_inside: int,
        *,
        every_start: bool,
        is_straight: bool,
        compression: float | None,
        memory_bytes: float | None,
    ) -> LevelTable:
        """Find the best stages of one level of the network."""
        starts = states.lattice.num_downsets if every_start else 1
        return cls(
            *_fill(
                starts,
                states.inside_II,
                np.ascontiguousarray(time_II),
                states.weights_II,
                states.activations_II,
                states.out_I,
                level.num_machines,
                level.bandwidth_bytes_per_s,
                num_inside,
                is_straight,
                math.inf if compression is None else compression,
                math.inf if memory_bytes is None else memory_bytes,
            )
        )


@numba.njit(cache=True)
def _fill(starts: int, inside_II: Any, time_II: Any, weights_II: Any, activations_II: Any, out_I: Any,
          num_machines: int, bandwidth: float, num_inside: int, is_straight: bool, compression: float,
          memory: float) -> Any:  # fmt: skip
    num = inside_II.shape[0]
    best = np.full((starts, num, num_machines + 1), np.inf)
    split = np.full((starts, num, num_machines + 1), -1, np.int32)
    replicas = np.zeros((starts, num, num_machines + 1), np.int32)
    for i in range(starts):
        for j in range(i + 1, num):
            if not inside_II[i, j]:
                continue
            for r in range(1, num_machines + 1):
                if is_straight and r > 1:
                    break
                held = math.ceil((num_machines - r) / r) * (activations_II[i, j] + weights_II[i, j])
                if memory < np.inf and held > memory:
                    continue
                sync = 4.0 * (r - 1) * weights_II[i, j] / (bandwidth * r * num_inside)
                best[i, j, r] = (time_II[i, j] + sync) / r
                replicas[i, j, r] = r
        for j in range(i + 1, num):
            if not inside_II[i, j]:
                continue
            for used in range(2, num_machines + 1):
                for k in range(i + 1, j):
                    if not (inside_II[i, k] and inside_II[k, j]):
                        continue
                    for r in range(1, 2 if is_straight else used):
                        held = math.ceil((num_machines - used) / r) * (activations_II[k, j] + weights_II[k, j])
                        if memory < np.inf and held > memory:
                            continue
                        last = (time_II[k, j] + 4.0 * (r - 1) * weights_II[k, j] / (bandwidth * r)) / r
                        value = max(best[i, k, used - r], last)
                        if compression < np.inf:
                            value = max(value, 2.0 * out_I[k] / (bandwidth * r) / compression)
                            if j < num - 1:
                                value = max(value, 2.0 * out_I[j] / (bandwidth * r) / compression)
                        if value < best[i, j, used]:
                            best[i, j, used], split[i, j, used], replicas[i, j, used] = value, k, r
    return best, split, replicas
