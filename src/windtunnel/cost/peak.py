"""How fast this host can compute and move at best: what utilization is measured against.

In: a type, a number of threads. Out: ``Peak``, the best sustained matrix product or convolution, and ``Bandwidth``, the
best sustained pass over arrays of a given size. Both are measured, never taken from a data sheet, and kept in the
profile database for this machine and these libraries. Not here: what a program reaches of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from windtunnel import hardware
from windtunnel.base.extras import require
from windtunnel.errors import InputError
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.devices import time_with_sync_ns, uses_gpu
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.threads import threads
from windtunnel.measure.turns import quiet, spread_ratio

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "SHORT_NAMES", "Bandwidth", "Peak", "measure_bandwidth", "measure_peak"]

DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")
SHORT_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_SIDES, _GPU_SIDES = (512, 1024, 2048), (2048, 4096, 8192)
_IMAGES, _CHANNELS, _SIDE, _WINDOW = 8, 256, 14, 3  # of a convolution
_CONVOLVED = ("float32", "bfloat16")
_BUDGET_S, _MIN_RUNS = 0.3, 5
_SLOW_NS = 100_000_000  # of the smallest product: a processor without units for the type gains nothing by larger ones
_Key = tuple[str, str, str, str, int, str, str]
_METHOD = 2  # raised whenever peaks are measured in another way: older ones are then not used
_LARGEST_TRIAD_BYTES = 768 * 2**20
# what a type's products can run on, best first; a host has it or it has not
_UNITS = {
    "float32": ("avx512f", "avx2", "asimd"),
    "float64": ("avx512f", "avx2", "asimd"),
    "bfloat16": ("amx_bf16", "avx512_bf16", "bf16", "avx512f", "avx2"),
    "float16": ("amx_fp16", "avx512_fp16", "asimdhp", "avx512f", "avx2"),
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "avx2"),
}


@dataclass(frozen=True)
class Peak:
    """The best sustained matrix product of this host, including a convolution.

    Parameters
    ----------
    flops_per_s : float
        A multiply and an add are two; of int8 they are no floating point operations, but counted alike.
    spread : float
        Interquartile range of its runs over their median: above 0.1 something else ran on the machine.
    shape : tuple of int
        Rows, inner length and columns of the product that was fastest.
    isa : str
        The widest instruction set for this type that the host has; ``cuda`` and the device's name on a GPU.
    dtype : str
    num_threads : int
    """

    flops_per_s: float
    spread: float
    shape: tuple[int, int, int]
    isa: str
    dtype: str
    num_threads: int


@dataclass(frozen=True)
class Bandwidth:
    """What a triad a = b + s c sustains, or a = s a in place, whichever is faster: no operator is to beat it.

    Parameters
    ----------
    bytes_per_s : float
        Of arrays read and written; a line fetched only to be overwritten is not counted (as in STREAM), which is why
        in place up to twice as many pass.
    spread : float
        Interquartile range of the runs over their median.
    size_bytes : int
        Of all arrays together: below the size of a cache, the cache is what was measured.
    num_threads : int
    """

    bytes_per_s: float
    spread: float
    size_bytes: int
    num_threads: int


def measure_peak(
    dtype: str = "float32", num_threads: int = 1, *, device: str = "cpu", database: ProfileDatabase | None = None
) -> Peak:
    """Best rate of three square matrix products (of larger ones on a GPU), each run for a third of a second.

    On a host also of a convolution: torch has it from another library, which on some processors is a quarter faster.

    Parameters
    ----------
    dtype : str
        One of ``DTYPES``, or short (``fp32``, ``bf16``, ``fp16``, ``fp64``).
    num_threads : int
        Threads of one operator; of no effect on a GPU.
    device : str
    database : ProfileDatabase, optional
        Looked up first and filled afterwards; None keeps nothing.

    Raises
    ------
    InputError
        The type is unknown or cannot be multiplied here, or ``num_threads`` is not positive.
    MissingExtraError
        PyTorch is not installed.

    Notes
    -----
    The rate of a shape comes from the lower quartile of its times: what else runs on the machine only makes a product
    longer. A peak of one type says nothing about another: bfloat16 on matrix tiles is several times float32.
    """
    require("torch", extra="torch")
    name = SHORT_NAMES.get(dtype, dtype)
    if name not in DTYPES:
        raise InputError(f"no peak for the type {dtype!r}", where="dtype", fix=f"choose one of {', '.join(DTYPES)}")
    _check_threads(num_threads)
    sides = _GPU_SIDES if uses_gpu(device) else _SIDES
    shapes: dict[Any, tuple[tuple[int, int, int], Callable[[str, str], Callable[[], object]]]] = {
        _key("peak::gemm", f"{name} {side}x{side}x{side}", device, num_threads): ((side,) * 3, partial(_product, side))
        for side in sides
    }
    if not uses_gpu(device) and name in _CONVOLVED:
        shape = (_IMAGES * _SIDE**2, _CHANNELS * _WINDOW**2, _CHANNELS)
        shapes[_key("peak::convolution", f"{name} {shape}", device, num_threads)] = (shape, _convolution)
    known = database.find_all(shapes) if database is not None else {}
    # Whether all are known and none was disturbed; of what is slow, one shape is enough.
    is_whole = _is_slow(known) or all(key in known for key in shapes)
    if not (is_whole and all(item.is_trusted for item in known.values())):
        known = {}
        for key, (_, way) in shapes.items():
            if not _is_slow(known):
                known[key] = _measure(key, way(name, device), num_threads, device)
        if database is not None:
            database.add(known.values())
    rates = {key: 2e9 * math.prod(shapes[key][0]) / item.new_ns for key, item in known.items()}
    best = max(rates, key=rates.__getitem__)
    isa = _isa(name, device)
    return Peak(rates[best], known[best].spread_ratio, shapes[best][0], isa, name, num_threads)


def _is_slow(known: Mapping[Any, Measurement]) -> bool:
    return any(item.new_ns > _SLOW_NS for item in known.values())


def measure_bandwidth(
    num_threads: int = 1,
    size_bytes: int | None = None,
    *,
    device: str = "cpu",
    database: ProfileDatabase | None = None,
) -> Bandwidth:
    """Sustained bandwidth of float32.

    Parameters
    ----------
    num_threads : int
    size_bytes : int, optional
        Of all arrays together; by default twice the largest cache, at most 768 MiB, so memory's own bandwidth.
    device : str
    database : ProfileDatabase, optional

    Raises
    ------
    InputError
        ``num_threads`` or ``size_bytes`` is too small.
    MissingExtraError
        PyTorch is not installed.
    """
    require("torch", extra="torch")
    _check_threads(num_threads)
    size = _beyond_caches() if size_bytes is None else size_bytes
    length = size // 12
    if length < 1:
        raise InputError(f"three arrays do not fit into {size} bytes", where="size_bytes", fix="use 12 or more")
    # (bytes moved x 1e9, program): three arrays read and written once, or one array read and written in place
    ways = {
        _key("peak::triad", f"float32 3 x {length}", device, num_threads): (12e9 * length, _triad),
        _key("peak::scaling", f"float32 {3 * length} in place", device, num_threads): (24e9 * length, _scaling),
    }
    known = database.find_all(ways) if database is not None else {}
    if not all(key in known and known[key].is_trusted for key in ways):
        known = {key: _measure(key, way(length, device), num_threads, device) for key, (_, way) in ways.items()}
        if database is not None:
            database.add(known.values())
    rates = {key: moved / known[key].new_ns for key, (moved, _) in ways.items()}
    best = max(rates, key=rates.__getitem__)
    return Bandwidth(rates[best], known[best].spread_ratio, 12 * length, num_threads)


def _check_threads(num_threads: int) -> None:
    if num_threads < 1:
        raise InputError(f"{num_threads} threads compute nothing", where="num_threads", fix="use 1 or more")


def _key(operator: str, signature: str, device: str, num_threads: int) -> _Key:
    return operator, signature, "forward", f"{device} (method {_METHOD})", num_threads, machine(), libraries()


def _beyond_caches() -> int:
    largest = max(hardware.machine().cache_bytes.values(), default=0)
    return min(max(2 * largest, 64 * 2**20), _LARGEST_TRIAD_BYTES)


def _isa(dtype: str, device: str) -> str:
    if device != "cpu":
        import torch

        return f"cuda {torch.cuda.get_device_name(device)}"
    has = hardware.machine().isa_flags
    return next((unit for unit in _UNITS[dtype] if unit in has), "scalar")


# --- measuring ----------------------------------------------------------------------------------------------


def _product(side: int, dtype: str, device: str) -> Callable[[], object]:
    import torch

    first, second = (_matrix(getattr(torch, dtype), side, device) for _ in range(2))
    if dtype == "int8":
        return lambda: torch._int_mm(first, second)
    result = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=result)


def _convolution(dtype: str, device: str) -> Callable[[], object]:
    import torch

    def random_integers(*shape: int) -> torch.Tensor:
        values = torch.randint(-2, 3, shape, device=device).to(getattr(torch, dtype))
        return values.to(memory_format=torch.channels_last)

    images, weight = (
        random_integers(_IMAGES, _CHANNELS, _SIDE, _SIDE),
        random_integers(_CHANNELS, _CHANNELS, _WINDOW, _WINDOW),
    )
    return lambda: torch.conv2d(images, weight, padding=_WINDOW // 2)


def _matrix(dtype: torch.dtype, side: int, device: str) -> torch.Tensor:
    import torch

    # small whole numbers: no type overflows, none is slow as a denormal
    return torch.randint(-2, 3, (side, side), device=device).to(dtype)


def _triad(length: int, device: str) -> Callable[[], object]:
    import torch

    result, first, second = (torch.full((length,), 1.0, device=device) for _ in range(3))
    return lambda: torch.add(first, second, alpha=0.5, out=result)


def _scaling(length: int, device: str) -> Callable[[], object]:
    import torch

    values = torch.full((3 * length,), 1.0, device=device)
    return lambda: values.mul_(1.0)


def _measure(key: _Key, run: Callable[[], object], num_threads: int, device: str) -> Measurement:
    with threads(num_threads):
        times_ns = _times(run, device)
    return Measurement(*key, quiet(times_ns), quiet(times_ns), spread_ratio(times_ns), len(times_ns))


def _times(run: Callable[[], object], device: str) -> list[float]:
    try:
        for _ in range(2):  # the first builds the kernel, the second fills the caches
            time_with_sync_ns(run, device)
    except (RuntimeError, NotImplementedError) as error:
        message = str(error).partition("\n")[0]
        raise InputError(
            f"this host cannot run the product: {message}", where=device, fix="ask another type"
        ) from error
    times: list[float] = []
    while sum(times) < 1e9 * _BUDGET_S or len(times) < _MIN_RUNS:
        times.append(time_with_sync_ns(run, device))
    return times
