"""Candidates and their evaluations.

In: a function with edits. Out: ``Candidate``, ``Evaluation``, ``Kernel``. Not here: running (``run``), choosing
(``search``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.systems.kernels.cases import Cases
from windtunnel.systems.kernels.compiling import GPU, simplify_module
from windtunnel.systems.kernels.edits import Individual, key
from windtunnel.systems.kernels.ir import Function, parse

__all__ = ["CLASSES", "Candidate", "Evaluation", "Kernel", "kernel_of"]

CLASSES = ("ok", "wrong", "crash", "timeout", "forbidden", "memory", "unverifiable")
"""Outcomes of a candidate."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function that shall become faster.

    Attributes
    ----------
    name : str
    function : Function
        What edits are applied to: simplified by the compiler, its loops as they are written.
    cases : callable
    raw : str
        The module that the compiler alone makes code of: what every speed-up is over.
    file : str
        Whose lines instructions name.
    """

    name: str
    function: Function
    cases: Cases
    raw: str
    file: str = ""

    @property
    def is_for_gpu(self) -> bool:
        """Whether the module's target triple is a GPU."""
        return f'"{GPU}' in self.function.head


@dataclass(frozen=True)
class Evaluation:
    """Outcome of a candidate.

    Attributes
    ----------
    kind : str
        One of ``CLASSES``.
    time_ratio : float
        Its time over that of the original, over all cases; infinite unless it is right.
    error : float
        The largest difference of a result, relative to what is right.
    is_exact : bool
        Whether every bit of every result is the same.
    detail : str
        What went wrong, where, in words.
    digest : str
        Name of the optimized module; the same for candidates that are the same program.
    times_ns : tuple of (float, float)
        Of the original and of the candidate, for each case.
    """

    kind: str
    time_ratio: float = float("inf")
    error: float = float("inf")
    is_exact: bool = False
    detail: str = ""
    digest: str = ""
    times_ns: tuple[tuple[float, float], ...] = ()

    @property
    def fitness(self) -> tuple[float, float]:
        """To be minimized: time, error."""
        return self.time_ratio, self.error


@dataclass(frozen=True)
class Candidate:
    """A set of edits and what became of it."""

    edits: Individual
    evaluation: Evaluation = field(compare=False)

    @property
    def key(self) -> str:
        """Canonical name of the edit list."""
        return key(self.edits)


def kernel_of(text: str, cases: Cases, name: str = "", file: str = "") -> Kernel:
    """A kernel from the text of a module.

    Raises
    ------
    InputError
        The text is no valid module, or no kernel: says the line.
    """
    parse(text)  # so that lines are those of the user's text
    function = parse(simplify_module(text))
    return Kernel(name or function.name, function, cases, text, file)
