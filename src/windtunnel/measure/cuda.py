"""A GPU through its own driver: memory, code, launches, and times by the device's clock.

In: PTX text and arguments. Out: what a kernel left in memory, and nanoseconds between two events. The driver's library
is opened where it is used; nothing else has to be installed. Not here: whose kernels they are.
Source: CUDA Driver API (modules, memory, execution control, events).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from windtunnel.errors import NotApplicableError

__all__ = ["CudaError", "DeviceArray", "Driver", "Launch"]

_LIBRARY = "libcuda.so.1"
_ERROR_LOG, _ERROR_LOG_SIZE = 5, 6  # options of the compiler of PTX
_MAJOR, _MINOR = 75, 76  # attributes of a device: its compute capability
_MARGIN_BYTES, _MARGIN = 256, 0xA5
_TYPES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuModuleLoadDataEx": [POINTER(c_void_p), c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p)],
    "cuModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "cuMemAlloc_v2": [POINTER(c_ulonglong), c_size_t],
    "cuMemFree_v2": [c_ulonglong],
    "cuMemcpyHtoD_v2": [c_ulonglong, c_void_p, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, c_ulonglong, c_size_t],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuEventElapsedTime": [POINTER(c_float), c_void_p, c_void_p],
}


class CudaError(RuntimeError):
    """The driver refused something, or a kernel broke its context."""


@dataclass(frozen=True)
class Launch:
    """Blocks, threads in each, both (x, y, z), and bytes of shared memory that the code does not declare itself."""

    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_bytes: int = 0


class Driver:
    """The first device, in a context of this process. A kernel that goes wrong takes the context with it.

    Raises
    ------
    NotApplicableError
        There is no driver, or no device.
    CudaError
        The driver refuses.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NotApplicableError(f"there is no driver of a GPU here: {error}", where=_LIBRARY,
                                     fix="run this where a GPU is") from error  # fmt: skip
        for name, types in _TYPES.items():
            getattr(self._library, name).argtypes = types
        self._call("cuInit", 0)
        device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)
        capability = [c_int(), c_int()]
        for value, attribute in zip(capability, (_MAJOR, _MINOR), strict=True):
            self._call("cuDeviceGetAttribute", byref(value), attribute, device)
        self.capability = capability[0].value, capability[1].value
        self._events = [c_void_p(), c_void_p()]
        for event in self._events:
            self._call("cuEventCreate", byref(event), 0)

    def _call(self, name: str, *given: Any) -> None:
        code = getattr(self._library, name)(*given)
        if code != 0:
            reported = c_char_p()
            self._library.cuGetErrorName(c_int(code), byref(reported))
            raise CudaError(f"{name}: {(reported.value or b'error').decode()} ({code})")

    def load(self, ptx: str, name: str) -> Any:
        """Make code of PTX; returns the kernel of that name.

        Raises
        ------
        CudaError
            The driver's compiler refuses it; says why.
        """
        log = ctypes.create_string_buffer(4096)
        options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_SIZE)
        values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        module, function = c_void_p(), c_void_p()
        try:
            self._call("cuModuleLoadDataEx", byref(module), ptx.encode(), 2, options, values)
        except CudaError as error:
            raise CudaError(f"{error}: {log.value.decode(errors='replace').strip()}") from error
        self._call("cuModuleGetFunction", byref(function), module, name.encode())
        return function

    def launch(self, function: Any, launch: Launch, arguments: Sequence[Any]) -> None:
        """Put a kernel into the queue; arguments are values of ctypes."""
        pointers = (c_void_p * max(len(arguments), 1))(*(ctypes.addressof(argument) for argument in arguments))
        self._call("cuLaunchKernel", function, *launch.blocks, *launch.threads, launch.shared_bytes, None, pointers,
                   None)  # fmt: skip

    def wait(self) -> None:
        """Until the queue is empty; an error of a kernel is raised here."""
        self._call("cuCtxSynchronize")

    def elapsed_ns(self, action: Callable[[], object], inner: int = 1) -> int:
        """Time on the device between the begin and the end of what an action puts into the queue, ``inner`` times."""
        first, last = self._events
        self.wait()
        self._call("cuEventRecord", first, None)
        for _ in range(inner):
            action()
        self._call("cuEventRecord", last, None)
        self._call("cuEventSynchronize", last)
        taken_ms = c_float()
        self._call("cuEventElapsedTime", byref(taken_ms), first, last)
        return round(taken_ms.value * 1e6)

    def allocate(self, size_bytes: int) -> int:
        """Address of memory on the device."""
        address = c_ulonglong()
        self._call("cuMemAlloc_v2", byref(address), size_bytes)
        return address.value

    def free(self, address: int) -> None:
        """Give it back."""
        self._call("cuMemFree_v2", address)

    def put(self, address: int, values: NDArray[Any]) -> None:
        """Copy to the device."""
        self._call("cuMemcpyHtoD_v2", address, values.ctypes.data, values.nbytes)

    def get(self, address: int, values: NDArray[Any]) -> None:
        """Copy from the device, once the queue is empty."""
        self._call("cuMemcpyDtoH_v2", values.ctypes.data, address, values.nbytes)


class DeviceArray:
    """An array of the device with a copy here, and margins that reveal writes outside of it.

    Parameters
    ----------
    driver : Driver
    shape : sequence of int
    dtype : dtype

    Attributes
    ----------
    array : ndarray
        The copy here; ``push`` and ``pull`` make both the same.
    address : int
        Of the first element, on the device.
    """

    def __init__(self, driver: Any, shape: Sequence[int], dtype: DTypeLike) -> None:
        self._driver = driver
        size_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._whole = np.full(size_bytes + 2 * _MARGIN_BYTES, _MARGIN, dtype=np.uint8)
        inside = self._whole[_MARGIN_BYTES : _MARGIN_BYTES + size_bytes]
        self.array: NDArray[np.generic] = inside.view(dtype).reshape(tuple(shape))
        self._begin = driver.allocate(self._whole.nbytes)
        self.address = self._begin + _MARGIN_BYTES

    def push(self) -> None:
        """What is here goes to the device, with whole margins."""
        self._whole[:_MARGIN_BYTES] = self._whole[-_MARGIN_BYTES:] = _MARGIN
        self._driver.put(self._begin, self._whole)

    def pull(self) -> None:
        """What is on the device comes here."""
        self._driver.get(self._begin, self._whole)

    def is_intact(self) -> bool:
        """Whether the margins were whole when the array was pulled."""
        margins = self._whole[:_MARGIN_BYTES], self._whole[-_MARGIN_BYTES:]
        return all(bool((margin == _MARGIN).all()) for margin in margins)
