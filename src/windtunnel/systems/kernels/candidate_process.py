"""One candidate in a process that may die of it: compiled, called, compared, timed.

In: text of its module, cases with their right answers, the original's code, the engine that runs both. Out: an answer
as bytes, or the end of the process. Not here: what the end means (``worker``), engines of other devices (``gpu``).
"""

from __future__ import annotations

import ctypes
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.measure.cuda import Launch
from windtunnel.measure.pairs import Timed, inner_repeats, take_pairs
from windtunnel.measure.sandbox import GuardedArray, Lock, allow_time
from windtunnel.measure.turns import elapsed_ns
from windtunnel.systems.kernels.cases import Case, Out
from windtunnel.systems.kernels.compiling import compile_module, digest, optimize, read_module
from windtunnel.systems.kernels.ir import Function

__all__ = ["Bench", "Engine", "Origin", "Shape", "evaluate", "golden"]

_CTYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "i32": ctypes.c_int32, "i16": ctypes.c_int16,
           "i8": ctypes.c_int8, "i1": ctypes.c_bool, "float": ctypes.c_float, "double": ctypes.c_double}  # fmt: skip
_GOLDEN_RUNS, _CHECK_RUNS = 10, 2
_SETTLE_S, _COMPILE_S = 0.015, 5.0
_SLOWEST = 60.0  # a candidate may take at most this multiple of the time of all cases of the original


@dataclass(frozen=True)
class Shape:
    """Calling convention of a kernel: types of its arguments and of its result."""

    name: str
    result: str
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, function: Function) -> Shape:
        """Read the shape from the signature of a function."""
        result = function.result.split()[-1]
        return cls(function.name, result, tuple(argument.type.split()[0] for argument in function.arguments))

    @property
    def kinds(self) -> list[Any]:
        """Types of the arguments, for ctypes."""
        return [_ctype(kind, f"argument {index}") for index, kind in enumerate(self.parameters, 1)]


class Engine(Protocol):
    """Interface of a target that runs kernels.

    Attributes
    ----------
    has_drafts : bool
        Whether there is a quicker way to code that is slow.
    """

    has_drafts: bool

    @property
    def timed(self) -> Timed | None:
        """Function that times calls in nanoseconds on a device; None where the clock of the host serves."""

    def array(self, shape: Sequence[int], dtype: Any) -> Any:
        """Memory for an argument: ``array`` here, ``address`` where kernels run, ``is_intact()``."""

    def function(self, module: Any, shape: Shape, *, is_draft: bool = False) -> Any:
        """Compile a module and return its function."""

    def bound(self, function: Any, bench: Bench) -> Callable[[], Any]:
        """A call of it with the arguments of a case."""

    def send(self, arrays: Iterable[Any]) -> None:
        """Make arrays that the host wrote visible to kernels."""

    def fetch(self, arrays: Iterable[Any]) -> None:
        """Make arrays that kernels wrote visible to the host."""


class Host:
    """Target that runs kernels on the CPU of this process."""

    has_drafts = True
    timed: Timed | None = None

    def array(self, shape: Sequence[int], dtype: Any) -> GuardedArray:
        """Allocate an array between guard pages."""
        return GuardedArray(shape, dtype)

    def function(self, module: Any, shape: Shape, *, is_draft: bool = False) -> Any:
        """Compile a module and return its function as a ctypes function."""
        code = compile_module(module, shape.name, level=0 if is_draft else 3)
        result = None if shape.result == "void" else _ctype(shape.result, "the result")
        created: Any = ctypes.CFUNCTYPE(result, *shape.kinds)(code.address)
        created.code = code  # lives as long as the function
        return created

    def bound(self, function: Any, bench: Bench) -> Callable[[], Any]:
        """Return a call without arguments."""
        return partial(function, *bench.passed)

    def send(self, arrays: Iterable[Any]) -> None:
        """Do nothing: the host shares its memory with the kernel."""

    def fetch(self, arrays: Iterable[Any]) -> None:
        """Do nothing: the host shares its memory with the kernel."""


def _ctype(kind: str, where: str) -> Any:
    if kind not in _CTYPES:
        raise InputError(f"a kernel cannot have the type {kind}", where=where, fix="pointers, whole numbers, floats")
    return _CTYPES[kind]


class Bench:
    """A case in guarded memory: inputs that are restored, outputs that are refilled, right answers."""

    def __init__(self, case: Case, shape: Shape, engine: Engine) -> None:
        if len(case.arguments) != len(shape.parameters):
            raise InputError(f"the kernel takes {len(shape.parameters)} arguments, the case has {len(case.arguments)}",
                             where=case.name, fix="give one value for each parameter, in order")  # fmt: skip
        self.name, self.shape, self.engine = case.name, shape, engine
        self.launch: Launch | None = case.launch
        self.memory: dict[int, Any] = {}
        self.given: dict[int, NDArray[Any]] = {}
        self.right: dict[int, NDArray[Any]] = {}
        self.is_written: dict[int, NDArray[np.bool_]] = {}
        self.result: Any = None
        self.passed: list[Any] = []
        self._filling = 0
        for index, (value, kind, typed) in enumerate(zip(case.arguments, shape.parameters, shape.kinds, strict=True)):
            is_array = isinstance(value, np.ndarray | Out)
            if is_array != (kind == "ptr"):
                raise InputError(f"the kernel wants {kind}, the case has {type(value).__name__}",
                                 where=f"{case.name}, argument {index + 1}")  # fmt: skip
            if isinstance(value, np.ndarray | Out):
                guarded = engine.array(value.shape, value.dtype)
                self.memory[index] = guarded
                if isinstance(value, np.ndarray):
                    self.given[index] = value.copy()
                self.passed.append(typed(guarded.address))
            else:
                self.passed.append(typed(value))

    def prepare(self, salt: int) -> None:
        """Inputs as given; outputs full of something that no run before has left there."""
        self._filling = (salt * 37 + 11) % 251
        for key, guarded in self.memory.items():
            if key in self.given:
                np.copyto(guarded.array, self.given[key])
            else:
                guarded.array.view(np.uint8).reshape(-1)[:] = self._filling
        self.engine.send(self.memory.values())

    def run(self, function: Any) -> Any:
        """Restore all inputs and run the function once."""
        self.prepare(1)
        return self.call(function)

    def call(self, function: Any) -> Any:
        """Run it once; what it wrote is here then."""
        result = self.engine.bound(function, self)()
        self.engine.fetch(self.memory.values())
        return result

    def differences(self, result: Any) -> tuple[float, bool, str]:
        """Largest relative error of what is in memory now, whether all bits are right, and where they are not."""
        worst, is_exact, location = 0.0, True, ""
        for key, guarded in self.memory.items():
            if not guarded.is_intact():
                return math.inf, False, f"{self.name}: argument {key + 1}: it writes beyond its end"
            got, right = guarded.array, self.right[key]
            mask = self.is_written.get(key)
            if mask is not None:
                # memory is filled with a pattern first: whatever is not the pattern any more was written
                if not (got[~mask].view(np.uint8) == self._filling).all():
                    return math.inf, False, f"{self.name}: argument {key + 1}: it writes where the original does not"
                got, right = got[mask], right[mask]
            if got.tobytes() == right.tobytes():
                continue
            is_exact = False
            error = _error(got, right)
            if error >= worst:
                what = (
                    "it changes an input" if key in self.given and (right == self.given[key]).all() else "wrong values"
                )
                worst, location = error, f"{self.name}: argument {key + 1}: {what}"
        if self.shape.result != "void" and result != self.result:
            is_exact = False
            error = _error(np.asarray([result]), np.asarray([self.result]))
            if error >= worst:
                worst, location = error, f"{self.name}: wrong result"
        return worst, is_exact, location


def _error(got: NDArray[Any], right: NDArray[Any]) -> float:
    """Largest difference over the right value's size, or over 1 where that is zero."""
    got, right = got.astype(np.float64), right.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(right)
        result = np.abs(got - right) / np.where(size == 0, 1.0, size)
        result[(got == right) | (np.isnan(got) & np.isnan(right))] = 0.0
    return math.inf if np.isnan(result).any() else float(result.max(initial=0.0))


@dataclass
class Origin:
    """The original with its cases, as a process holds them."""

    shape: Shape
    engine: Engine
    function: Any
    benches: list[Bench]
    inner: list[int]
    digest: str
    elapsed_ns: int = 0
    checks: list[Bench] = field(default_factory=list)
    has_draft: bool = False


def golden(
    function: Function, raw: str, cases: Sequence[Case], checks: Sequence[Case] = (), engine: Engine | None = None
) -> Origin:
    """Compile the original, run it ten times on each case and keep the answers.

    Raises
    ------
    InputError
        It answers differently each time, or with something that is no number; names case and argument.
    """
    shape = Shape.of(function)
    engine = Host() if engine is None else engine
    module = read_module(raw)
    optimize(module)
    same = read_module(function.render())
    optimize(same, strips_names=True)
    created = engine.function(module, shape)
    origin = Origin(shape, engine, created, [Bench(case, shape, engine) for case in cases], [], digest(same))
    origin.checks = [Bench(case, shape, engine) for case in checks]
    for bench in origin.checks:
        _answer(bench, created, _CHECK_RUNS, may_be_no_number=True)
    for bench in origin.benches:
        _answer(bench, created)
        origin.inner.append(inner_repeats(engine.bound(created, bench), partial(bench.prepare, 1), engine.timed))
    once = [elapsed_ns(partial(bench.run, created)) for bench in (*origin.benches, *origin.checks)]
    repeats = [*origin.inner, *(1 for _ in origin.checks)]
    origin.elapsed_ns = sum(used * inner for used, inner in zip(once, repeats, strict=True))
    if engine.has_drafts:
        draft = engine.function(read_module(function.render()), shape, is_draft=True)
        origin.has_draft = not _differences(origin, draft, 0.0)[2]
    return origin


def _answer(bench: Bench, function: Any, num_runs: int = _GOLDEN_RUNS, *, may_be_no_number: bool = False) -> None:
    seen: list[dict[int, NDArray[Any]]] = []
    results = []
    for run in range(num_runs):
        bench.prepare(run + 1)
        results.append(bench.call(function))
        seen.append({key: guarded.array.copy() for key, guarded in bench.memory.items()})
        broken = [key for key, guarded in bench.memory.items() if not guarded.is_intact()]
        if broken:
            raise InputError("the original writes beyond the end of an array",
                             where=f"{bench.name}, argument {broken[0] + 1}", fix="give it a larger array")  # fmt: skip
    bench.result, bench.right = results[0], seen[0]
    for index in bench.memory:
        first = seen[0][index]
        same = np.ones(first.shape, dtype=np.bool_)
        for other in seen[1:]:
            same &= (other[index] == first) | ((other[index] != other[index]) & (first != first))
        if index in bench.given and not same.all():
            raise InputError("the original's answer changes from run to run",
                             where=f"{bench.name}, argument {index + 1}",
                             fix="it may depend on its arguments only; Out for what it only writes")  # fmt: skip
        if index not in bench.given:
            bench.is_written[index] = same
        values = seen[0][index][same]
        if values.dtype.kind == "f" and np.isnan(values).any() and not may_be_no_number:
            raise InputError("the original's answer is no number", where=f"{bench.name}, argument {index + 1}",
                             fix="choose inputs whose answers are numbers")  # fmt: skip
    if any(result != results[0] for result in results):
        raise InputError("the original's result changes from run to run", where=bench.name)


def evaluate(origin: Origin, text: str, known: set[str], tolerance: float, num_pairs: int, lock: Lock) -> bytes:
    """Judge a candidate and return, pickled: kind, error, exact, detail, digest, times.

    Parameters
    ----------
    origin : Origin
    text : str
    known : set of str
        Digests of programs that need not run again.
    tolerance : float
        The error that is still right; 0 asks for the same bits.
    num_pairs : int
        Number of interleaved timings of the candidate and the original.
    lock : callable
        Called before the candidate runs.
    """
    # From cheap to expensive: parse -> run an unoptimized draft -> optimize, compare with known digests -> compile ->
    # run every case -> time pairs with the original. Each step ends most of the candidates that reach it.
    try:
        module = read_module(text)
    except InputError as error:
        return _pack("unverifiable", detail=f"{error.message} {error.where}".strip())
    limit_s = _SETTLE_S + _SLOWEST * origin.elapsed_ns / 1e9
    lock(limit_s)
    if origin.has_draft:  # most candidates are wrong, and unoptimized code compiles ten times as fast
        draft = origin.engine.function(read_module(text), origin.shape, is_draft=True)
        worst, _, index = _differences(origin, draft, tolerance)
        if index:
            return _pack("wrong", worst, detail=index)
        allow_time(_COMPILE_S)
    optimize(module, strips_names=True)
    name = digest(module)
    if name in known:
        return _pack("known", digest=name)
    try:
        created = origin.engine.function(module, origin.shape)
    except InputError as error:
        return _pack("unverifiable", detail=error.message, digest=name)
    allow_time(limit_s + _COMPILE_S)
    worst, is_exact, index = _differences(origin, created, tolerance)
    if index:
        return _pack("wrong", worst, detail=index, digest=name)
    times, engine = [], origin.engine
    for bench, inner in zip(origin.benches, origin.inner, strict=True):
        pairs = take_pairs(
            engine.bound(origin.function, bench), engine.bound(created, bench), partial(bench.prepare, 7), num_pairs,
            inner=inner, timed=engine.timed,
        )  # fmt: skip
        times.append((pairs / inner).tolist())
        engine.fetch(bench.memory.values())
        if not all(guarded.is_intact() for guarded in bench.memory.values()):
            return _pack("wrong", math.inf, detail=f"{bench.name}: it writes beyond its end", digest=name)
    return _pack("ok", worst, is_exact=is_exact, digest=name, times=times)


def _differences(origin: Origin, function: Any, tolerance: float) -> tuple[float, bool, str]:
    """Largest error over all cases, whether all bits are right, and the first place where an answer is wrong."""
    worst, is_exact = 0.0, True
    twice = [(item, salt) for item in origin.benches for salt in (101, 202)]
    for bench, salt in [*twice, *((check, 101) for check in origin.checks)]:
        bench.prepare(salt)
        off, same, index = bench.differences(bench.call(function))
        worst, is_exact = max(worst, off), is_exact and same
        if off > tolerance or (tolerance == 0 and not same):
            return worst, False, index
    return worst, is_exact, ""


def _pack(kind: str, error: float = math.inf, *, is_exact: bool = False, detail: str = "", digest: str = "",
          times: Sequence[Any] = ()) -> bytes:  # fmt: skip
    return pickle.dumps((kind, error, is_exact, detail, digest, times))
