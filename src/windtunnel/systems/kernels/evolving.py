"""From a kernel to what was found, kept in a folder.

In: a kernel, how to search, what an edit may rest on. Out: ``Result``, which prints, is written and is read again; the
module with the winner's edits. Not here: the search itself (``search``), the judgment (``verdict``).
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.base.documents import json_text
from windtunnel.base.outputs import whole
from windtunnel.base.progress import Progress
from windtunnel.base.reading import ReadLimit, read_json
from windtunnel.errors import InputError
from windtunnel.measure.sandbox import Limits
from windtunnel.systems.kernels.cases import FITNESS, Case, Cases, load_cases
from windtunnel.systems.kernels.compiling import optimize, read_module
from windtunnel.systems.kernels.edits import Individual, apply, from_json, to_json
from windtunnel.systems.kernels.fuzz import fuzz_cases
from windtunnel.systems.kernels.gpu import require_gpu
from windtunnel.systems.kernels.journal import last_page
from windtunnel.systems.kernels.model import Kernel, kernel_of
from windtunnel.systems.kernels.run import Bench
from windtunnel.systems.kernels.search import Found, Options, evolve
from windtunnel.systems.kernels.shelf import NAMES, kernel_from, shelf_kernel
from windtunnel.systems.kernels.verdict import Verdict, judge

__all__ = ["ALLOWED", "Result", "apply_edits", "edits_of", "evolve_kernel", "open_kernel", "read_result"]

ALLOWED = {"faithful": "crismph", "tests": "crismph", "promises": "crismpha"}
"""What a winner may rest on, and the mutation operators of each."""
_SCHEMA = "windtunnel.evolve/1"
_CHECK_SEED, _MAX_CHECKED_BYTES = 7, 1 << 19
_TOLERANCE = {"faithful": 0.0, "tests": 0.0, "promises": 0.01}


@dataclass(frozen=True)
class Result:
    """Result of a search for a kernel.

    Attributes
    ----------
    kernel : str
    allowed : str
    verdict : Verdict
    front : tuple of dict
        Time ratio, error and edits of those that no other beat, by the times of the search.
    history : tuple of dict
    counts : dict
        What became of candidates.
    text, changed : str
        The module as searched on, and with the winner's edits.
    """

    kernel: str
    allowed: str
    file: str
    verdict: Verdict
    front: tuple[dict[str, Any], ...]
    history: tuple[dict[str, Any], ...]
    counts: dict[str, Any]
    text: str
    changed: str

    def __str__(self) -> str:
        speedup = self.verdict.speedup
        if self.verdict.is_original:
            return f"{self.kernel}: nothing that is surely faster; the original stays"
        return (f"{self.kernel}: {speedup.value:.3f}x ({speedup.low:.3f}-{speedup.high:.3f}) by "
                f"{len(self.verdict.edits)} edits, {self.verdict.label}")  # fmt: skip

    def json(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        verdict = self.verdict
        ladder = verdict.ladder
        subsets = [] if ladder is None else [
            {"edits": list(key), "kind": subset.kind, "time_ratio": subset.time_ratio} for key,
                subset in ladder.subsets.items()
        ]  # fmt: skip
        return {
            "schema": _SCHEMA, "kernel": self.kernel, "file": self.file, "allowed": self.allowed,
            "speedup": verdict.speedup.value, "speedup_low": verdict.speedup.low, "speedup_high": verdict.speedup.high,
            "label": verdict.label, "error": verdict.error, "edits": to_json(verdict.edits),
            "num_raw_edits": verdict.num_raw, "genes": [gene.json() for gene in verdict.genes],
            "independent": [] if ladder is None else to_json(ladder.independent),
            "cluster": [] if ladder is None else to_json(ladder.cluster),
            "stepping_stones": [] if ladder is None else ladder.stepping_stones, "ladder": subsets,
            "num_discarded": verdict.num_discarded, "discarded": list(verdict.discarded),
            "num_fuzzed": verdict.num_fuzzed, "front": list(self.front), "history": list(self.history),
            "counts": self.counts, "module": self.text, "changed_module": self.changed,
        }  # fmt: skip


def open_kernel(name: str, tests: Path | None = None, function: str = "") -> Kernel:
    """A kernel by name: of the shelf, a .ll file with tests, or a function of a .py file, whose tests may lie in it.

    Raises
    ------
    InputError
        There is none, it is no valid kernel, or it has no tests.
    """
    path = Path(name)
    if path.suffix == ".ll":
        if tests is None:
            raise InputError(f"{name} has no tests", fix="give a file with cases(split): --test tests.py")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {name}: {error}", fix="check the path") from error
        try:
            return kernel_of(text, load_cases(tests), path.stem, path.name)
        except InputError as error:
            raise InputError(error.message, where=f"{name}: {error.where}", fix=error.fix) from error
    if path.suffix == ".py":
        return _from_python(path, tests or path, function)
    if name in NAMES:
        return shelf_kernel(name)
    raise InputError(f"there is no kernel {name!r}",
                     fix=f"give a .ll file, a .py file, or one of {', '.join(NAMES)}")  # fmt: skip


def _from_python(path: Path, tests: Path, function: str) -> Kernel:
    cases = load_cases(tests)
    sys.path.insert(0, str(path.parent))
    try:
        names = runpy.run_path(str(path), run_name=path.stem)
    except Exception as error:
        raise InputError(f"{path} does not run: {type(error).__name__}: {error}", where=str(path)) from error
    finally:
        sys.path.remove(str(path.parent))
    jitted = [name for name, value in names.items() if hasattr(value, "py_func")]
    requested = function or (jitted[0] if len(jitted) == 1 else "")
    if requested not in names or not callable(names[requested]):
        raise InputError(f"{path.name} has no function {requested!r}" if requested else
                         f"{path.name} has {len(jitted)} functions of numba", where=str(path),
                         fix=f"name it with --function; there are {', '.join(jitted) or 'none'}")  # fmt: skip
    return kernel_from(names[requested], _inputs(cases), requested)


def _inputs(cases: Cases) -> Callable[[str], dict[str, Any]]:
    return lambda split: {case.name: case.arguments for case in cases(split)}


def evolve_kernel(
    kernel: Kernel,
    options: Options,
    *,
    allowed: str = "faithful",
    folder: Path | None = None,
    progress: Progress | None = None,
    num_workers: int = 0,
    timeout_s: float = 10.0,
) -> Result:
    """Search for faster variants of a kernel, judge the best and describe its edits.

    Parameters
    ----------
    kernel : Kernel
    options : Options
    allowed : str
        What the winner may rest on: ``faithful`` (the same bits on every input, as far as drawn inputs can tell),
        ``tests`` (on the tests' inputs, seen and unseen), ``promises`` (also of callers, and errors up to 1 %).
    folder : Path, optional
        Where generations are kept; a search that was ended goes on from there.
    progress : callable, optional
    num_workers : int
    timeout_s : float
        That a candidate may take in all, compiled and run.

    Raises
    ------
    InputError
        The original fails its own tests, or ``allowed`` is another word.
    NotApplicableError
        The kernel is for a GPU, and there is none.
    """
    if allowed not in ALLOWED:
        raise InputError(f"nothing is allowed that is called {allowed!r}", fix=f"choose among {', '.join(ALLOWED)}")
    if kernel.is_for_gpu:
        require_gpu(kernel.name)
    checks: tuple[Case, ...] = ()
    if allowed == "faithful":
        small = [case for case in kernel.cases(FITNESS) if case.size_bytes <= _MAX_CHECKED_BYTES]
        checks = tuple(fuzz_cases(small, _CHECK_SEED))
    limits = Limits(wall_s=timeout_s, cpu_s=timeout_s)
    with Bench(kernel, tolerance=_TOLERANCE[allowed], num_workers=num_workers, limits=limits, checks=checks) as bench:
        page = last_page(folder) if folder is not None else None
        bench.remember(page.population if page is not None else ())
        evolved = evolve(kernel.function, bench.evaluate, options, folder=folder, progress=progress,
                         counts=lambda: _counts(bench))  # fmt: skip
        ranked = sorted({item.key: item for item in (*evolved.front, *evolved.population)}.values(),
                        key=lambda candidate: candidate.evaluation.fitness)  # fmt: skip
        verdict = judge(kernel, bench, [item for item in ranked if item.evaluation.time_ratio < 1],
                        is_faithful=allowed == "faithful")  # fmt: skip
        counts = _counts(bench)
    result = _result(kernel, allowed, verdict, evolved, counts)
    if folder is not None:
        with whole(folder / "result.json") as scratch:
            scratch.write_text(json_text(result.json(), indent=1), encoding="utf-8")
    return result


def _counts(bench: Bench) -> dict[str, Any]:
    counts = bench.counts
    return {**counts.kinds, "repeated": counts.repeated, "same_program": counts.same_program}


def _result(kernel: Kernel, allowed: str, verdict: Verdict, evolved: Found, counts: dict[str, Any]) -> Result:
    front = tuple(
        {"time_ratio": item.evaluation.time_ratio, "error": item.evaluation.error, "num_edits": len(item.edits),
         "is_exact": item.evaluation.is_exact} for item in evolved.front
    )  # fmt: skip
    changed = apply(kernel.function, verdict.edits).render()
    return Result(kernel.name, allowed, kernel.file, verdict, front, evolved.history, counts, kernel.function.render(),
                  changed)  # fmt: skip


def read_result(folder: Path) -> dict[str, Any]:
    """The document that a search left in its folder.

    Raises
    ------
    InputError
        There is none yet.
    """
    path = folder / "result.json"
    if not path.exists():
        started = sorted(folder.glob("generation-*.json"))
        fix = (
            "go on with it: windtunnel kernel plan, the same as before" if started else "windtunnel kernel plan KERNEL"
        )
        raise InputError(f"there is no result in {folder}", where=f"{len(started)} generations", fix=fix)
    document = read_json(ReadLimit(path))
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise InputError("this is no result of a search for kernels", where=str(path))
    return document


def apply_edits(kernel: Kernel, edits: Individual, *, is_optimized: bool = False) -> str:
    """Return the module with edits, as LLVM IR.

    Raises
    ------
    InputError
        The edits belong to another kernel, or the result is no valid module.
    """
    text = apply(kernel.function, edits).render()
    module = read_module(text)
    if is_optimized:
        optimize(module)
        return str(module)
    return text


def edits_of(document: dict[str, Any], where: str) -> Individual:
    """Of a result's document.

    Raises
    ------
    InputError
    """
    return from_json(document.get("edits", []), where)
