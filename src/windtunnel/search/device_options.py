"""On what the next stage can run, and how device counts change by it.

In: device types, and where links differ their factors. Out: ``Options``: a type with a number of replicas each, what
they pay for transfers, and which state leads to which by using them. Not here: the program (``minmax``).

A state is how many devices of each type are left for use. Where links differ, what a stage pays depends on the types
beside it, so that a state also holds the type of the last stage and the one that is promised to be next.
"""

# T device types, O options, V states, C channels of communication

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.search import downset_kernels as kernels
from windtunnel.search.work import DeviceType, Floats

__all__ = ["Options", "options_of"]

Ints = NDArray[np.int64]
NUM_CHANNELS = 4


@dataclass(frozen=True, eq=False)
class Options:
    """Choices for a stage.

    Parameters
    ----------
    kind_O, replicas_O : int64 [O]
    sync_O : float64 [O]
        Time per byte of weights, per sample.
    scale_OC : float64 [O, C]
        Factor on what each channel communicates; one channel where all are alike and only added.
    move_ptr : int64 [O + 1]
    move_to, move_from : int64
        States that an option leads to, and each one's state before.
    num_vectors : int
        V.
    last_V : int64
        States in which all devices may be in use.
    """

    kind_O: Ints
    replicas_O: Ints
    sync_O: Floats
    scale_OC: Floats
    move_ptr: Ints
    move_to: Ints
    move_from: Ints
    num_vectors: int
    last_V: Ints

    @property
    def num_channels(self) -> int:
        """C."""
        return int(self.scale_OC.shape[1])


def options_of(types: Sequence[DeviceType], link_scale: Floats | None, *, is_summed: bool) -> Options:
    """All types with all numbers of replicas, and with all types of neighboring stages where links differ.

    Parameters
    ----------
    types : sequence of DeviceType
    link_scale : float64 [T, T] or None
        From the first type to the second; None: all alike.
    is_summed : bool
        Whether compute and transfers are only added.
    """
    digits_VT = np.array(list(np.ndindex(*(type_.count + 1 for type_ in types)))).reshape(-1, len(types))
    strides = [math.prod(type_.count + 1 for type_ in types[index + 1 :]) for index in range(len(types))]
    used = [kind for kind, type_ in enumerate(types) if type_.count]
    beside = used if link_scale is not None else [0]
    num_beside = len(beside) ** 2
    rows, moves = [], []
    for kind in used:
        for replicas in range(1, min(types[kind].max_replicas, types[kind].count) + 1):
            to = np.flatnonzero(digits_VT[:, kind] >= replicas)
            for last, following in itertools.product(range(len(beside)), repeat=2):
                scale_C = _scales(types[kind], kind, beside[last], beside[following], link_scale, is_summed=is_summed)
                rows.append((kind, replicas, types[kind].agree_ns_per_byte(replicas), scale_C))
                # A state is (devices used of each type, type of the last stage, type of the next). A stage of `kind`
                # moves
                #     from  (counts,               last, own)
                #     to    (counts + `replicas`,  own,  following)
                # so neighbors agree on what their link costs without either knowing the whole chain.
                own = beside.index(kind) if link_scale is not None else 0
                ends = to * num_beside + own * len(beside) + following
                begins = (to - replicas * strides[kind]) * num_beside + last * len(beside) + own
                moves.append((ends, begins))
    return Options(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.float64),
        np.array([row[3] for row in rows], np.float64),
        np.concatenate([[0], np.cumsum([len(to) for to, _ in moves])]).astype(np.int64),
        np.concatenate([to for to, _ in moves]),
        np.concatenate([begins for _, begins in moves]),
        len(digits_VT) * num_beside,
        (len(digits_VT) - 1) * num_beside + np.arange(num_beside),
    )


def _scales(
    device_type: DeviceType, kind: int, last: int, following: int, link_scale: Floats | None, *, is_summed: bool
) -> list[float]:
    """By channel: forward comes from the stage before and goes to the one behind, backward the other way."""
    if link_scale is None:
        return [device_type.comm_scale] * (1 if is_summed else NUM_CHANNELS)
    result: list[Any] = [0.0] * NUM_CHANNELS
    result[kernels.IN_FORWARD] = device_type.comm_scale * link_scale[last, kind]
    result[kernels.OUT_FORWARD] = device_type.comm_scale * link_scale[kind, following]
    result[kernels.IN_BACKWARD] = device_type.comm_scale * link_scale[following, kind]
    result[kernels.OUT_BACKWARD] = device_type.comm_scale * link_scale[kind, last]
    return result
