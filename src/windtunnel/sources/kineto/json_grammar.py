"""The grammar of JSON over the bytes of a window of text (sources, Kineto).

In: bytes that two zero bytes end. Out: where a string, a number or a whole value ends, or the byte that cannot be. What
JSON refuses is refused, but for NaN and Infinity, which Python's ``json`` writes, and bytes that are no UTF-8, as
profilers cut long names anywhere. Not here: events (``scanner``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.sources.timeline.events import MISSING

Ints = NDArray[Any]
Int = Any  # a machine integer, as the compiler sees it

OFFSET = np.uint64(14695981039346656037)
PRIME = np.uint64(1099511628211)
MAX_TIME_NS = 2**61
_FULL = 9 * 10**17  # a number below takes one more digit
MAX_DEPTH = 1000
# what may stand next inside a value
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _MORE = range(5)


def fnv(text: bytes) -> int:
    """64-bit FNV-1a, as the kernels compute it."""
    digest = int(OFFSET)
    for byte in text:
        digest = ((digest ^ byte) * int(PRIME)) & (2**64 - 1)
    return digest


_WORDS = np.array([fnv(word) for word in (b"true", b"false", b"null", b"NaN", b"Infinity")], np.uint64)


@njit(cache=True, nogil=True)
def space(text: Ints, pos: Int) -> Int:
    """The first position from `pos` that is not white space."""
    # The text ends in zeros, which are no white space: no comparison with the end is needed.
    while text[pos] == 32 or text[pos] == 10 or text[pos] == 13 or text[pos] == 9:
        pos += 1
    return pos


@njit(cache=True, nogil=True)
def wrong_escape(text: Ints, pos: Int, end: Int) -> Int:
    """Position of the first byte in the whole string text[pos:end] that no escape can have, or -1."""
    while pos < end:
        if text[pos] != 92:
            pos += 1
            continue
        letter = text[pos + 1]
        if letter == 117:  # u and four hexadecimal digits
            for i in range(pos + 2, pos + 6):
                if not (48 <= text[i] <= 57 or 97 <= (text[i] | 32) <= 102):
                    return i
            pos += 4
        elif not (letter in (34, 92, 47, 98, 102, 110) or letter in (114, 116)):
            return pos + 1
        pos += 2
    return -1


@njit(cache=True, nogil=True)
def _skip_string(text: Ints, pos: Int, end: Int) -> tuple[Int, bool]:
    """Position of the quote that closes the string whose first character is at `pos`, and whether it has escapes.

    They are for the caller to check: the loop is in every string, and must stay small to be inlined. The position is
    negative as that of `skip_value`.
    """
    has_escape = False
    while True:
        byte = text[pos]
        if byte == 34:
            return (pos if pos < end else -1), has_escape
        if byte < 32:  # no control character may stand in a string; after the text stand zeros
            return (-1 if pos >= end else -2 - pos), has_escape
        pos += 1
        if byte == 92:
            has_escape = True
            if pos >= end:
                return -1, has_escape
            pos += 1


@njit(cache=True, nogil=True)
def hash_string(text: Ints, pos: Int, end: Int) -> tuple[Int, Int, bool]:
    """As `_skip_string`, with the FNV-1a hash of the raw bytes: (position or negative, hash, has escapes)."""
    # One pass hashes and finds the end. Escapes are hashed as they are written: keys that we look for have
    # none, and equal names are written equally by one writer.
    digest = OFFSET
    has_escape = False
    while True:
        byte = text[pos]
        if byte == 34:
            return (pos if pos < end else -1), digest, has_escape
        if byte < 32:
            return (-1 if pos >= end else -2 - pos), digest, has_escape
        digest = (digest ^ np.uint64(byte)) * PRIME
        pos += 1
        if byte == 92:
            has_escape = True
            if pos >= end:
                return -1, digest, has_escape
            digest = (digest ^ np.uint64(text[pos])) * PRIME
            pos += 1


@njit(cache=True, nogil=True)
def _skip_word(text: Ints, pos: Int, end: Int) -> Int:
    """Position after a number, true, false or null; NaN and Infinity pass too, as Python's `json` writes them."""
    # Words are distinguished by their hash, which is computed while their end is looked for.
    begin = pos
    is_negative = text[pos] == 45
    pos += is_negative
    if 48 <= text[pos] <= 57:
        is_zero = text[pos] == 48
        first = pos
        while 48 <= text[pos] <= 57:
            pos += 1
        # Only a fraction or an exponent needs the full reader: most numbers of a trace are plain integers.
        if (text[pos] == 46 or (text[pos] | 32) == 101) and pos < end:
            pos, _, _, is_number = read_number(text, begin, end)
        else:
            is_number = not is_zero or pos == first + 1
        return -1 if pos >= end else (pos if is_number else -2 - pos)
    digest = OFFSET
    while 97 <= (text[pos] | 32) <= 122:
        digest = (digest ^ np.uint64(text[pos])) * PRIME
        pos += 1
    if pos >= end:
        return -1
    for i in range(len(_WORDS)):
        if digest == _WORDS[i] and (not is_negative or i == len(_WORDS) - 1):
            return pos
    return -2 - begin


@njit(cache=True, nogil=True)
def skip_value(text: Ints, pos: Int, end: Int, stack: Ints) -> Int:
    """Position after the value that starts at `pos`; -1 if the text ends; -2 - the place of a byte that cannot be.

    `stack` has room for as many brackets as may be open at once.
    """
    # A machine with one state, what may come next, and a stack of open brackets instead of recursion, so
    # that a hostile file cannot overflow the stack of the process:
    #      _VALUE        after ':' or ','        _KEY         after ',' in an object
    #      _FIRST_VALUE  after '[', or ']'       _FIRST_KEY   after '{', or '}'
    #      _MORE         after a value: ',' or the bracket that closes
    depth = 0
    expected = _VALUE
    while True:
        pos = space(text, pos)
        if pos >= end:
            return -1
        byte = text[pos]
        if expected == _MORE:
            is_object = stack[depth - 1] == 123
            if byte == 44:
                expected = _KEY if is_object else _VALUE
            elif byte == (125 if is_object else 93):
                depth -= 1
            else:
                return -2 - pos
            pos += 1
        elif (byte == 93 and expected == _FIRST_VALUE) or (byte == 125 and expected == _FIRST_KEY):
            depth -= 1
            pos += 1
            expected = _MORE
        elif byte == 34:
            begin = pos + 1
            pos, has_escape = _skip_string(text, begin, end)
            if pos < 0:
                return pos
            if has_escape:
                wrong = wrong_escape(text, begin, pos)
                if wrong >= 0:
                    return -2 - wrong
            pos += 1
            if expected in (_KEY, _FIRST_KEY):
                pos = space(text, pos)
                if pos >= end:
                    return -1
                if text[pos] != 58:
                    return -2 - pos
                pos += 1
                expected = _VALUE
            else:
                expected = _MORE
        elif expected in (_KEY, _FIRST_KEY):
            return -2 - pos
        elif byte == 91 or byte == 123:
            if depth == len(stack):
                return -2 - pos
            stack[depth] = byte
            depth += 1
            pos += 1
            expected = _FIRST_VALUE if byte == 91 else _FIRST_KEY
        else:
            pos = _skip_word(text, pos, end)
            if pos < 0:
                return pos
            expected = _MORE
        if depth == 0 and expected == _MORE:
            return pos


@njit(cache=True, nogil=True)
def read_number(text: Ints, pos: Int, end: Int) -> tuple[Int, Int, Int, bool]:
    """Read a JSON number: (position after it, digits as an integer, decimal exponent, is a number).

    Digits that do not fit are dropped into the exponent, so no value overflows.
    """
    # A float would lose digits of a time in ns since 1970. The number stays exact as an integer and a power
    # of ten:   -12.5e3   ->   mantissa -125, exponent 2
    negative = text[pos] == 45
    if negative:
        pos += 1
    mantissa = np.int64(0)
    exponent = np.int64(0)
    begin = pos
    while pos < end and 48 <= text[pos] <= 57:
        if mantissa < _FULL:
            mantissa = mantissa * 10 + (np.int64(text[pos]) - 48)
        else:
            exponent += 1
        pos += 1
    if pos == begin or (pos > begin + 1 and text[begin] == 48):
        return pos, np.int64(0), np.int64(0), False
    if pos < end and text[pos] == 46:
        pos += 1
        begin = pos
        while pos < end and 48 <= text[pos] <= 57:
            if mantissa < _FULL:
                mantissa = mantissa * 10 + (np.int64(text[pos]) - 48)
                exponent -= 1
            pos += 1
        if pos == begin:
            return pos, np.int64(0), np.int64(0), False
    if pos < end and (text[pos] | 32) == 101:
        pos += 1
        down = text[pos] == 45
        if down or text[pos] == 43:
            pos += 1
        shift = np.int64(0)
        begin = pos
        while pos < end and 48 <= text[pos] <= 57:
            if shift < 10000:
                shift = shift * 10 + (np.int64(text[pos]) - 48)
            pos += 1
        if pos == begin:
            return pos, np.int64(0), np.int64(0), False
        exponent += -shift if down else shift
    return pos, (-mantissa if negative else mantissa), exponent, True


@njit(cache=True, nogil=True)
def scale_by_power_of_ten(mantissa: Int, exponent: Int) -> Int:
    """Mantissa * 10**exponent, rounded half to even; MISSING when it does not fit."""
    # Multiplied step by step, as 10**exponent alone may overflow where the product is caught in time.
    while exponent > 0 and mantissa != 0:
        if abs(mantissa) > MAX_TIME_NS // 10:
            return np.int64(MISSING)
        mantissa *= 10
        exponent -= 1
    if exponent < 0:
        if exponent < -18:
            return np.int64(0)
        unit = np.int64(10) ** np.int64(-exponent)
        negative = mantissa < 0
        whole, rest = divmod(abs(mantissa), unit)
        # Half to even, as Python rounds.
        if 2 * rest > unit or (2 * rest == unit and whole % 2 == 1):
            whole += 1
        mantissa = -whole if negative else whole
    return mantissa
