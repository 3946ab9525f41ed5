"""The file of a program set between disk and arrays.

In: an npz file that may have been edited. Out: its arrays and its header, checked as far as a file can be. Every size
is compared with the bytes that are there before anything is made. Not here: what the arrays mean (``program_set``).
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from windtunnel.base.reading import ReadLimit, format_value, parse_json
from windtunnel.errors import InputError

__all__ = ["read_set"]

_FIX = "windtunnel models sample makes one"
# what zipfile and numpy say of a file that is none of theirs
_DAMAGE = (
    OSError, ValueError, LookupError, EOFError, TypeError, SyntaxError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_set(path: Path, limit: ReadLimit) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays by name, and the header."""
    if not path.exists():
        raise InputError(f"{path} is not there", fix=_FIX)
    try:
        with zipfile.ZipFile(path) as file:
            if any(member.compress_size > path.stat().st_size for member in file.infolist()):
                raise zipfile.BadZipFile("a part is longer than the file")
            limit.check(2 * sum(member.file_size for member in file.infolist()))
            arrays = {member.filename.removesuffix(".npy"): _array(file.read(member)) for member in file.infolist()}
    except _DAMAGE as error:
        raise InputError(f"this is not a program set: {error}", where=str(path), fix=_FIX) from error
    if "header" not in arrays:
        raise InputError("this is not a program set: there is no header", where=str(path), fix=_FIX)
    header = parse_json(arrays.pop("header").tobytes(), f"{path}: its header")
    if not isinstance(header, dict):
        raise InputError(f"the header is {format_value(header)} instead of a mapping", where=str(path), fix=_FIX)
    return arrays, header


def _array(data: bytes) -> NDArray[Any]:
    text = io.BytesIO(data)
    version = npy.read_magic(text)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read_header(text)
    if dtype.hasobject or dtype.kind not in "biuf" or not dtype.itemsize:
        raise ValueError(f"an array of {dtype}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data) - text.tell():
        raise ValueError(f"an array of shape {list(shape)} in {len(data)} bytes")
    return np.frombuffer(data, dtype, offset=text.tell()).reshape(shape, order="F" if is_fortran else "C")
