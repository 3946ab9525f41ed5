"""The events of one Kineto trace as columns (sources, Kineto).

In: a file. Out: a `Trace`: arrays over the complete events, flow ends, memory instants and thread names that are
wanted, in file order, strings as codes. Memory is bounded by the columns plus one window of text. Not here: what an
event means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from windtunnel.base.progress import Progress
from windtunnel.base.reading import ReadLimit
from windtunnel.errors import TraceError
from windtunnel.sources.kineto import json_grammar
from windtunnel.sources.kineto import scanner as scan
from windtunnel.sources.kineto.document import read_document
from windtunnel.sources.kineto.text_window import Text
from windtunnel.sources.timeline.events import MISSING

__all__ = ["COMPLETE", "Trace", "read_trace"]

# N rows, R rare values
COMPLETE = ord("X")
_ROWS = 1 << 15
_SHOWN = 80
_BYTES_PER_EVENT = 500  # from here to the graph
_WHY = {
    scan.NEGATIVE_DURATION: "has a negative duration",
    scan.NOT_A_NUMBER: "has a time that is no number",
    scan.NO_TIME: "has no start time",
    scan.TIME_TOO_BIG: "has a time beyond 70 years",
}

Ints = NDArray[Any]
Owner = int | str
_COLUMNS: dict[str, DTypeLike] = {
    "letter": np.uint8,
    "index": np.int32,
    "ts": np.int64,
    "dur": np.int64,
    "name": np.int32,
    "cat": np.int32,
    "thread": np.int32,
    "correlation": np.int64,
    "external_id": np.int64,
    "rare_row": np.int32,
    "rare_slot": np.int8,
    "rare_value": np.int64,
}


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Columns over N wanted events; ``index`` is the position of each in ``traceEvents``.

    ``name`` and ``cat`` are codes into ``strings``, ``thread`` into ``threads`` ((pid, tid) pairs). Times are ns on
    the trace's own clock, without ``baseTimeNanoseconds``. An absent number is ``MISSING``.
    """

    path: str
    letter: NDArray[np.uint8]
    index: NDArray[np.int32]
    ts: NDArray[np.int64]
    dur: NDArray[np.int64]
    name: NDArray[np.int32]
    cat: NDArray[np.int32]
    thread: NDArray[np.int32]
    correlation: NDArray[np.int64]
    external_id: NDArray[np.int64]
    rare_row: NDArray[np.int32]
    rare_slot: NDArray[np.int8]
    rare_value: NDArray[np.int64]
    strings: tuple[str, ...]
    threads: tuple[tuple[Owner, Owner], ...]
    meta: dict[str, Any]
    counts: dict[str, int]

    @property
    def num_rows(self) -> int:
        """Number of events kept."""
        return len(self.name)

    def rare(self, key: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Rows that have the argument ``key``, and its values (a string is ``scan.STRING + code``)."""
        result = self.rare_slot == scan.RARE[key]
        return self.rare_row[result], self.rare_value[result]

    def argument(self, key: str) -> NDArray[np.int64]:
        """Column [N] of the argument ``key``, MISSING where an event lacks it."""
        rows, values = self.rare(key)
        column = np.full(self.num_rows, MISSING, np.int64)
        column[rows] = values
        return column

    def text(self, value: int) -> str:
        """What an argument's value says: a string as it is, a number in digits."""
        return self.strings[value - scan.STRING] if is_string(value) else str(value)


class _Column:
    """An array that grows in place, by a quarter."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._values: Ints = np.empty(1 << 14, dtype)
        self._used = 0

    def append(self, values: Ints) -> None:
        """Add values at the end."""
        needed = self._used + len(values)
        if needed > len(self._values):
            self._values.resize(max(needed, len(self._values) * 5 // 4), refcheck=False)
        self._values[self._used : needed] = values
        self._used = needed

    def finish(self) -> Ints:
        """The array, without room for more."""
        self._values.resize(self._used, refcheck=False)
        return self._values


def is_string(value: int) -> bool:
    """Whether a value of an integer column stands for a string."""
    return scan.STRING <= value < scan.STRING + 2**40


def event_label(index: int, name: str) -> str:
    """How messages call an event."""
    shown = name if len(name) <= _SHOWN else name[: _SHOWN - 3] + "..."
    return f"event {index:,} ({shown!r})"


def read_trace(
    path: str | Path, *, partial: bool = False, read_limit: int | None = None, progress: Progress | None = None
) -> Trace:
    """Read the events of a Kineto (Chrome) trace, ``.json`` or ``.json.gz``.

    Parameters
    ----------
    path : str or Path
        A JSON object with ``traceEvents``, or a bare list of events; packed with gzip or not.
    partial : bool
        Keep the events before the cut of a truncated file instead of refusing it.
    read_limit : int, optional
        The most bytes of memory that reading may take (`windtunnel.base.reading.ReadLimit`).
    progress : callable, optional
        Called with (what, bytes read, bytes in all) while reading.

    Raises
    ------
    TraceError
        The file is cut or damaged (byte offset), is no trace, takes more than the limit, or an event's time cannot be
        (event index and name).
    """
    limit = ReadLimit(Path(path), read_limit)
    with Text(Path(path), progress=progress, limit=limit) as text:
        reader = _Reader(text, limit)
        try:
            meta = read_document(text, reader.read_events)
        except TraceError:
            if not (partial and reader.num_events):
                raise
            meta = {"partial": True}
        return reader.trace(meta)


class _Reader:
    """Tables that grow while events are read."""

    def __init__(self, text: Text, limit: ReadLimit) -> None:
        self._text, self._limit = text, limit
        self._state = np.zeros(6, np.int64)
        self._phases = np.zeros(256, np.int64)
        self._rows = np.empty((_ROWS, scan.NUM_DENSE), np.int64)
        self._rare = np.empty((4 * _ROWS, 3), np.int64)
        self._pool = np.empty(1 << 20, np.uint8)
        self._hashes = np.empty(1 << 15, np.uint64)
        self._offsets = np.empty(1 << 15, np.int64)
        self._lengths = np.empty(1 << 15, np.int64)
        self._table = np.full(1 << 16, -1, np.int32)
        self._threads: dict[tuple[int, int], int] = {}
        self._num_rows = 0
        self._columns = {name: _Column(dtype) for name, dtype in _COLUMNS.items()}
        for known in scan.KNOWN_STRINGS:
            raw = np.array([*known.encode(), ord('"'), 0], np.uint8)
            self._intern(raw, len(known))

    @property
    def num_events(self) -> int:
        return int(self._state[scan.NUM_EVENTS])

    def _intern(self, raw: Ints, length: int) -> None:
        _, digest, _ = json_grammar.hash_string(raw, 0, len(raw))
        table, hashes, offsets, lengths, pool = self._tables()
        scan.intern(raw, 0, length, np.uint64(digest), table, hashes, offsets, lengths, pool, self._state)

    def _tables(self) -> Any:
        return self._table, self._hashes, self._offsets, self._lengths, self._pool

    def read_events(self) -> None:
        """Read the events of an array whose `[` was just passed."""
        text, first, started = self._text, True, self.num_events
        # The scanner cannot allocate: it returns when a table is full or the text of its window ends, and is
        # called again at the event that it could not finish. Events are whole or absent, never half written.
        while True:
            table, hashes, offsets, lengths, pool = self._tables()
            stopped, position, detail = scan.scan_events(
                text.buffer,
                text.position,
                text.end,
                first,
                scan.KEY_HASHES,
                scan.KEY_SLOTS,
                table,
                hashes,
                offsets,
                lengths,
                pool,
                self._state,
                self._rows,
                self._rare,
                self._phases,
            )
            first = first and self.num_events == started
            if stopped == scan.BAD_JSON:
                deep = (
                    f", or nested more than {json_grammar.MAX_DEPTH:,} deep" if text.buffer[position] in b"[{" else ""
                )
                raise text.syntax_error(f"event {self.num_events:,} is no JSON{deep}", text.offset + int(position))
            if stopped == scan.BAD_EVENT:
                raise self._bad_event(int(position), int(detail))
            text.position = int(position)
            if stopped == scan.DONE:
                return
            if stopped == scan.NEED_STRINGS:
                self._grow(int(detail))
            elif stopped == scan.NEED_ROWS:
                self._flush()
            elif not text.more():
                raise text.truncation_error(f"in or after event {self.num_events:,}")

    def _bad_event(self, position: int, why: int) -> TraceError:
        text = self._text
        text.position = position
        if text.peek() == ord(","):
            text.position += 1
        event = text.value()
        name = str(event.get("name", "")) if isinstance(event, dict) else ""
        times = {key: event.get(key) for key in ("ts", "dur")} if isinstance(event, dict) else {}
        return TraceError(
            f"{event_label(self.num_events - 1, name)} {_WHY[why]}: {str(times)[:_SHOWN]}",
            where=f"{text.path}: byte {text.offset + position:,}",
            fix="drop the event, or capture again",
        )

    def _grow(self, length: int) -> None:
        count = len(self._hashes)
        self._hashes, self._offsets, self._lengths = (
            np.concatenate([column, np.empty(count, column.dtype)])
            for column in (self._hashes, self._offsets, self._lengths)
        )
        room = len(self._pool) + max(len(self._pool), length)
        self._pool = np.concatenate([self._pool, np.empty(room - len(self._pool), np.uint8)])
        self._table = np.full(4 * count, -1, np.int32)
        scan.rehash(self._table, self._hashes, int(self._state[scan.NUM_STRINGS]))

    def _flush(self) -> None:
        """Move the rows of this piece into compact columns."""
        num, num_rare = int(self._state[scan.NUM_ROWS]), int(self._state[scan.NUM_RARE])
        rows, rare = self._rows[:num], self._rare[:num_rare]
        columns = self._columns
        columns["letter"].append(rows[:, scan.LETTER])
        columns["index"].append(rows[:, scan.INDEX])
        columns["ts"].append(rows[:, scan.TS])
        columns["dur"].append(rows[:, scan.DUR])
        columns["name"].append(rows[:, scan.NAME])
        columns["cat"].append(rows[:, scan.CAT])
        columns["thread"].append(self._thread_codes(rows[:, scan.PID], rows[:, scan.TID]))
        columns["correlation"].append(rows[:, scan.CORRELATION])
        columns["external_id"].append(rows[:, scan.EXTERNAL_ID])
        columns["rare_row"].append(rare[:, 0] + self._num_rows)
        columns["rare_slot"].append(rare[:, 1])
        columns["rare_value"].append(rare[:, 2])
        self._num_rows += num
        self._limit.check(_BYTES_PER_EVENT * self._num_rows, error=TraceError)
        self._state[scan.NUM_ROWS] = self._state[scan.NUM_RARE] = 0

    def _thread_codes(self, pid: Ints, tid: Ints) -> Ints:
        if not len(pid):
            return np.empty(0, np.int32)
        order = np.lexsort((tid, pid))
        pid, tid = pid[order], tid[order]
        new = np.concatenate([[True], (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])])
        pairs = zip(pid[new].tolist(), tid[new].tolist(), strict=True)
        codes = np.array([self._threads.setdefault(pair, len(self._threads)) for pair in pairs], np.int32)
        column = np.empty(len(order), np.int32)
        column[order] = codes[np.cumsum(new) - 1]
        return column

    def trace(self, meta: dict[str, Any]) -> Trace:
        """The columns of all that was read."""
        self._flush()
        strings = self._strings()

        def owner(value: int) -> Owner:
            return strings[value - scan.STRING] if is_string(value) else ("" if value == MISSING else value)

        threads = tuple((owner(pid), owner(tid)) for pid, tid in self._threads)
        counts = {f"ph {chr(ph)}": int(num) for ph, num in enumerate(self._phases) if num and ph}
        counts["without ph"] = int(self._phases[0])
        counts["complete events without duration"] = int(self._state[scan.NO_DURATION])
        counts = {reason: num for reason, num in counts.items() if num}
        named: dict[str, Any] = {name: column.finish() for name, column in self._columns.items()}
        return Trace(path=str(self._text.path), strings=strings, threads=threads, meta=meta, counts=counts, **named)

    def _strings(self) -> tuple[str, ...]:
        num = int(self._state[scan.NUM_STRINGS])
        offsets, lengths = self._offsets[:num].tolist(), self._lengths[:num].tolist()
        pool = self._pool[: int(self._state[scan.POOL_USED])].tobytes()
        return tuple(_unescape(pool[begin : begin + length]) for begin, length in zip(offsets, lengths, strict=True))


def _unescape(raw: bytes) -> str:
    """The text of a JSON string's raw bytes; what is no UTF-8 or no escape is shown as a replacement character."""
    text = raw.decode("utf-8", "replace")
    if "\\" not in text:
        return text
    try:
        decoded: str = json.loads(f'"{text}"', strict=False)
    except ValueError:
        decoded = text
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
