"""Inputs on which a kernel is tested.

In: what a user's file says. Out: cases, of which those of ``fitness`` are seen by the search and those of ``held-out``
only by the verdict. Not here: calling the kernel (``candidate_process``).
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputError
from windtunnel.measure.cuda import Launch

__all__ = ["FITNESS", "HELD_OUT", "Case", "Cases", "Out", "Value", "load_cases"]

FITNESS, HELD_OUT = "fitness", "held-out"


@dataclass(frozen=True)
class Out:
    """An array that the kernel writes and does not read: filled with something new before every run."""

    shape: tuple[int, ...]
    dtype: str = "float32"


Value = NDArray[Any] | Out | int | float


@dataclass(frozen=True, eq=False)
class Case:
    """Arguments of one call, in order; of a kernel for a GPU also how many threads run it."""

    name: str
    arguments: tuple[Value, ...]
    launch: Launch | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays of the case."""
        return sum(
            int(np.prod(argument.shape, dtype=np.int64)) * np.dtype(argument.dtype).itemsize
            for argument in self.arguments
            if isinstance(argument, np.ndarray | Out)
        )


Cases = Callable[[str], Sequence[Case]]
"""Function that returns the cases of a split."""


def load_cases(path: Path) -> Cases:
    """The function ``cases(split)`` of a file.

    It returns, for ``fitness`` and for ``held-out``, a list of tuples of arguments (arrays, ``Out``, numbers), or a
    dictionary of them by name. Of a kernel for a GPU a function ``launch(*arguments)`` says how many blocks and how
    many threads in each run it, and perhaps how many bytes of shared memory they get.

    Raises
    ------
    InputError
        The file cannot be run, or has no such function.
    """
    try:
        names = runpy.run_path(str(path), run_name="tests_of_a_kernel")
    except OSError as error:
        raise InputError(f"cannot read the tests: {error.strerror}", where=str(path), fix="check the path") from error
    except Exception as error:
        raise InputError(f"the tests do not run: {type(error).__name__}: {error}", where=str(path)) from error
    created = names.get("cases")
    if not callable(created):
        raise InputError("the tests have no function cases(split)", where=str(path),
                         fix="it returns a list of tuples of arguments for 'fitness' and for 'held-out'")  # fmt: skip

    def cases(split: str) -> Sequence[Case]:
        given = created(split)
        rows = given.items() if isinstance(given, dict) else enumerate(given, 1)
        result = [Case(f"{split} {name}", tuple(item), _launch(names, tuple(item), path)) for name, item in rows]
        if not result:
            raise InputError(f"there is no {split} case", where=str(path), fix="return at least one")
        for case in result:
            _check(case, path)
        return result

    return cases


def _launch(names: dict[str, Any], arguments: tuple[Value, ...], path: Path) -> Launch | None:
    """Return the launch dimensions of a case that the tests give; nothing where they give none."""
    if not callable(names.get("launch")):
        return None
    result = tuple(names["launch"](*arguments))
    sides = [item if isinstance(item, tuple) else (item,) for item in result[:2]]
    numbers = [*(number for side in sides for number in side), *result[2:]]
    if not (2 <= len(result) <= 3 and all(1 <= len(side) <= 3 for side in sides)
            and all(isinstance(number, int | np.integer) for number in numbers)
            and all(number > 0 for side in sides for number in side) and min([0, *result[2:]]) >= 0):  # fmt: skip
        raise InputError(f"launch gives {result!r}", where=str(path),
                         fix="it returns blocks and threads of each, as whole numbers or (x, y, z), and perhaps bytes "
                         "of shared memory")  # fmt: skip
    blocks, threads = (tuple(int(side[index]) if index < len(side) else 1 for index in range(3)) for side in sides)
    return Launch(blocks, threads, int(result[2]) if len(result) > 2 else 0)  # type: ignore[arg-type]


def _check(case: Case, path: Path) -> None:
    for index, value in enumerate(case.arguments, 1):
        where = f"{path}: {case.name}, argument {index}"
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous or value.dtype.kind not in "iuf":
                raise InputError("an array is not contiguous, or not of numbers", where=where,
                                 fix="use numpy.ascontiguousarray")  # fmt: skip
        elif not isinstance(value, Out | int | float | np.integer | np.floating):
            raise InputError(f"a kernel cannot take {type(value).__name__}", where=where,
                             fix="arrays, Out(shape, dtype), whole numbers, floats")  # fmt: skip
