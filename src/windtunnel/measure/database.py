"""The profile database: what operators cost in which form, on which machine.

In: measurements. Out: the same, later, by key. One SQLite file; a measurement is written whole or not at all, and two
processes may write at once. Hostile operator names are only values of parameters.
"""

from __future__ import annotations

import errno
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from windtunnel.base.reading import format_value
from windtunnel.errors import InputError, SchemaVersionError

__all__ = ["Measurement", "ProfileDatabase", "default_database_path", "find_or_measure"]

_VERSION = 3
_LATER = {"flops": 2, "bytes_moved": 2, "step_bytes": 3}  # columns by the version that brought them
_MAX_SPREAD = 0.25
_FRESH_S = 600
_KEY = ("operator", "signature", "phase", "change", "threads", "machine", "libraries")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One operator in its old and its new form, measured side by side.

    Parameters
    ----------
    operator : str
        Schema name, such as ``aten::linear``.
    signature : str
        Shapes, types, layouts and other arguments, as text.
    phase : str
        ``forward``, ``backward`` or ``update``.
    change : str
        Label of the new form.
    threads : int
        Threads of the old form.
    machine, libraries : str
        Fingerprints: a measurement is never used on another machine or with another library.
    old_ns, new_ns : float
        Medians over the rounds.
    spread_ratio : float
        Interquartile range of the ratio over its median.
    rounds : int
        Interleaved rounds behind the medians.
    bytes_ratio : float
        Bytes of its results, new over old.
    measured_at : int
        Seconds since 1970; 0 lets the database fill it in.
    flops, bytes_moved : float
        What it computed and moved, for prices of other sizes; 0 where that was not noted.
    step_bytes : float
        What the whole step moved that it ran in; 0 alone, or where that was not noted.
    """

    operator: str
    signature: str
    phase: str
    change: str
    threads: int
    machine: str
    libraries: str
    old_ns: float
    new_ns: float
    spread_ratio: float = 0.0
    rounds: int = 1
    bytes_ratio: float = 1.0
    measured_at: int = 0
    flops: float = 0.0
    bytes_moved: float = 0.0
    step_bytes: float = 0.0

    @property
    def ratio(self) -> float:
        """New duration over old."""
        return self.new_ns / self.old_ns if self.old_ns > 0 else 1.0

    @property
    def is_trusted(self) -> bool:
        """Whether it need not be made again: it was steady, or the machine can hardly be quieter by now."""
        return self.spread_ratio <= _MAX_SPREAD or time.time() - self.measured_at < _FRESH_S

    @property
    def key(self) -> tuple[str | int, ...]:
        """What makes two measurements the same one."""
        return tuple(getattr(self, name) for name in _KEY)


_COLUMNS = tuple(field.name for field in fields(Measurement))
_KINDS: dict[str, type | tuple[type, ...]] = {
    field.name: {"str": str, "int": int}.get(str(field.type), (int, float)) for field in fields(Measurement)
}
# only names of columns are ever put into a statement; values are its parameters
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM measurements"  # noqa: S608
_SLOTS = ", ".join("?" * len(_COLUMNS))
_INSERT = f"INSERT OR REPLACE INTO measurements ({', '.join(_COLUMNS)}) VALUES ({_SLOTS})"  # noqa: S608


def default_database_path() -> Path:
    """The default path of the measurements: ``~/.windtunnel/profile.db``."""
    return Path.home() / ".windtunnel" / "profile.db"


def _is_full(error: Exception) -> bool:
    return isinstance(error, sqlite3.DatabaseError) and "full" in str(error)


class ProfileDatabase:
    """Measurements by operator, form and machine, in one SQLite file.

    Parameters
    ----------
    path : str or Path, optional
        Made with its folder on the first write; ``":memory:"`` keeps nothing.
    since : int
        What was measured before, in seconds since 1970, is not looked at, and replaced when it is measured again.

    Raises
    ------
    InputError
        The file is no profile database.
    SchemaVersionError
        It was written by a newer version.

    Examples
    --------
    >>> database = ProfileDatabase(":memory:")
    >>> relu = Measurement("aten::relu", "[32, 64] float", "forward", "autocast=bfloat16", 2, "cpu", "torch", 10.0, 6.0)
    >>> database.add([relu])
    >>> database.find(relu.key).ratio
    0.6
    """

    def __init__(self, path: str | Path | None = None, *, since: int = 0) -> None:
        self.since = since
        self.path = str(default_database_path() if path is None else path)
        self._kept: sqlite3.Connection | None = None
        if self.path == ":memory:":
            self._kept = self._open()

    def __repr__(self) -> str:
        return f"ProfileDatabase({self.path!r})"

    def __len__(self) -> int:
        if not self._exists():
            return 0
        with self._connection() as connection:
            return int(connection.execute("SELECT count(*) FROM measurements").fetchone()[0])

    def __iter__(self) -> Iterator[Measurement]:
        """Every measurement, in the order of their keys."""
        if not self._exists():
            return
        with self._connection() as connection:
            rows = connection.execute(f"{_SELECT} ORDER BY {', '.join(_KEY)}")
            result = [self._measurement(row) for row in rows]
        yield from result

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Keep measurements, all or none; one with a known key replaces the old one."""
        now = int(time.time())
        rows = [
            astuple(measurement if measurement.measured_at else replace(measurement, measured_at=now))
            for measurement in measurements
        ]
        with self._connection() as connection, connection:
            connection.executemany(_INSERT, rows)

    def find(self, key: tuple[str | int, ...]) -> Measurement | None:
        """The measurement with this key, or None."""
        return self.find_all([key]).get(key)

    def find_all(self, keys: Iterable[tuple[str | int, ...]]) -> dict[tuple[str | int, ...], Measurement]:
        """The measurements that are known, by key."""
        if not self._exists():
            return {}
        condition = " AND ".join(f"{name} = ?" for name in _KEY)
        query = f"{_SELECT} WHERE {condition}"
        with self._connection() as connection:
            rows = [(key, connection.execute(query, key).fetchone()) for key in keys]
        result = {key: self._measurement(row) for key, row in rows if row is not None}
        return {key: item for key, item in result.items() if item.measured_at >= self.since}

    def drop(self, change: str = "") -> int:
        """Forget the measurements whose change holds this text, all if it is empty; how many they were."""
        if not self._exists():
            return 0
        with self._connection() as connection, connection:
            done = connection.execute("DELETE FROM measurements WHERE instr(change, ?) > 0 OR ? = ''", (change, change))
            return done.rowcount

    def samples(self, machine: str, libraries: str, threads: int) -> list[Measurement]:
        """Measurements that say what they computed or moved, in the order of their keys."""
        if not self._exists():
            return []
        where = "machine = ? AND libraries = ? AND threads = ? AND (flops > 0 OR bytes_moved > 0) AND measured_at >= ?"
        with self._connection() as connection:
            rows = connection.execute(
                f"{_SELECT} WHERE {where} ORDER BY {', '.join(_KEY)}", (machine, libraries, threads, self.since)
            )
            return [self._measurement(row) for row in rows]

    def _measurement(self, row: tuple[Any, ...]) -> Measurement:
        for name, value in zip(_COLUMNS, row, strict=True):
            kinds = _KINDS[name]
            if not isinstance(value, kinds) or (isinstance(value, float) and not math.isfinite(value)):
                key = " ".join(format_value(item) for item in row[: len(_KEY)])
                raise InputError(
                    f"the measurement's {name} is {format_value(value)}",
                    where=f"{self.path}: {key}",
                    fix="delete this row with sqlite3, or move the file away",
                )
        return Measurement(*row)

    def _exists(self) -> bool:
        return self._kept is not None or Path(self.path).exists()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if self._kept is not None:
            yield self._kept
            return
        try:
            with closing(self._open()) as connection:
                yield connection
        except (sqlite3.DatabaseError, UnicodeError) as error:
            if _is_full(error):  # the system's error, and no what-if's that happens to ask for a price
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path) from error
            if isinstance(error, sqlite3.IntegrityError):  # what was to be written is wrong, not the file
                raise
            fix = "name another file, or move this one away"
            raise InputError(f"the profile database cannot be used: {error}", where=self.path, fix=fix) from error

    def _open(self) -> sqlite3.Connection:
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            _prepare(connection, self.path)
        except sqlite3.DatabaseError as error:
            connection.close()
            if _is_full(error):
                raise
            raise InputError(
                f"this is no profile database: {error}", where=self.path, fix="name another file, or move this one away"
            ) from error
        except SchemaVersionError:
            connection.close()
            raise
        return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > _VERSION:
        raise SchemaVersionError(
            f"profile database of version {version}; this program knows {_VERSION}",
            where=path,
            fix="update windtunnel, or name another file",
        )
    if version == _VERSION:
        return
    strings = ", ".join(f"{name} {_sql_type(name)} NOT NULL" for name in _COLUMNS)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])  # another process may have been faster
        for name in [key for key, since in _LATER.items() if 0 < version < since]:
            connection.execute(f"ALTER TABLE measurements ADD COLUMN {name} REAL NOT NULL DEFAULT 0")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS measurements ({strings}, PRIMARY KEY ({', '.join(_KEY)})) WITHOUT ROWID"
        )
        connection.execute(f"PRAGMA user_version = {_VERSION}")


def _sql_type(name: str) -> str:
    kinds = {"str": "TEXT", "int": "INTEGER", "float": "REAL"}
    kind = next(field.type for field in fields(Measurement) if field.name == name)
    return kinds[str(kind)]


def find_or_measure(
    database: ProfileDatabase | None,
    keys: Sequence[tuple[str, str, str, str, int, str, str]],
    measure: Callable[[], Sequence[Sequence[float]]],
    rounds: int,
) -> list[Measurement]:
    """Measurements that belong together, as a database has them; unless it has and trusts all, made now and kept.

    Parameters
    ----------
    database : ProfileDatabase, optional
    keys : sequence
        What makes each measurement the same one, as ``Measurement.key``.
    measure : callable
        Gives the old and the new duration in ns, and the spread, in the order of the keys.
    rounds : int
        In which it measures.
    """
    found = [database.find(key) for key in keys] if database is not None else []
    known = [item for item in found if item is not None and item.is_trusted]
    if len(known) == len(keys):
        return known
    measured = [
        Measurement(*key, old_ns=old_ns, new_ns=new_ns, spread_ratio=spread_ratio, rounds=rounds)
        for key, (old_ns, new_ns, spread_ratio) in zip(keys, measure(), strict=True)
    ]
    if database is not None:
        database.add(measured)
    return measured
