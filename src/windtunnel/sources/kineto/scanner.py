"""The byte scanner of Kineto traces: JSON text in, rows of integers out, no Python object per event.

In: a piece of the text of a `traceEvents` array (bytes, ended by two zero bytes). Out: one row per wanted event,
strings interned to codes, all other text skipped. A call stops at the last whole event of its piece. Not here:
files and gzip (`_text`), the meaning of an event (`_trace`).
A comma after the last event passes, as old writers wrote it; else the grammar of `_json` holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windtunnel.sources.kineto.json_grammar import (
    MAX_DEPTH,
    MAX_TIME_NS,
    OFFSET,
    PRIME,
    fnv,
    hash_string,
    read_number,
    scale_by_power_of_ten,
    skip_value,
    space,
    wrong_escape,
)
from windtunnel.sources.timeline.events import MISSING

Ints = NDArray[Any]
Int = Any  # a machine integer, as the compiler sees it

# Where a value goes. Slots below NUM_DENSE are columns of every row, the others are rare (row, slot, value) triples.
PH, NAME, CAT, PID, TID, TS, DUR, ID, CORRELATION, EXTERNAL_ID = range(10)
INDEX = PH  # a row keeps its position in the array where the text has `ph`; the letter moves to the column LETTER
LETTER = ID  # only flow events have an id that is kept, and it moves to a triple
NUM_DENSE = 10
ARGS = 10
FIRST_RARE = 11
TOP_KEYS = {
    "ph": PH,
    "name": NAME,
    "cat": CAT,
    "pid": PID,
    "tid": TID,
    "ts": TS,
    "dur": DUR,
    "id": ID,
    "args": ARGS,
}
RARE_KEYS = (
    *("stream", "device", "context", "Sequence number", "Fwd thread id", "bytes", "size"),
    *("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id"),
    *("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size", "Process Group Name"),
    *("Process Group Ranks", "Seq", "Src Rank", "Dst Rank", "Module Hierarchy", "name", "Addr", "Bytes"),
    *("Total Allocated", "Total Reserved", "Device Type", "Device Id", "Record function id", "flow id"),
    *("Input Dims", "Input type", "Input Strides", "Concrete Inputs", "kernel_file"),
)
RARE = {key: FIRST_RARE + position for position, key in enumerate(RARE_KEYS)}
ARG_KEYS = {
    "correlation": CORRELATION,
    "External id": EXTERNAL_ID,
    **{k: s for k, s in RARE.items() if k != "flow id"},
}
FLOW_ID = RARE["flow id"]
RECORD_ID = RARE["Record function id"]  # 0 on every event unless an execution trace is recorded too
NUM_SLOTS = FIRST_RARE + len(RARE_KEYS)

# Strings with a meaning here have fixed codes: they are interned first, in this order.
KNOWN_STRINGS = ("", "fwdbwd", "[memory]", "process_name", "thread_name")
FWDBWD, MEMORY, PROCESS_NAME, THREAD_NAME = range(1, 5)

STRING = -(2**62)  # STRING + code: a string where an integer was expected (pid "Spans", stream "0x0")

# What stopped a call.
DONE, NEED_TEXT, NEED_ROWS, NEED_STRINGS, BAD_JSON, BAD_EVENT = range(6)
# Why an event is bad (third value of a call that ended with BAD_EVENT).
NEGATIVE_DURATION, NOT_A_NUMBER, NO_TIME, TIME_TOO_BIG = range(1, 5)
# Positions in `state`.
NUM_STRINGS, POOL_USED, NUM_ROWS, NUM_RARE, NUM_EVENTS, NO_DURATION = range(6)

_KEY_TABLE = 256


def _key_table() -> tuple[np.ndarray, np.ndarray]:
    """Two open-addressing tables (top level, then args): hash of a wanted key, and its slot."""
    hashes = np.zeros(2 * _KEY_TABLE, np.uint64)
    slots = np.full(2 * _KEY_TABLE, -1, np.int16)
    for base, keys in ((0, TOP_KEYS), (_KEY_TABLE, ARG_KEYS)):
        for key, slot in keys.items():
            digest = fnv(key.encode())
            index = digest % _KEY_TABLE
            while slots[base + index] >= 0:
                index = (index + 1) % _KEY_TABLE
            hashes[base + index], slots[base + index] = digest, slot
    return hashes, slots


KEY_HASHES, KEY_SLOTS = _key_table()


@njit(cache=True, nogil=True)
def intern(
    text: Ints,
    begin: Int,
    length: Int,
    digest: Int,
    table: Ints,
    hashes: Ints,
    offsets: Ints,
    lengths: Ints,
    pool: Ints,
    state: Ints,
) -> Int:
    """Code of the string text[begin : begin + length]; -1 if the tables must grow first."""
    # Strings live one behind the other in ``pool``; a code is an index into ``offsets`` and ``lengths``.
    #      table (open addressing) -> code -> pool[offsets[code] : offsets[code] + lengths[code]]
    # Hashes are compared first, bytes always: two strings with one hash stay two strings.
    mask = len(table) - 1
    index = np.int64(digest & np.uint64(mask))
    while table[index] >= 0:
        code = table[index]
        if hashes[code] == digest and lengths[code] == length:
            same = True
            for i in range(length):
                if pool[offsets[code] + i] != text[begin + i]:
                    same = False
                    break
            if same:
                return np.int64(code)
        index = (index + 1) & mask
    code = state[NUM_STRINGS]
    used = state[POOL_USED]
    if code >= len(hashes) or used + length > len(pool):
        return np.int64(-1)
    for i in range(length):  # a loop, as a copy of slices takes seconds to compile
        pool[used + i] = text[begin + i]
    hashes[code], offsets[code], lengths[code] = digest, used, length
    table[index] = code
    state[NUM_STRINGS] += 1
    state[POOL_USED] += length
    return code


@njit(cache=True, nogil=True)
def rehash(table: Ints, hashes: Ints, num_strings: Int) -> None:
    """Fill an empty hash table with the strings so far."""
    # Stored hashes spare reading the strings again.
    mask = len(table) - 1
    for code in range(num_strings):
        index = np.int64(hashes[code] & np.uint64(mask))
        while table[index] >= 0:
            index = (index + 1) & mask
        table[index] = code


@njit(cache=True, nogil=True)
def _time(number: bool, mantissa: Int, exponent: Int) -> Int:
    """A time in µs as whole ns; MISSING when it is no number, beyond the largest time when it does not fit."""
    # Kineto writes µs with three digits behind the point; shifting the exponent by three gives exact ns.
    if not number:
        return np.int64(MISSING)
    time = scale_by_power_of_ten(mantissa, exponent + 3)
    return np.int64(MAX_TIME_NS + 1) if time == MISSING else time


@njit(cache=True, nogil=True)
def scan_events(
    text: Ints,
    pos: Int,
    end: Int,
    first: bool,
    key_hashes: Ints,
    key_slots: Ints,
    table: Ints,
    hashes: Ints,
    offsets: Ints,
    lengths: Ints,
    pool: Ints,
    state: Ints,
    rows: Ints,
    rare: Ints,
    phases: Ints,
) -> tuple[Int, Int, Int]:
    """Read events of an array until its `]`, the end of the text or a full table.

    `first`: the next thing may be the array's first event (no comma before it). Returns (what stopped it, position,
    detail): the position is where the next call must begin (or of the bad byte). Rows and triples of an event are
    written when it is whole; `state` counts them.
    """
    values = np.empty(NUM_SLOTS, np.int64)
    touched = np.empty(NUM_SLOTS, np.int16)
    stack = np.empty(MAX_DEPTH, np.uint8)
    while True:
        pos = space(text, pos)
        event_pos = pos
        if pos >= end:
            return NEED_TEXT, event_pos, 0
        if text[pos] == 93:
            return DONE, pos + 1, 0
        if text[pos] == 44 and not first:
            pos = space(text, pos + 1)
            if pos >= end:
                return NEED_TEXT, event_pos, 0
            if text[pos] == 93:  # a comma after the last event: old writers did that
                return DONE, pos + 1, 0
        elif not first:
            return BAD_JSON, pos, 0
        if text[pos] != 123:
            return BAD_JSON, pos, 0
        if state[NUM_ROWS] >= len(rows) or state[NUM_RARE] + NUM_SLOTS > len(rare):
            return NEED_ROWS, event_pos, 0
        if 2 * state[NUM_STRINGS] + 2 * NUM_SLOTS > len(table):
            return NEED_STRINGS, event_pos, 0
        for column in range(NUM_DENSE):
            values[column] = MISSING
        values[NAME] = 0
        values[CAT] = 0
        num_touched = 0
        not_a_time = False
        in_args = False
        letter = np.int64(0)
        pos += 1
        opened = True
        while True:
            pos = space(text, pos)
            if pos >= end:
                return NEED_TEXT, event_pos, 0
            if text[pos] == 125:
                pos += 1
                if in_args:
                    in_args = False
                    opened = False
                    continue
                break
            if text[pos] == 44 and not opened:
                pos = space(text, pos + 1)
                if pos >= end:
                    return NEED_TEXT, event_pos, 0
            elif not opened:
                return BAD_JSON, pos, 0
            opened = False
            if text[pos] != 34:
                return BAD_JSON, pos, 0
            begin = pos + 1
            pos, digest, has_escape = hash_string(text, begin, end)
            if pos == -1:
                return NEED_TEXT, event_pos, 0
            wrong = wrong_escape(text, begin, pos) if has_escape else -1
            if pos < 0 or wrong >= 0:
                return BAD_JSON, wrong if wrong >= 0 else -2 - pos, 0
            pos = space(text, pos + 1)
            if pos >= end:
                return NEED_TEXT, event_pos, 0
            if text[pos] != 58:
                return BAD_JSON, pos, 0
            pos = space(text, pos + 1)
            if pos >= end:
                return NEED_TEXT, event_pos, 0
            base = _KEY_TABLE if in_args else 0
            position = np.int64(digest & np.uint64(_KEY_TABLE - 1))
            while key_slots[base + position] >= 0 and key_hashes[base + position] != digest:
                position = (position + 1) & (_KEY_TABLE - 1)
            slot = key_slots[base + position]
            byte = text[pos]
            if slot == ARGS and byte == 123:
                in_args = True
                opened = True
                pos += 1
                continue
            if slot < 0 or slot == ARGS:
                after = skip_value(text, pos, end, stack)
                if after == -1:
                    return NEED_TEXT, event_pos, 0
                if after < 0:
                    return BAD_JSON, -2 - after, 0
                pos = after
                continue
            value: Int = np.int64(MISSING)
            if byte == 34:
                begin = pos + 1
                pos, digest, has_escape = hash_string(text, begin, end)
                if pos == -1:
                    return NEED_TEXT, event_pos, 0
                wrong = wrong_escape(text, begin, pos) if has_escape else -1
                if pos < 0 or wrong >= 0:
                    return BAD_JSON, wrong if wrong >= 0 else -2 - pos, 0
                length = pos - begin
                pos += 1
                if slot == PH:
                    letter = np.int64(text[begin]) if length == 1 else np.int64(0)
                    continue
                is_text = slot in (NAME, CAT)
                if not is_text and length > 0:  # old writers quote their numbers
                    after, mantissa, exponent, number = read_number(text, begin, begin + length)
                    if number and after == begin + length and (exponent == 0 or slot in (TS, DUR)):
                        value = _time(number, mantissa, exponent) if slot in (TS, DUR) else mantissa
                if value == MISSING and slot != TS and slot != DUR:
                    code = intern(text, begin, length, digest, table, hashes, offsets, lengths, pool, state)
                    if code < 0:
                        return NEED_STRINGS, event_pos, length
                    value = code if is_text else STRING + code
            elif byte == 45 or 48 <= byte <= 57:
                after, mantissa, exponent, number = read_number(text, pos, end)
                if after >= end:
                    return NEED_TEXT, event_pos, 0
                if number:
                    value = (
                        _time(number, mantissa, exponent)
                        if slot in (TS, DUR)
                        else scale_by_power_of_ten(mantissa, exponent)
                    )
                    pos = after
                else:  # -Infinity, or no number at all
                    after = skip_value(text, pos, end, stack)
                    if after == -1:
                        return NEED_TEXT, event_pos, 0
                    if after < 0:
                        return BAD_JSON, -2 - after, 0
                    pos = after
                if slot in (PH, NAME, CAT):
                    continue
            else:  # a list, an object or a word: kept as its text where a rare value is wanted
                begin = pos
                after = skip_value(text, pos, end, stack)
                if after == -1:
                    return NEED_TEXT, event_pos, 0
                if after < 0:
                    return BAD_JSON, -2 - after, 0
                pos = after
                if slot in (PH, NAME, CAT):
                    continue
                if byte == 91 and slot >= FIRST_RARE:
                    mixed = OFFSET
                    for i in range(begin, after):
                        mixed = (mixed ^ np.uint64(text[i])) * PRIME
                    code = intern(text, begin, after - begin, mixed, table, hashes, offsets, lengths, pool, state)
                    if code < 0:
                        return NEED_STRINGS, event_pos, after - begin
                    value = STRING + code
            if slot in (TS, DUR):
                not_a_time = not_a_time or value == MISSING
            if slot < NUM_DENSE:
                values[slot] = value
            elif value not in (MISSING, STRING) and not (value == 0 and slot == RECORD_ID):  # nor an empty string
                known = False
                for i in range(num_touched):
                    known = known or touched[i] == slot
                if not known:
                    touched[num_touched] = slot
                    num_touched += 1
                values[slot] = value
        first = False
        index = state[NUM_EVENTS]
        state[NUM_EVENTS] += 1
        phases[letter] += 1
        keep = False
        if letter == 88:  # X: a complete event
            if not_a_time:
                return BAD_EVENT, event_pos, NOT_A_NUMBER
            if values[TS] == MISSING:
                return BAD_EVENT, event_pos, NO_TIME
            if values[DUR] == MISSING:
                state[NO_DURATION] += 1
            elif values[DUR] < 0:
                return BAD_EVENT, event_pos, NEGATIVE_DURATION
            elif abs(values[TS]) > MAX_TIME_NS or values[DUR] > MAX_TIME_NS:
                return BAD_EVENT, event_pos, TIME_TOO_BIG
            else:
                keep = True
        elif letter == 115 or letter == 102:  # s, f: the two ends of an arrow
            keep = values[CAT] == FWDBWD and values[ID] != MISSING and values[TS] != MISSING
            if keep:
                touched[num_touched] = FLOW_ID
                values[FLOW_ID] = values[ID]
                num_touched += 1
        elif letter == 105 or letter == 73:  # i: an instant
            keep = values[NAME] == MEMORY and values[TS] != MISSING
        elif letter == 77:  # M: names of processes and threads
            keep = values[NAME] == PROCESS_NAME or values[NAME] == THREAD_NAME
        if keep:
            row = state[NUM_ROWS]
            values[INDEX] = index
            values[LETTER] = letter
            for column in range(NUM_DENSE):
                rows[row, column] = values[column]
            for i in range(num_touched):
                triple = state[NUM_RARE]
                rare[triple, 0] = row
                rare[triple, 1] = touched[i]
                rare[triple, 2] = values[touched[i]]
                state[NUM_RARE] += 1
            state[NUM_ROWS] += 1
