"""The receipts ledger: every prediction that was flown, kept; and the errors that the package ships.

In: receipts. Out: receipts, and what they say of later predictions (``intervals``). One SQLite file that several
processes may write at once; a file that is not a ledger is refused and left as it is. ``shipped.json`` holds the
flights of four bars, so that a prediction has an interval before its user has flown anything: ``python -m
benchmarks.tables`` writes it from ``docs/receipts/bars.json``.
"""

from __future__ import annotations

import functools
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from windtunnel import registry
from windtunnel.base.reading import format_value, parse_json
from windtunnel.errors import InputError, SchemaVersionError
from windtunnel.flights.receipt import Receipt, encode
from windtunnel.measure.disturbance import MAX_NEIGHBORS

__all__ = ["Ledger", "Residual", "default_ledger", "family_of", "read_shipped_residuals", "residuals_of"]

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x77746C67  # "wtlg": tells our files from every other SQLite file
_BUSY_TIMEOUT_S = 30.0
_DROP_ROW = "windtunnel db forget --receipts NUMBER removes this row; or pass another path to --ledger"
_TABLES = """
CREATE TABLE receipts (
    id INTEGER PRIMARY KEY,
    date TEXT NOT NULL,
    whatif TEXT NOT NULL,
    family TEXT NOT NULL,
    subject TEXT NOT NULL,
    log_residual REAL NOT NULL,
    document TEXT NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Residual:
    """How far one flight was from its prediction: log of measured over predicted iteration time.

    ``subject`` is what was flown on what (what-if, parameters, model, hardware): flights of one subject are no new
    evidence.
    """

    whatif: str
    family: str
    subject: str
    log_residual: float


def default_ledger() -> Path:
    """Default path of the ledger of receipts."""
    return Path.home() / ".windtunnel" / "receipts.db"


@functools.cache
def family_of(whatif: str) -> str:
    """The what-if's family, which is the name of the file that holds it; combinations are a family of their own."""
    if "+" in whatif:
        return "combination"
    known = registry.all("whatif").get(whatif)
    return known.function.__module__.rpartition(".")[2] if known else whatif


class Ledger:
    """Receipts in an SQLite file, made when the first one is added.

    Parameters
    ----------
    path : Path or str, optional
        The file; ``~/.windtunnel/receipts.db`` by default.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else default_ledger()

    def add(self, receipt: Receipt) -> None:
        """Append a receipt, whole or not at all.

        Raises
        ------
        InputError
            The file is something else than a ledger, or cannot be written.
        SchemaVersionError
            A newer version of this package wrote it.
        """
        document = receipt.to_dict()
        residual = math.log(receipt.predicted / receipt.measured)
        values = (
            receipt.date,
            receipt.whatif,
            family_of(receipt.whatif),
            receipt.subject,
            residual,
            encode(document),
        )
        with self._transaction(is_writing=True) as connection:
            connection.execute(
                "INSERT INTO receipts (date, whatif, family, subject, log_residual, document)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                tuple(_storable(value) for value in values),
            )

    def receipts(self, whatif: str | None = None) -> list[Receipt]:
        """Every receipt, oldest first; of one what-if, if named.

        Raises
        ------
        InputError
            The file is no ledger, or a row of it is damaged: names the row.
        """
        return list(self.receipts_by_number(whatif).values())

    def receipts_by_number(self, whatif: str | None = None) -> dict[int, Receipt]:
        """The receipts by their number in the file, oldest first; errors as in :meth:`receipts`."""
        query = "SELECT id, document FROM receipts WHERE ? IS NULL OR whatif = ? ORDER BY id"
        return {
            int(number): self._receipt(number, document) for number, document in self._read(query, (whatif, whatif))
        }

    def drop(self, numbers: Iterable[int]) -> int:
        """Remove receipts, all or none, and return how many.

        Raises
        ------
        InputError
            The file is no ledger, or has no receipt of one of these numbers.
        """
        requested = sorted(set(numbers))
        present = {int(number) for (number,) in self._read("SELECT id FROM receipts", ())}
        if missing := [number for number in requested if number not in present]:
            raise InputError(
                f"there is no receipt {missing[0]}",
                where=str(self.path),
                fix="windtunnel db receipts lists them with their numbers",
            )
        with self._transaction(is_writing=True) as connection:
            connection.executemany("DELETE FROM receipts WHERE id = ?", [(number,) for number in requested])
        return len(requested)

    def residuals(self) -> list[Residual]:
        """The errors of all flights, oldest first, but of those that other programs disturbed.

        What such a flight measured holds for its own job and moment; it says little of other predictions.

        Raises
        ------
        InputError
            The file is no ledger, or a row of it is damaged: names the row and the column.
        """
        query = (
            "SELECT id, whatif, family, subject, log_residual FROM receipts WHERE CASE WHEN json_valid(document)"
            " THEN coalesce(json_extract(document, '$.neighbors_ratio'), 0) <= ? ELSE 1 END ORDER BY id"
        )
        return [self._residual(*row) for row in self._read(query, (MAX_NEIGHBORS,))]

    def _receipt(self, number: Any, document: Any) -> Receipt:
        where = f"{self.path}: row {format_value(number)}, column document"
        if not isinstance(document, str):
            raise InputError(f"the receipt is {format_value(document)} instead of text", where=where, fix=_DROP_ROW)
        try:
            return Receipt.from_dict(parse_json(document.encode("utf-8", "replace"), where))
        except InputError as error:
            raise InputError(f"the receipt is damaged: {error.message}", where=where, fix=_DROP_ROW) from error

    def _residual(self, number: Any, whatif: Any, family: Any, subject: Any, log_residual: Any) -> Residual:
        strings = {"whatif": whatif, "family": family, "subject": subject}
        wrong = {name: value for name, value in strings.items() if not isinstance(value, str)}
        if not isinstance(log_residual, float) or not math.isfinite(log_residual):
            wrong["log_residual"] = log_residual
        for name, value in wrong.items():
            where = f"{self.path}: row {format_value(number)}, column {name}"
            raise InputError(f"the receipt's {name} is {format_value(value)}", where=where, fix=_DROP_ROW)
        return Residual(whatif, family, subject, log_residual)

    def __len__(self) -> int:
        return int(self._read("SELECT count(*) FROM receipts", ())[0][0]) if self.path.exists() else 0

    def _read(self, query: str, values: tuple[str | float | None, ...]) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        with self._transaction() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self, *, is_writing: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            if is_writing:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)) as connection:
                connection.text_factory = _text
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("BEGIN IMMEDIATE" if is_writing else "BEGIN")
                self._check(connection, is_writing=is_writing)
                yield connection
                connection.execute("COMMIT")
        except (sqlite3.Error, OSError, UnicodeError) as error:  # SQLite's own words may be no UTF-8
            fix = "pass another path to --ledger; this file is left as it is"
            raise InputError(f"the receipts ledger cannot be used: {error}", where=str(self.path), fix=fix) from error

    def _check(self, connection: sqlite3.Connection, *, is_writing: bool) -> None:
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        num_tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
        is_new = application == 0 and version == 0 and num_tables == 0
        if is_new and is_writing:
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute(_TABLES)
        elif application != _APPLICATION_ID:
            fix = "pass another path to --ledger; this file is left as it is"
            raise InputError("this file is not a receipts ledger", where=str(self.path), fix=fix)
        elif version != SCHEMA_VERSION:
            raise SchemaVersionError(
                f"the ledger has schema version {version}; this package knows {SCHEMA_VERSION}",
                where=str(self.path),
                fix="update windtunnel, or pass another path to --ledger",
            )
        elif connection.execute("SELECT type FROM sqlite_master WHERE name = 'receipts'").fetchall() != [("table",)]:
            fix = "pass another path to --ledger; this file is left as it is"
            raise InputError("the ledger has no table receipts", where=str(self.path), fix=fix)


def _text(stored: bytes) -> str | bytes:
    """What SQLite calls text; bytes where it is no UTF-8, so that the row can be named."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _storable(value: object) -> object:
    """Names from outside can hold halves of characters, which no UTF-8 file can."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


@functools.cache
def read_shipped_residuals() -> tuple[Residual, ...]:
    """Those of all bars in the file."""
    text = (resources.files("windtunnel.flights") / "shipped.json").read_text(encoding="utf-8")
    return tuple(result for load in json.loads(text)["bars"].values() for result in residuals_of(load["errors"]))


def residuals_of(errors: Mapping[str, Any]) -> list[Residual]:
    """Residuals by ``job/change``, each given as predicted over measured time of an iteration, less 1.

    Examples
    --------
    >>> [(one.whatif, round(one.log_residual, 3)) for one in residuals_of({"cnn/batch-size:factor=2": 0.05})]
    [('batch-size', -0.049)]
    """
    result = []
    for subject, error in errors.items():
        whatif = "+".join(step.split(":")[0] for step in subject.partition("/")[2].split("+"))
        result.append(Residual(whatif, family_of(whatif), subject, -math.log1p(error)))
    return result
