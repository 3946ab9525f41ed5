"""What a winner rests on: every input, the tests alone, or a promise.

In: a kernel, the front of a search. Out: the first candidate that also passes on inputs which the search never saw,
timed anew in a fresh process, each of its edits named in words with what it rests on. Not here: the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from windtunnel.errors import InputError
from windtunnel.measure.stats import Estimate
from windtunnel.systems.kernels.cases import FITNESS, HELD_OUT, Case
from windtunnel.systems.kernels.edits import Edit, Individual, apply, sort_edits, to_json
from windtunnel.systems.kernels.fuzz import fuzz_cases
from windtunnel.systems.kernels.ir import Function
from windtunnel.systems.kernels.model import Candidate, Kernel
from windtunnel.systems.kernels.post import Ladder, ladder, minimize_edits
from windtunnel.systems.kernels.run import Bench
from windtunnel.systems.kernels.validation import is_same
from windtunnel.systems.kernels.words import describe

__all__ = ["Gene", "Verdict", "judge"]

_FUZZ_SEED, _FUZZ_EACH, _MAX_FUZZED_BYTES = 104_729, 9, 1 << 20
_PAIRS_AGAIN, _PAIRS_LAST, _MAX_JUDGED = 21, 41, 8


@dataclass(frozen=True)
class Gene:
    """One edit of a winner.

    Attributes
    ----------
    words : str
    rests_on : str
        ``proof`` (every input, shown without running), ``rules`` (a hint, by the rules of the language), ``fuzzing``
        (no drawn input differed), ``tests`` (some drawn input differs; no test does), ``promise`` (of the callers).
    """

    edit: Edit
    words: str
    rests_on: str

    @property
    def is_faithful(self) -> bool:
        """Whether it keeps the answer of every input, as far as the checks show."""
        return self.rests_on in ("proof", "rules", "fuzzing")

    def json(self) -> dict[str, object]:
        """Return plain values."""
        return {"edit": to_json([self.edit])[0], "words": self.words, "rests_on": self.rests_on,
                "is_faithful": self.is_faithful}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The winner of a search, or the original where nothing better is sure.

    Attributes
    ----------
    edits : frozenset
        Minimized.
    num_raw : int
        Edits before that.
    speedup : Estimate
        Over the compiler's own result, in a fresh process; 95 %.
    label : str
        ``exact`` (proven), ``exact on tests``, ``approximate``.
    error : float
        Largest on all inputs.
    genes : tuple of Gene
    ladder : Ladder or None
    num_discarded : int
        Quicker candidates that failed on inputs which the search had not seen.
    discarded : tuple of str
        How.
    """

    edits: Individual
    num_raw: int
    speedup: Estimate
    label: str
    error: float = 0.0
    genes: tuple[Gene, ...] = ()
    ladder: Ladder | None = None
    num_discarded: int = 0
    discarded: tuple[str, ...] = ()
    num_fuzzed: int = 0

    @property
    def is_original(self) -> bool:
        """Whether nothing better was found."""
        return not self.edits

    @property
    def is_faithful(self) -> bool:
        """Whether every edit keeps the answer of every input."""
        return all(gene.is_faithful for gene in self.genes)


_NOTHING = Verdict(frozenset(), 0, Estimate(1.0, 1.0, 1.0), "exact")


def judge(kernel: Kernel, bench: Bench, candidates: Sequence[Candidate], *, is_faithful: bool = True) -> Verdict:
    """The quickest that holds on inputs which the search has not seen, with every edit explained.

    Parameters
    ----------
    kernel : Kernel
    bench : Bench
        The bench of the search.
    candidates : sequence of Candidate
        Quickest first.
    is_faithful : bool
        Whether drawn inputs must have the same answer, too; else they only tell what an edit rests on.
    """
    # Three looks that the search never had: held-out inputs, fuzzed inputs, and a new timing in a fresh
    # process. A winner of many candidates is partly lucky; only what holds again counts.
    held_out = list(kernel.cases(HELD_OUT))
    every = [*held_out, *kernel.cases(FITNESS)]
    small = [case for case in every if case.size_bytes <= _MAX_FUZZED_BYTES] or every[:1]
    sampled = fuzz_cases(small, _FUZZ_SEED, max(_FUZZ_EACH, 72 // len(small)))
    reasons: list[str] = []
    with ExitStack() as stack:
        judges = _Judges(
            kernel,
            stack.enter_context(_bench(kernel, held_out, (), bench.tolerance)),
            stack.enter_context(_bench(kernel, small[:1], sampled, 0.0)),
        )
        for candidate in [item for item in candidates if item.edits][:_MAX_JUDGED]:
            edits = minimize_edits(candidate.edits, lambda sets: bench.again(sets, _PAIRS_AGAIN))
            if not edits:
                continue
            result = _verdict(judges, bench, edits, len(candidate.edits), reasons, is_faithful=is_faithful)
            # If the whole set fails, the edits that keep every answer by themselves may still be worth something.
            if result is None and is_faithful and (rest := _faithful_part(judges, edits)):
                result = _verdict(judges, bench, rest, len(candidate.edits), reasons, is_faithful=True)
            if result is not None:
                return replace(result, num_discarded=len(reasons), discarded=tuple(reasons), num_fuzzed=len(sampled))
    return replace(_NOTHING, num_discarded=len(reasons), discarded=tuple(reasons), num_fuzzed=len(sampled))


@dataclass(frozen=True)
class _Judges:
    """Processes that hold inputs which the search has not seen, and drawn ones."""

    kernel: Kernel
    unseen: Bench
    fuzzed: Bench


def _bench(kernel: Kernel, cases: Sequence[Case], checks: Sequence[Case], tolerance: float) -> Bench:
    requested = replace(kernel, cases=lambda _: cases)
    return Bench(requested, tolerance=tolerance, num_workers=1, split=FITNESS, num_pairs=1, checks=checks)


def _verdict(
    judges: _Judges, bench: Bench, edits: Individual, num_raw: int, reasons: list[str], *, is_faithful: bool
) -> Verdict | None:
    """The verdict on one list of edits; None with a reason where it does not hold."""
    kernel = judges.kernel
    unseen = judges.unseen.evaluate([edits])[0]
    if unseen.kind != "ok":
        reasons.append(f"held-out: {unseen.detail or unseen.kind}")
        return None
    if is_faithful and (fuzz := judges.fuzzed.evaluate([edits])[0]).kind != "ok":
        reasons.append(f"drawn inputs: {fuzz.detail or fuzz.kind}")
        return None
    timed = bench.time(edits, _PAIRS_LAST)
    if timed.evaluation.kind != "ok" or not timed.speedup.low > 1:
        reasons.append(f"timed again: {timed.evaluation.detail or 'not surely faster'}")
        return None
    is_exact = unseen.is_exact and timed.evaluation.is_exact
    # A hint may let the compiler add floats in another order; equal results on some inputs prove nothing then.
    reorders = _sums_floats(kernel.function) and any(edit[0][0] == "-h" for edit in edits)
    is_proven = is_exact and not reorders and is_same(kernel.function, apply(kernel.function, edits))
    return Verdict(
        edits, num_raw, timed.speedup, "exact" if is_proven else "exact on tests" if is_exact else "approximate",
        max(unseen.error, timed.evaluation.error), tuple(_gene(judges, edit) for edit in sort_edits(edits)),
        ladder(edits, lambda sets: bench.again(sets, _PAIRS_AGAIN)),
    )  # fmt: skip


def _faithful_part(judges: _Judges, edits: Individual) -> Individual:
    """Return the edits that keep the answer of fuzzed inputs, where others do not."""
    every = sort_edits(edits)
    result = judges.fuzzed.evaluate([frozenset([edit]) for edit in every])
    kept = frozenset(edit for edit, reported in zip(every, result, strict=True) if reported.kind == "ok")
    return kept if kept != edits else frozenset()


def _gene(judges: _Judges, edit: Edit) -> Gene:
    function = judges.kernel.function
    words = describe(function, edit)
    if edit[0][0] == "-a":
        return Gene(edit, words, "promise")
    # Without sums of floats a hint cannot change results by the rules of the language.
    if edit[0][0] == "-h" and not _sums_floats(function):
        return Gene(edit, words, "rules")
    try:
        if edit[0][0] != "-h" and is_same(function, apply(function, [edit])):
            return Gene(edit, words, "proof")
    except InputError:  # it only fits on top of others
        return Gene(edit, words, "fuzzing")
    result = judges.fuzzed.evaluate([frozenset([edit])])[0]
    return Gene(edit, words, "fuzzing" if result.kind == "ok" else "tests")


def _sums_floats(function: Function) -> bool:
    """Whether a float goes around a loop: then a hint may let the compiler take a sum in another order."""
    return any(
        instruction.opcode == "phi" and instruction.type in ("float", "double", "half")
        for instruction in function.instructions()
    )
