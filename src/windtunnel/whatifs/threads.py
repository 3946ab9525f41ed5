"""Another number of threads within operators (what-if family "threads").

In: a captured graph. Out: the same operators on more or fewer cores; Python between them stays as it is.
"""

from __future__ import annotations

from windtunnel import registry
from windtunnel.cost.rerun import Form, UpdateForm
from windtunnel.errors import InEffectError, InputError, NotApplicableError
from windtunnel.graph import Graph
from windtunnel.simulate.limits import less_work
from windtunnel.whatifs.measured import Unpriced, operators_of, require_program, with_update

__all__ = ["threads"]


@registry.whatif(
    "threads",
    source="PyTorch intra-op parallelism",
    limits=less_work(operators_of, "threads change operators only"),
)
def threads(graph: Graph, threads: int = 1) -> Unpriced:
    """Run operators on ``threads`` threads.

    Operators and updates run again with both numbers of threads, side by side.

    Raises
    ------
    InEffectError
        The capture ran on this number of threads.
    NotApplicableError
        Other programs used the cores while the step was captured.
    """
    if threads < 1:
        raise InputError(f"{threads} threads cannot run anything", fix="use 1 or more")
    if graph.meta.disturbance.get("lost_ratio"):
        raise NotApplicableError(
            "other programs used the cores during the capture, and how they share them with more or fewer threads is "
            "not known",
            fix="capture the step again while the machine is quiet",
        )
    program = require_program(graph)
    if threads == program.threads:
        raise InEffectError(
            f"operators run on {threads} thread{'s' * (threads != 1)} already", fix="ask for another number"
        )
    return with_update(graph, Form(threads=threads), UpdateForm(threads=threads))
