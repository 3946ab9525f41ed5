"""Protobuf's wire format, as far as Chakra needs it.

In: bytes of an ``.et`` file. Out: columns of nodes, dependencies and attributes, found by a compiled scan; no protobuf
library. And back: varints and fields as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["Scan", "encode_varints", "field_bytes", "field_varint", "first_texts", "scan", "unpack_varints", "varint"]

# N nodes, D data dependencies, C control dependencies, A attributes
Ints = NDArray[Any]

OK, TRUNCATED, BAD_FIELD, OVERRUN = 0, 1, 2, 3
PROBLEMS = {
    TRUNCATED: "the file ends inside a message",
    BAD_FIELD: "a field has a wire type that protobuf does not use",
    OVERRUN: "a field is longer than its message",
}
_HASH_START, _HASH_PRIME = 1469598103934665603, 1099511628211


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Columns of one file; texts are (offset, length) in the file."""

    node: Ints  # [N, 6] id, type, start, duration, name offset, name length
    data_deps: Ints  # [D, 2] node, id
    ctrl_deps: Ints  # [C, 2] node, id
    attrs: Ints  # [A, 7] node, hash of name, name offset, name length, field, integer value or offset, length
    node_at: Ints  # [N] offset of each node
    num_texts: int  # tensor descriptions that were not kept
    problem: int
    problem_at: int


@njit(cache=True)
def _varint(data: Ints, at: int, end: int) -> tuple[int, int]:
    """One varint as a signed 64-bit number and the offset behind it, -1 if it does not end."""
    # Seven bits per byte, the lowest first; the top bit says that another byte follows. Ten bytes hold 64
    # bits, so that a longer one is broken, and bits beyond the 64th are dropped as protobuf does.
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < 70:
        byte = np.uint64(data[at])
        at += 1
        if shift < 64:
            value |= (byte & np.uint64(127)) << shift
        if byte < 128:
            return int(np.int64(value)), at
        shift += np.uint64(7)
    return 0, -1


@njit(cache=True)
def _field(data: Ints, at: int, end: int) -> tuple[int, int, int, int]:
    """One field: (number, value or offset, length or -1, offset behind it); a negative offset is a problem."""
    #      key = field number << 3 | wire type
    #      0 varint    1 eight bytes    2 length, then that many bytes (text, message, packed)    5 four bytes
    key, at = _varint(data, at, end)
    if at < 0:
        return 0, 0, 0, -OVERRUN
    number = key >> 3
    wire = key & 7
    if number <= 0:
        return number, 0, 0, -BAD_FIELD
    if wire == 0:
        value, at = _varint(data, at, end)
        return number, value, -1, at if at >= 0 else -OVERRUN
    if wire == 2:
        length, at = _varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return number, 0, 0, -OVERRUN
        return number, at, length, at + length
    if wire != 1 and wire != 5:
        return number, 0, 0, -BAD_FIELD
    width = 8 if wire == 1 else 4
    if width > end - at:
        return number, 0, 0, -OVERRUN
    value = 0
    for i in range(width):
        value |= int(data[at + i]) << (8 * i)
    return number, value, -1, at + width


@njit(cache=True)
def _scan(
    data: Ints, node: Ints, node_at: Ints, data_deps: Ints, ctrl_deps: Ints, attrs: Ints, fill: bool
) -> tuple[int, int, int, int, int, int, int]:
    """Count (``fill`` False) or store everything; returns the counts N, D, C, A, texts, then problem and its offset."""
    # A file is a sequence of (length, message): metadata first, then a node each. The same code runs
    # twice, first to count, then to fill arrays of exactly the right size: no array grows in compiled code.
    #      1 id   2 name   3 type   4 control dependencies   5 data dependencies   6 start   7 duration
    #      8, 9 tensor descriptions (counted only)   10 attributes: {1 name, 3.. value by its type}
    size = data.size
    n, d, c, a, strings = 0, 0, 0, 0, 0
    index = 0
    is_first = True
    while index < size:
        message = index
        length, index = _varint(data, index, size)
        if index < 0 or length < 0 or length > size - index:
            return n, d, c, a, strings, TRUNCATED, message
        end = index + length
        if is_first:
            is_first = False
            index = end
            continue
        if fill:
            for column in range(node.shape[1]):
                node[n, column] = 0
            node[n, 4] = index
            node_at[n] = message
        while index < end:
            number, value, extent, behind = _field(data, index, end)
            if behind < 0:
                return n, d, c, a, strings, -behind, index
            if number == 4 or number == 5:
                # Dependencies are either packed (one field with all) or one field each; both are legal protobuf.
                inner = value
                while True:
                    if extent >= 0:
                        if inner >= behind:
                            break
                        value, inner = _varint(data, inner, behind)
                        if inner < 0:
                            return n, d, c, a, strings, OVERRUN, index
                    if number == 5:
                        if fill:
                            data_deps[d, 0], data_deps[d, 1] = n, value
                        d += 1
                    else:
                        if fill:
                            ctrl_deps[c, 0], ctrl_deps[c, 1] = n, value
                        c += 1
                    if extent < 0:
                        break
            elif number == 8 or number == 9:
                strings += 1
            elif number == 10 and extent >= 0:
                if fill:
                    for column in range(attrs.shape[1]):
                        attrs[a, column] = 0
                    attrs[a, 0] = n
                inner = value
                while inner < behind:
                    part, part_value, part_extent, inner_behind = _field(data, inner, behind)
                    if inner_behind < 0:
                        return n, d, c, a, strings, -inner_behind, inner
                    if fill and part == 1:
                        # Names of attributes repeat in each node: they are compared by hash, not decoded.
                        code = np.uint64(_HASH_START)
                        for i in range(part_value, part_value + part_extent):
                            code = (code ^ np.uint64(data[i])) * np.uint64(_HASH_PRIME)
                        attrs[a, 1] = np.int64(code)
                        attrs[a, 2], attrs[a, 3] = part_value, part_extent
                    elif fill and part > 2:
                        attrs[a, 4], attrs[a, 5], attrs[a, 6] = part, part_value, part_extent
                    inner = inner_behind
                a += 1
            elif fill:
                if number == 1:
                    node[n, 0] = value
                elif number == 2 and extent >= 0:
                    node[n, 4], node[n, 5] = value, extent
                elif number == 3:
                    node[n, 1] = value
                elif number == 6:
                    node[n, 2] = value
                elif number == 7:
                    node[n, 3] = value
            index = behind
        n += 1
    return n, d, c, a, strings, OK, 0


def scan(data: bytes | bytearray, check: Callable[[list[int]], None] = lambda _: None) -> Scan:
    """Find every node, dependency and attribute of an ``.et`` file; ``check`` may refuse their numbers."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    sizes = (0, 0, 0, 0)
    for fill in (False, True):
        num_nodes, num_data, num_ctrl, num_attrs = sizes
        node, node_at = np.zeros((num_nodes, 6), np.int64), np.zeros(num_nodes, np.int64)
        data_deps, ctrl_deps = np.zeros((num_data, 2), np.int64), np.zeros((num_ctrl, 2), np.int64)
        attrs = np.zeros((num_attrs, 7), np.int64)
        *counts, strings, problem, problem_at = _scan(buffer, node, node_at, data_deps, ctrl_deps, attrs, fill)
        sizes = (counts[0], counts[1], counts[2], counts[3])
        if not fill:
            check(counts)
        if problem != OK:
            node = np.zeros((counts[0], 6), np.int64)
            break
    return Scan(node, data_deps, ctrl_deps, attrs, node_at, strings, problem, problem_at)


def first_texts(data: bytes | bytearray) -> dict[str, str]:
    """Attributes of the first message that are texts (of a file that ``scan`` accepted), by name."""
    length, index = _varint(np.frombuffer(data, dtype=np.uint8), 0, len(data))
    strings: dict[str, str] = {}
    for number, value, extent in _fields(data, index, index + length):
        if number == 2 and extent >= 0:
            parts = {part: data[where : where + size] for part, where, size in _fields(data, value, value + extent)}
            if 1 in parts and 29 in parts:
                strings[parts[1].decode("utf-8", "replace")] = parts[29].decode("utf-8", "replace")
    return strings


def _fields(data: bytes | bytearray, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, value or offset, and length of each field, as far as they can be read."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    while 0 <= at < end:
        number, value, extent, at = _field(buffer, at, end)
        if at > 0:
            yield int(number), int(value), int(extent)


# --- writing ------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """One integer; negative ones take ten bytes, as protobuf wants."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_varint(number: int, value: int) -> bytes:
    """An integer field; nothing for 0, which proto3 leaves out."""
    return varint(number << 3) + varint(value) if value else b""


def field_bytes(number: int, value: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def unpack_varints(data: bytes | bytearray) -> list[int]:
    """Integers that were packed one behind the other (of a file that ``scan`` accepted)."""
    buffer, index, values = np.frombuffer(data, dtype=np.uint8), 0, []
    while 0 <= index < len(data):
        value, index = _varint(buffer, index, len(data))
        values.append(int(value))
    return values


@njit(cache=True)
def _encode(values: Ints, indptr: Ints, out: Ints, offsets: Ints) -> None:
    # The inverse of ``_varint``, for all lists of a column in one call: Python would need a call per number.
    index = 0
    for n in range(indptr.size - 1):
        for i in range(indptr[n], indptr[n + 1]):
            value = np.uint64(values[i])
            while value > 127:
                out[index] = np.uint8(value & np.uint64(127) | np.uint64(128))
                value >>= np.uint64(7)
                index += 1
            out[index] = np.uint8(value)
            index += 1
        offsets[n + 1] = index


def encode_varints(values: Ints, indptr: Ints) -> list[bytes]:
    """Pack the integers of each group ``indptr[n]:indptr[n + 1]``."""
    out = np.empty(10 * len(values), dtype=np.uint8)
    offsets = np.zeros(len(indptr), dtype=np.int64)
    _encode(values.astype(np.int64), indptr.astype(np.int64), out, offsets)
    packed, bounds = out.tobytes(), offsets.tolist()
    return [packed[bounds[n] : bounds[n + 1]] for n in range(len(indptr) - 1)]
