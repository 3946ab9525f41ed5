"""Kernels on a GPU: PTX of their modules, launched by the driver.

In: a module for a GPU, cases that say how many threads run it. Out: an engine for ``candidate_process``. Every
candidate runs in a process of its own that opens the device anew, as a bad one takes the context with it. Not here:
the driver (``measure.cuda``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from windtunnel.errors import InputError, NotApplicableError
from windtunnel.hardware import machine
from windtunnel.measure.cuda import CudaError, DeviceArray, Driver
from windtunnel.systems.kernels.candidate_process import Bench, Shape
from windtunnel.systems.kernels.compiling import ptx_of

__all__ = ["Gpu", "require_gpu"]

_CHIPS = (70, 75, 80, 86, 89, 90, 100, 120)  # that the compiler knows; code of one runs on all later ones


def require_gpu(kernel: str) -> None:
    """Refuse a kernel that nothing here can run.

    Raises
    ------
    NotApplicableError
        There is no GPU.
    """
    if not any(device.kind == "gpu" for device in machine().devices):
        raise NotApplicableError(f"there is no GPU here to evolve {kernel} on, which is a kernel of one",
                                 where="target triple", fix="run this where one is")  # fmt: skip


class Gpu:
    """The first GPU.

    Raises
    ------
    NotApplicableError
        There is none.
    """

    has_drafts = False

    def __init__(self) -> None:
        self._driver = Driver()
        major, minor = self._driver.capability
        self._chip = f"sm_{max(item for item in _CHIPS if item <= max(10 * major + minor, _CHIPS[0]))}"
        self.timed = self._driver.elapsed_ns

    def array(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """On the device, with a copy here."""
        return DeviceArray(self._driver, shape, dtype)

    def function(self, module: Any, shape: Shape, *, is_draft: bool = False) -> Any:  # noqa: ARG002
        """What the driver makes of its PTX; a draft is the same.

        Raises
        ------
        InputError
            The driver refuses the PTX.
        """
        try:
            return self._driver.load(ptx_of(module, self._chip), shape.name)
        except CudaError as error:
            raise InputError(str(error), where=shape.name) from error

    def bound(self, function: Any, bench: Bench) -> Callable[[], Any]:
        """A launch.

        Raises
        ------
        InputError
            Nobody says how many threads run it.
        """
        if bench.launch is None:
            raise InputError("the number of threads of this kernel is unknown", where=bench.name,
                             fix="add launch(*arguments) to the tests: it returns blocks and threads")  # fmt: skip
        return partial(self._driver.launch, function, bench.launch, bench.passed)

    def send(self, arrays: Iterable[DeviceArray]) -> None:
        """Copy arrays to the device."""
        for item in arrays:
            item.push()

    def fetch(self, arrays: Iterable[DeviceArray]) -> None:
        """Copy from it, once all launches are done."""
        self._driver.wait()
        for item in arrays:
            item.pull()
