"""Blocks as compiled code (what-if family "compiler").

In: a captured graph and a pattern over layers. Out: matching blocks as Inductor runs them, or an estimate of that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windtunnel import registry
from windtunnel.cost.rerun import Form, OperatorsNeed, Program, Ratios
from windtunnel.errors import InEffectError
from windtunnel.graph import Graph, Phase
from windtunnel.simulate.limits import less_work, of_phase
from windtunnel.whatifs.block_patterns import block_ranges
from windtunnel.whatifs.fusion import POINTWISE, fuse_chains
from windtunnel.whatifs.measured import apply_ratios, calls_of, require_program
from windtunnel.whatifs.unpriced import LOOK_UP, Unpriced

__all__ = ["compile_block"]

Block = tuple[int, int]


@registry.whatif(
    "compile-block",
    source="Ansel et al., PyTorch 2, ASPLOS 2024",
    limits=less_work(
        of_phase(Phase.FORWARD, Phase.BACKWARD), "compiled blocks save no more than their forward and backward passes"
    ),
)
def compile_block(graph: Graph, layer: str = "") -> Unpriced:
    """Run blocks as compiled code.

    Measured: the blocks' own operators are compiled by Inductor and run interleaved with the original; compiling takes
    from half a minute up, so it is done only if asked for (``prices="measured"``); else a measurement that the profile
    database knows is used. Estimate: pointwise operators within the blocks make one trip through memory.

    Parameters
    ----------
    graph : Graph
    layer : str
        Regular expression that matches the whole path of a block; empty: the blocks that the model stacks.

    Raises
    ------
    NotApplicableError
        No block matches.
    """
    program = require_program(graph)
    ranges = tuple(block for block in block_ranges(program, layer) if not _is_compiled(program, block))
    if not ranges:
        raise InEffectError(
            "these blocks run as compiled code",
            where=f"{len(program.compiled)} compiled regions",
            fix="capture the program without torch.compile to ask what compiling is worth",
        )
    twins = _twins(program, ranges)
    need = OperatorsNeed(program, Form(compiled=tuple(dict.fromkeys(twins.values()))))
    return Unpriced(
        (need,),
        lambda ratios: apply_ratios(graph, _copy_twin_ratios(ratios, twins)),
        published=lambda: _fuse_pointwise_chains(graph, ranges),
        by_default=LOOK_UP,
    )


def _is_compiled(program: Program, block: Block) -> bool:
    return any(first < block[1] and block[0] < last for first, last in program.compiled)


def _twins(program: Program, ranges: tuple[Block, ...]) -> dict[Block, Block]:
    """The first block with the same calls, of every block: only that one is compiled."""
    firsts: dict[tuple[str, ...], Block] = {}
    return {
        block: firsts.setdefault(tuple(call.schema + call.signature for call in program.calls[slice(*block)]), block)
        for block in ranges
    }


def _copy_twin_ratios(ratios: Ratios, twins: dict[Block, Block]) -> Ratios:
    """Give every block the ratios of its twin; all else keeps its time."""
    forward, backward, output_bytes = (np.ones(len(ratios.forward)) for _ in range(3))
    for (first, last), (twin, _) in twins.items():
        forward[first:last] = ratios.forward[twin]
        backward[first:last] = ratios.backward[twin]
    return replace(
        ratios,
        forward=forward,
        backward=backward,
        output_bytes=output_bytes,
        forward_total=float("nan"),
        backward_total=float("nan"),
    )


def _fuse_pointwise_chains(graph: Graph, ranges: tuple[Block, ...]) -> Graph:
    call = calls_of(graph)
    inside = np.zeros(graph.num_tasks, dtype=bool)
    for first, last in ranges:
        inside |= (call >= first) & (call < last)
    return fuse_chains(graph, inside & graph.select(op=POINTWISE))
