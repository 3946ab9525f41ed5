"""How fast this host can compute and move at best (room cost): what utilization is measured against.

In: a type, a number of threads. Out: ``Peak``, the best sustained matrix product, and ``Bandwidth``, a sustained triad
over arrays of a given size. Both are measured, never taken from a data sheet, and kept in the profile database for
this machine and these libraries. Not here: what a program reaches of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel import hardware
from windtunnel.errors import InputError
from windtunnel.extras import require
from windtunnel.measure.database import Measurement, ProfileDatabase
from windtunnel.measure.devices import finished_ns, uses_gpu
from windtunnel.measure.fingerprint import libraries, machine
from windtunnel.measure.rounds import quiet, spread_ratio
from windtunnel.measure.threads import threads

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "SHORT_NAMES", "Bandwidth", "Peak", "measured_bandwidth", "measured_peak"]

DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")
SHORT_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_SIDES, _GPU_SIDES = (512, 1024, 2048), (2048, 4096, 8192)
_BUDGET_S, _MIN_RUNS = 0.3, 5
_Key = tuple[str, str, str, str, int, str, str]
_METHOD = 1  # raised whenever peaks are measured in another way: older ones are then not used
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
    """The best sustained matrix product of this host.

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
    """What a triad a = b + s c sustains.

    Parameters
    ----------
    bytes_per_s : float
        Two arrays read and one written; a line fetched only to be overwritten is not counted (as in STREAM).
    spread : float
        Interquartile range of the runs over their median.
    size_bytes : int
        Of the three arrays together: below the size of a cache, the cache is what was measured.
    num_threads : int
    """

    bytes_per_s: float
    spread: float
    size_bytes: int
    num_threads: int


def measured_peak(
    dtype: str = "float32", num_threads: int = 1, *, device: str = "cpu", database: ProfileDatabase | None = None
) -> Peak:
    """Best rate of three square matrix products (of larger ones on a GPU), each run for a third of a second.

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
    keys = {side: _key("peak::gemm", f"{name} {side}x{side}x{side}", device, num_threads) for side in sides}
    known = database.find_all(keys.values()) if database is not None else {}
    if not all(key in known and known[key].is_trusted for key in keys.values()):
        known = {key: _timed(key, _product(name, side, device), num_threads, device) for side, key in keys.items()}
        if database is not None:
            database.add(known.values())
    side, best = max(((side, known[key]) for side, key in keys.items()), key=lambda pair: pair[0] ** 3 / pair[1].new_ns)
    return Peak(2e9 * side**3 / best.new_ns, best.spread_ratio, (side,) * 3, _isa(name, device), name, num_threads)


def measured_bandwidth(
    num_threads: int = 1,
    size_bytes: int | None = None,
    *,
    device: str = "cpu",
    database: ProfileDatabase | None = None,
) -> Bandwidth:
    """Sustained bandwidth of a float32 triad.

    Parameters
    ----------
    num_threads : int
    size_bytes : int, optional
        Of the three arrays together; by default twice the largest cache, at most 768 MiB, so memory's own bandwidth.
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
    key = _key("peak::triad", f"float32 3 x {length}", device, num_threads)
    known = database.find(key) if database is not None else None
    if known is None or not known.is_trusted:
        known = _timed(key, _triad(length, device), num_threads, device)
        if database is not None:
            database.add([known])
    return Bandwidth(12e9 * length / known.new_ns, known.spread_ratio, 12 * length, num_threads)


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


def _product(dtype: str, side: int, device: str) -> Callable[[], object]:
    import torch

    first, second = (_matrix(getattr(torch, dtype), side, device) for _ in range(2))
    if dtype == "int8":
        return lambda: torch._int_mm(first, second)
    result = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=result)


def _matrix(dtype: torch.dtype, side: int, device: str) -> torch.Tensor:
    import torch

    # small whole numbers: no type overflows, none is slow as a denormal
    return torch.randint(-2, 3, (side, side), device=device).to(dtype)


def _triad(length: int, device: str) -> Callable[[], object]:
    import torch

    result, first, second = (torch.full((length,), 1.0, device=device) for _ in range(3))
    return lambda: torch.add(first, second, alpha=0.5, out=result)


def _timed(key: _Key, run: Callable[[], object], num_threads: int, device: str) -> Measurement:
    with threads(num_threads):
        times_ns = _times(run, device)
    return Measurement(*key, quiet(times_ns), quiet(times_ns), spread_ratio(times_ns), len(times_ns))


def _times(run: Callable[[], object], device: str) -> list[float]:
    try:
        for _ in range(2):  # the first builds the kernel, the second fills the caches
            finished_ns(run, device)
    except (RuntimeError, NotImplementedError) as error:
        message = str(error).partition("\n")[0]
        raise InputError(
            f"this host cannot run the product: {message}", where=device, fix="ask another type"
        ) from error
    times: list[float] = []
    while sum(times) < 1e9 * _BUDGET_S or len(times) < _MIN_RUNS:
        times.append(finished_ns(run, device))
    return times
