"""Blocks as compiled code (what-if family "compiler").

In: a captured graph and a pattern over layers. Out: matching blocks as Inductor runs them, or an estimate of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel import registry
from windtunnel.cost.rerun import Form, OperatorsNeed, Program, Ratios
from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import Graph, Phase
from windtunnel.graph.kernel_classes import class_of
from windtunnel.simulate.limits import less_work, of_phase
from windtunnel.whatifs.block_patterns import block_ranges, compile_pattern
from windtunnel.whatifs.compiler_groups import group_for_compiler
from windtunnel.whatifs.cuda_graphs import launch_in_graphs
from windtunnel.whatifs.device_tasks import computes_on_device, lies_on_device
from windtunnel.whatifs.fusion import POINTWISE, fuse_chains
from windtunnel.whatifs.kernel_groups import KernelGroup, replace_groups, streams_in_order
from windtunnel.whatifs.measured import LOOK_UP, Unpriced, apply_ratios, calls_of, has_program, require_program

__all__ = ["COMPILE_MODES", "compile_block", "compile_model", "fuse_compiled_kernels"]

Block = tuple[int, int]
COMPILE_MODES = ("default", "reduce-overhead")
"""Modes of ``torch.compile`` that are predicted."""
_REPLAY_NS = 40_000  # of the host: guards, input addresses and the launch of a graph of compiled code
_ENTRY_NS = 300_000  # guards, and what leads to the first kernel; as of compiled code on the host of an H200
_GENERATED = r"triton_.*"
_FUSED_CLASSES = ("elementwise", "moving", "normalization", "reduction", "drawing")


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
    database knows is used. Estimate: pointwise operators within the blocks make one trip through memory; on a trace of
    a device, kernels that follow each other and multiply no matrices become one, with one launch.

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
    on_device = partial(fuse_compiled_kernels, graph, layer) if lies_on_device(graph).any() else None
    if not has_program(graph) and on_device is not None:
        return Unpriced.from_paper(on_device)
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
        published=on_device or (lambda: _fuse_pointwise_chains(graph, ranges)),
        by_default=LOOK_UP,
    )


@registry.whatif(
    "compile",
    source="Ansel et al., PyTorch 2, ASPLOS 2024",
    limits=less_work(
        lambda baseline: baseline.graph.select(phase=(Phase.FORWARD, Phase.BACKWARD)),
        "a compiled model saves no more than its forward and backward passes",
    ),
)
def compile_model(graph: Graph, mode: str = "default") -> Unpriced:
    """Run the whole model as compiled code (``torch.compile``), estimated from the kernels of a device.

    Kernels that follow each other in forward or backward and multiply no matrices become one, which makes one trip
    through memory, where they hand each other values of one shape; the host's work between their launches goes. What
    the host does around the other launches stays.
    With ``mode=reduce-overhead`` forward and backward are launched as one CUDA graph each: that work goes, too.

    Parameters
    ----------
    graph : Graph
    mode : str
        ``default``, or ``reduce-overhead``, which also applies to compiled code.

    Raises
    ------
    NotApplicableError
        No kernels run on a device: on a CPU, ``compile-block`` measures.
    InEffectError
        The kernels were generated by a compiler.
    """
    if mode not in COMPILE_MODES:
        raise InputError(f"torch.compile has no mode {mode!r} here", fix=f"use one of {', '.join(COMPILE_MODES)}")
    return Unpriced.from_paper(
        partial(fuse_compiled_kernels if mode == "default" else _launch_compiled_graphs, graph, "")
    )


def _launch_compiled_graphs(graph: Graph, layer: str) -> Graph:
    if not computes_on_device(graph).any():
        raise NotApplicableError(
            "there are no launches that CUDA graphs could save: no kernels run on a device",
            where="mode=reduce-overhead",
            fix="on a CPU, ask for compile-block",
        )
    with suppress(NotApplicableError):  # compiled already, or nothing to fuse
        graph = fuse_compiled_kernels(graph, layer)
    return launch_in_graphs(graph, (Phase.FORWARD, Phase.BACKWARD), _REPLAY_NS, is_per_phase=True)


def fuse_compiled_kernels(graph: Graph, layer: str = "") -> Graph:
    """Let kernels that follow each other and multiply no matrices become one, as a compiler makes them.

    Parameters
    ----------
    graph : Graph
    layer : str
        Regular expression that matches the whole path of a layer; empty: all of forward and backward.

    Raises
    ------
    NotApplicableError
        No two such kernels follow each other on a device.
    InEffectError
        The kernels were generated by a compiler.
    """
    kernels = computes_on_device(graph)
    if not kernels.any():
        raise NotApplicableError("no kernels run on a device", fix="on a CPU, ask for compile-block")
    generated = kernels & graph.select(name=_GENERATED)
    if generated.any():
        raise InEffectError(f"{int(generated.sum())} kernels were generated by a compiler", where="names of kernels")
    if layer:
        if "layer" not in graph.tasks:
            raise NotApplicableError("this graph does not know its layers", fix="ask for all of them: leave out layer=")
        pattern, layers = compile_pattern(layer), graph.tasks.strings("layer")
        kernels &= layers.where({text: bool(pattern.fullmatch(text)) for text in layers.values})
    chains = [chain for stream in streams_in_order(graph) for chain in _chains(graph, stream, kernels)]
    took_ns = graph.duration_ns
    groups = [
        KernelGroup(tuple(rows), int(took_ns[rows].max()))
        for chain in chains
        for rows in group_for_compiler(graph, chain)
        if len(rows) > 1
    ]
    if not groups:
        raise NotApplicableError("no two kernels that could become one follow each other")
    return replace_groups(graph, _with_entries(graph, groups), name="fused kernel", op="compiled")


def _with_entries(graph: Graph, groups: list[KernelGroup]) -> list[KernelGroup]:
    """Let the first launch of forward and backward hold what the host does to enter compiled code."""
    iteration = graph.tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int32))
    phase = graph.tasks.get("phase", np.zeros(graph.num_tasks, dtype=np.int8))
    seen: set[tuple[int, int]] = set()
    result = []
    for group in groups:
        part = int(iteration[group.rows[0]]), int(phase[group.rows[0]])
        result.append(group if part in seen else group._replace(added_host_ns=_ENTRY_NS))
        seen.add(part)
    return result


def _chains(graph: Graph, stream: NDArray[np.int64], kernels: NDArray[np.bool_]) -> Iterator[list[int]]:
    """Kernels of a stream that follow each other and that a compiler writes itself."""
    names = graph.tasks.strings("name")
    ops = graph.tasks.strings("op") if "op" in graph.tasks else names
    phases = graph.tasks["phase"] if "phase" in graph.tasks else np.zeros(graph.num_tasks, dtype=np.int8)
    iteration = graph.tasks.get("iteration", np.zeros(graph.num_tasks, dtype=np.int32))
    chain: list[int] = []
    for row in [*stream.tolist(), -1]:
        fits = row >= 0 and bool(kernels[row]) and phases[row] in (Phase.FORWARD, Phase.BACKWARD)
        fits = fits and class_of(ops.decode(row), names.decode(row)) in _FUSED_CLASSES
        if chain and (not fits or phases[row] != phases[chain[0]] or iteration[row] != iteration[chain[0]]):
            if len(chain) > 1:
                yield chain
            chain = []
        if fits:
            chain.append(row)


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
