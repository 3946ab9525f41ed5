"""A window that slides over the text of a trace file, packed with gzip or not (sources, Kineto).

In: a path. Out: pieces of unpacked bytes of bounded size, with the byte offset of each. Knows of JSON only how far
a value reaches. Not here: events.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from windtunnel.base.progress import Progress
from windtunnel.base.reading import ReadLimit
from windtunnel.errors import TraceError
from windtunnel.sources.kineto import json_grammar

__all__ = ["Text"]


_PIECE_BYTES = 1 << 20
_WINDOW_BYTES = 4 << 20
_LARGEST_SIDE_VALUE = 4 << 20


class Text:
    """The unread part of a file: ``buffer[position:end]``, followed by two zero bytes.

    Parameters
    ----------
    path : Path
        A ``.json`` file, or the same packed with gzip (told by its first bytes, not by its name).
    window_bytes : int
        Room for text; it grows if an event is longer.
    progress : callable, optional
        Called with (what, bytes read, bytes in all) for every piece.
    limit : ReadLimit, optional
        How much the file may unpack to, and the window may grow.
    """

    def __init__(
        self,
        path: Path,
        window_bytes: int = _WINDOW_BYTES,
        progress: Progress | None = None,
        limit: ReadLimit | None = None,
    ) -> None:
        self.path = path
        self._limit = limit or ReadLimit(path)
        self._stack = np.empty(json_grammar.MAX_DEPTH, np.uint8)
        self.buffer = np.zeros(window_bytes + 2, np.uint8)
        self.position = 0
        self.end = 0
        self.offset = 0  # of buffer[0] in the unpacked text
        self.is_cut = False  # the gzip stream stopped before its end
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise TraceError(f"cannot open the trace: {error.strerror}", where=str(path)) from error
        self._progress, self._size = progress, os.fstat(self._file.fileno()).st_size
        self._is_packed = self._read(2) == b"\x1f\x8b"
        self._file.seek(0)
        self._unpacker = zlib.decompressobj(wbits=31)
        self._packed = b""
        self._is_inside = False  # of a gzip stream that has begun

    def __enter__(self) -> Text:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def byte(self) -> int:
        """Offset of the read position in the unpacked text."""
        return self.offset + self.position

    def more(self) -> bool:
        """Move the unread part to the front and read on; False at the end of the file."""
        unread = self.end - self.position
        room = len(self.buffer) - 2
        if unread > room // 2:
            self._limit.check(4 * room, error=TraceError)  # the old window and one of twice its size
            bigger = np.zeros(2 * room + 2, np.uint8)
            bigger[:unread] = self.buffer[self.position : self.end]
            self.buffer = bigger
        elif self.position:
            self.buffer[:unread] = self.buffer[self.position : self.end].copy()
        self.offset += self.position
        self.position, self.end = 0, unread
        while self.end < len(self.buffer) - 2 - _PIECE_BYTES:
            piece = self._piece()
            if not piece:
                break
            self.buffer[self.end : self.end + len(piece)] = np.frombuffer(piece, np.uint8)
            self.end += len(piece)
        if self._is_packed:
            self._limit.check_text(self.offset + self.end, error=TraceError)
        self.buffer[self.end : self.end + 2] = 0
        if self._progress is not None:
            self._progress("reading the trace", self._file.tell(), self._size)
        return self.end > unread

    def peek(self) -> int:
        """The next byte that is not white space (left unread); -1 at the end of the file."""
        while True:
            self.position = min(int(json_grammar.space(self.buffer, self.position)), self.end)
            if self.position < self.end:
                return int(self.buffer[self.position])
            if not self.more():
                return -1

    def value(self) -> Any:
        """Read one JSON value into Python; one too large to matter here is passed over and gives None."""
        self.peek()
        while True:
            after = int(json_grammar.skip_value(self.buffer, self.position, self.end, self._stack))
            if after >= 0:
                break
            if after < -1:
                raise self.syntax_error("there is no JSON value here", self.offset - 2 - after)
            if not self.more():
                raise self.truncation_error("in the middle of a value")
        raw = self.buffer[self.position : after].tobytes()
        begin = self.byte
        self.position = after
        if len(raw) > _LARGEST_SIDE_VALUE:
            return None
        try:
            return json.loads(raw.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError) as error:
            raise self.syntax_error(f"a value is no JSON: {error}", begin) from error

    def syntax_error(self, message: str, byte: int | None = None) -> TraceError:
        """An error about the byte at an offset (by default the read position)."""
        return TraceError(
            message,
            where=f"{self.path}: byte {self.byte if byte is None else byte:,}",
            fix="a trace is a JSON object with `traceEvents`, or a bare list of events; export it again",
        )

    def truncation_error(self, what: str) -> TraceError:
        """An error about a file that ends too early."""
        packed = f" (byte {self._file.tell():,} of the gzip file)" if self._is_packed else ""
        why = "the gzip data stop before their end" if self.is_cut else "the JSON stops"
        return TraceError(
            f"the trace is cut off: {why} {what}",
            where=f"{self.path}: byte {self.offset + self.end:,}{packed}",
            fix="copy the file again; or read the events before the cut with partial=True",
        )

    def _piece(self) -> bytes:
        if not self._is_packed:
            return self._read(_PIECE_BYTES)
        while True:
            if not self._packed:
                self._packed = self._read(_PIECE_BYTES // 4)
            try:
                piece = self._unpacker.decompress(self._packed, _PIECE_BYTES)
            except zlib.error as error:
                raise TraceError(
                    f"the gzip data are damaged: {error}",
                    where=f"{self.path}: about byte {self._file.tell() - len(self._packed):,} of the gzip file",
                    fix="copy the file again",
                ) from error
            at_end = not self._packed
            self._is_inside = self._is_inside or not at_end
            self._packed = self._unpacker.unconsumed_tail
            if self._unpacker.eof:  # a file may be several packed ones, one after the other
                self._packed = self._unpacker.unused_data.lstrip(b"\0") or self._read(_PIECE_BYTES // 4)
                self._unpacker, self._is_inside = zlib.decompressobj(wbits=31), False
                if piece or not self._packed:
                    return piece
            elif piece or at_end:
                self.is_cut = not piece and self._is_inside
                return piece

    def _read(self, num_bytes: int) -> bytes:
        try:
            return self._file.read(num_bytes)
        except OSError as error:
            raise TraceError(f"cannot read the trace: {error.strerror}", where=str(self.path)) from error
