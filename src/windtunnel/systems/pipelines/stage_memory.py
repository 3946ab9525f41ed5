"""Memory of a pipeline worker: weight versions, optimizer, gradients, activations in flight.

In: ``Blocks``, a run of them, how a pipeline is run. Out: ``StageMemory``: each term in bytes. Not here: measuring it,
which plans fit (``two_bw``).

Source: PipeDream-2BW (ICML 2021), section 3: W/d per version, d A/d + d A_in of activations, or with recomputing A/d +
d A_in. What that lumps together is kept apart here, and each stage counts what it has under way, not the first one's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from windtunnel.search.blocks import Blocks

__all__ = ["Precision", "Running", "StageMemory", "memory_of_stage", "tightest_unit"]

Precision = Literal["fp32", "mixed"]


@dataclass(frozen=True)
class Running:
    """How a pipeline is run.

    Parameters
    ----------
    depth, width : int
        Number of stages, and of data-parallel pipelines.
    num_microbatches, batch : int
        Of a batch, on each pipeline; samples of a batch on all of them.
    is_emptied : bool
        After each batch; else two versions of the weights are kept.
    recomputes : bool
    precision : str
        ``fp32``, or ``mixed``: weights and gradients of half the size, and master weights in full precision.
    base_bytes : float
        Bytes of a process before it builds anything.
    """

    depth: int
    width: int
    num_microbatches: int
    batch: int
    is_emptied: bool
    recomputes: bool
    precision: Precision = "fp32"
    base_bytes: float = 0.0

    @property
    def num_versions(self) -> int:
        """Number of weight versions."""
        return 1 if self.is_emptied or self.depth == 1 else 2

    def under_way(self, stage: int) -> int:
        """Microbatches that a stage keeps at most."""
        return min(self.depth - stage, self.num_microbatches)


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one worker; all but ``transient`` are there at the same time for long.

    Parameters
    ----------
    weights, master, moments, gradients : float
        All versions; master weights only where the precision is mixed.
    activations : float
        Activations of all microbatches in flight.
    transient : float
        What a backward pass, an update or an exchange of gradients adds for a moment, beyond the activations that are
        gone by then.
    inputs : float
        The batch, on who reads samples or targets: the first and the last stage.
    base : float
    """

    weights: float
    master: float
    moments: float
    gradients: float
    activations: float
    transient: float
    inputs: float
    base: float

    @property
    def total(self) -> float:
        """Bytes at the peak."""
        return float(sum(asdict(self).values()))


def memory_of_stage(blocks: Blocks, units: tuple[int, int], stage: int, how: Running) -> StageMemory:
    """Return the peak memory of a worker of one stage.

    Parameters
    ----------
    blocks : Blocks
        Blocks of the microbatch.
    units : (int, int)
        First, and behind the last.
    stage : int
    how : Running
    """
    inside = slice(*units)
    whole = float(blocks.weight_bytes[inside].sum())
    half = 0.5 if how.precision == "mixed" else 1.0
    weights, gradients = how.num_versions * half * whole, half * whole
    master = how.num_versions * whole if how.precision == "mixed" else 0.0
    held = blocks.activation_bytes(*units)
    if how.recomputes:
        held = blocks.crossing_bytes(units[0]) + blocks.crossing_bytes(units[1])
    under_way = how.under_way(stage)
    activations = (under_way - 1) * held + blocks.activation_bytes(units[0], _model_end(blocks, units, how))
    passing = (under_way - 1) * held + _passing(blocks, units, how)
    # when the batch's last backward pass is done, the first forward ones of the next batch are there, if they may be
    ahead = 0 if how.is_emptied or how.depth == 1 else under_way - 1
    updating = ahead * held + blocks.update_ratio * float(blocks.largest_bytes[inside].max(initial=0.0))
    exchanging = ahead * held + (gradients if how.width > 1 else 0.0)
    transient = max(passing, updating, exchanging, activations) - activations
    inputs = how.batch * blocks.input_bytes if stage in (0, how.depth - 1) else 0.0
    return StageMemory(
        weights, master, blocks.state_ratio * whole, gradients, activations, transient, inputs, how.base_bytes
    )


def _model_end(blocks: Blocks, units: tuple[int, int], how: Running) -> int:
    """Behind the last unit that is there with all others: where they are computed again, the loss is gone by then."""
    return min(units[1], blocks.num_units - 1) if how.recomputes else units[1]


def _passing(blocks: Blocks, units: tuple[int, int], how: Running) -> float:
    """The most that one microbatch's backward pass holds, from the last unit to the first."""
    first, end = units[0], _model_end(blocks, units, how)
    got = blocks.crossing_bytes(first)
    model = range(first, end)
    most = max((got + blocks.own_bytes(first, unit + 1) + blocks.workspace_bytes[unit] for unit in model), default=0.0)
    if end < units[1]:
        most = max(most, got + blocks.own_bytes(end, units[1]) + blocks.workspace_bytes[end])
    return float(most)


def tightest_unit(blocks: Blocks, units: tuple[int, int], stage: int, how: Running) -> str:
    """The unit of a stage that takes most of its memory."""
    sizes = {unit: memory_of_stage(blocks, (unit, unit + 1), stage, how).total for unit in range(*units)}
    return blocks.names[max(sizes, key=sizes.__getitem__)]
