"""Files made wrong on purpose, for the bar ``fuzz``: bytes, tokens and structures are changed, packed or not.

In: the bytes of a good file and a random generator. Out: the bytes of a bad one, perhaps still a good one. Not here:
which files there are (``mutant_seeds``), what is done with them (``fuzz``).
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Mutator", "changed_bytes", "changed_json", "changed_text", "changed_wire", "packed"]

Mutator = Callable[[bytes, random.Random], bytes]

BYTES = (b"\x00", b"\xff", b"\x7f", b"\x80", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b" ", b"\n", b"-", b"0")
FRAGMENTS = (
    *(b"01", b"1.", b".5", b"+1", b"NaN", b"-Infinity", b"1e999", b"-1", b"9" * 30, b"'x'", b"\\x", b"\\u12", b"//"),
    *(b"[" * 2000, b'{"a":' * 2000, b"null", b"true", b"\xed\xa0\x80", b"\xc3(", b"\x1f\x8b", b"[]", b"{}", b',"a":1'),
)
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null')
NUMBERS = (
    *(b"0", b"-1", b"1", b"-0.0", b"1e308", b"1e-320", b"1" + b"0" * 400, b"1" + b"0" * 5000, b"NaN", b"-Infinity"),
    *(b"2147483648", b"9223372036854775807", b"-9223372036854775808", b"18446744073709551616", b"4611686018427387904"),
    *(b"null", b"true", b'"1"', b'""', b"[]", b"{}", b"[[[1]]]", b"0.1", b"1e15", b"65536"),
)
TEXTS = (
    *(b'""', b"null", b"7", b"-1", b"[]", b"{}", b'"\\ud800"', b'"\\u0000"', b'"\xff"', b'"' + b"x" * 5000 + b'"'),
    *(b"[" * 900 + b"]" * 900, b'{"a":' * 300 + b"1" + b"}" * 300, b"true", b'[["a"]]', b'"a b"', b'"-5"', b'"NaN"'),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 2**64, 10**30, 10**400, 0.5, 1e308),
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        "",
        "x",
        "7",
        "\ud800",
        "\x00",
        [],
        {},
        [[]],
        [None],
        {"a": 1},
        [1, "x"],
    ),
)
VARINTS = (0, 1, 2, 5, 127, 128, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, 10**6)


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few bytes flipped, put in, taken out, repeated, or all behind a place cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        length = rng.choice((1, 1, 2, 4, 16, 100))
        kind = rng.randrange(6)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at:at] = rng.choice(BYTES + FRAGMENTS)
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            changed[at:at] = changed[at : at + length]
        elif kind == 4:
            changed[at : at + length] = rng.choice(BYTES) * length
        elif rng.random() < 0.5:
            del changed[at:]
    return bytes(changed)


def changed_text(data: bytes, rng: random.Random) -> bytes:
    """Numbers and strings of a text replaced by others, or by what is neither."""
    tokens = list(TOKEN.finditer(data))
    if not tokens:
        return changed_bytes(data, rng)
    for token in sorted(rng.sample(tokens, min(len(tokens), rng.choice((1, 1, 2)))), key=lambda one: -one.start()):
        kind = TEXTS if token[0].startswith(b'"') and rng.random() < 0.8 else NUMBERS
        data = data[: token.start()] + rng.choice(kind) + data[token.end() :]
    return data


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def changed_json(data: bytes, rng: random.Random) -> bytes:
    """Members of a document taken out, replaced, renamed, repeated or put elsewhere."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            break
        holder, key = rng.choice(places)
        other_holder, other = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            holder[key] = rng.choice(VALUES)
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice((f"{key}x", "", "id", "name"))] = holder.pop(key)
        elif kind == 3 and isinstance(holder, list):
            holder.extend([holder[key]] * rng.choice((1, 2, 50)))
        elif kind == 4:
            holder[key] = json.loads(json.dumps(other_holder.get(other) if isinstance(other_holder, dict) else 3))
        elif isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            number = holder[key]
            holder[key] = rng.choice(
                (-number, number + 1, number * 1000, 0, float(number) if abs(number) < 2**99 else 1)
            )
    return json.dumps(document).encode()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Keys with values (numbers or bytes) of a good message."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:
            fields.append((key, message[at : at + value]))
            at += value
        else:
            fields.append((key, value))
    return fields


def _written(fields: list[tuple[int, int | bytes]]) -> bytes:
    return b"".join(
        _encoded(key) + (_encoded(value) if isinstance(value, int) else _encoded(len(value)) + value)
        for key, value in fields
    )


def changed_wire(data: bytes, rng: random.Random) -> bytes:
    """Fields of protobuf messages taken out, repeated, swapped, or given other numbers and bytes."""
    messages, at = [], 0
    while at < len(data):
        length, at = _varint(data, at)
        messages.append(data[at : at + length])
        at += length
    for _ in range(rng.choice((1, 1, 2, 3))):
        which = rng.randrange(len(messages))
        try:
            fields = _fields(messages[which])
        except IndexError:  # a change before this one broke it
            continue
        if not fields:
            continue
        place = rng.randrange(len(fields))
        key, value = fields[place]
        kind = rng.randrange(7)
        if kind == 0:
            del fields[place]
        elif kind == 1:
            fields.append(fields[place])
        elif kind == 2:
            fields[place] = (key & ~7 | rng.choice((0, 1, 2, 3, 5)), value)
        elif kind == 3:
            fields[place] = (rng.randrange(32) << 3 | key & 7, value)
        elif kind == 4:
            messages[which:which] = [messages[which]] * rng.choice((1, 3))
        elif isinstance(value, int):
            fields[place] = (key, rng.choice(VARINTS))
        else:
            fields[place] = (key, changed_bytes(value, rng))
        messages[which] = _written(fields)
    return b"".join(_encoded(len(message)) + message for message in messages)


def packed(mutate: Mutator) -> Mutator:
    """The same for a file that gzip packed: what is inside changes, or else the packed bytes, or it is a bomb."""

    def changed(data: bytes, rng: random.Random) -> bytes:
        kind = rng.random()
        if kind < 0.2:
            return changed_bytes(data, rng)
        inner = gzip.decompress(data)
        if kind < 0.21:
            piece = rng.choice((b" ", b"\x00", inner[:-3], b"[", b'{"Id":1},', b"\x03\x18\x04\x08"))
            return gzip.compress(inner[: rng.randrange(len(inner))] + piece * (2**27 // len(piece)), 1)
        return gzip.compress(mutate(inner, rng), 1)

    return changed
