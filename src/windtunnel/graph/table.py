"""An immutable table of equally long columns.

In: arrays and text. Out: a mapping from column name to array that edits share piece by piece. Text is stored
once per distinct value (``Strings``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import GraphError
from windtunnel.graph.schema import Column

__all__ = ["Array", "Strings", "Table", "as_read_only", "check_declared", "concat_all"]

Array = NDArray[Any]


def as_read_only(array: Array) -> Array:
    """Return the array, read-only: a graph never changes under the hands of its reader."""
    # A view: the owner may go on writing to its own array, code that got it from a graph may not.
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """A dictionary-encoded text column: ``codes`` int32 [T] into ``values``."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Strings:
        """Encode texts, keeping the order in which each first appears."""
        # A dictionary keeps the order of insertion, so that codes count first appearances.
        index: dict[str, int] = {}
        codes = [index.setdefault(text, len(index)) for text in texts]
        return cls(as_read_only(np.array(codes, dtype=np.int32)), tuple(index))

    @classmethod
    def repeat(cls, text: str, count: int) -> Strings:
        """A column that holds one text ``count`` times."""
        return cls(as_read_only(np.zeros(count, dtype=np.int32)), (text,))

    def __len__(self) -> int:
        return len(self.codes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Strings) or len(self) != len(other):
            return False
        return bool(np.array_equal(self.to_numpy(), other.to_numpy()))

    def __hash__(self) -> int:
        return id(self)

    def decode(self, row: int) -> str:
        """The text of one row."""
        return self.values[int(self.codes[row])]

    def to_numpy(self) -> NDArray[np.object_]:
        """All texts as an object array [T]."""
        values = np.empty(len(self.values), dtype=object)
        values[:] = self.values
        strings: NDArray[np.object_] = values[self.codes]
        return strings

    def where(self, predicate: Mapping[str, bool]) -> NDArray[np.bool_]:
        """Rows whose text maps to True."""
        # The predicate is asked once per distinct text, not once per row.
        truth = np.array([predicate[value] for value in self.values], dtype=bool)
        return truth[self.codes] if len(truth) else np.zeros(len(self), dtype=bool)

    def take(self, rows: Array) -> Strings:
        """The given rows, with the same values."""
        return Strings(as_read_only(self.codes[rows]), self.values)

    def compact(self) -> Strings:
        """Drop the values that no row uses and merge equal ones, keeping the order of first use."""
        # Edits append values and take rows; only here values that are no longer used are dropped.
        used, inverse = np.unique(self.codes, return_inverse=True)
        distinct = Strings.of(self.values[code] for code in used)
        return Strings(as_read_only(distinct.codes[inverse].astype(np.int32)), distinct.values)

    @classmethod
    def concat_all(cls, parts: Sequence[Strings]) -> Strings:
        """The rows of all columns, one column after the other."""
        first, *others = parts
        index = {value: code for code, value in enumerate(first.values)}
        codes = [first.codes]
        for part in others:
            mapped = [index.setdefault(value, len(index)) for value in part.values]
            codes.append(np.array(mapped, dtype=np.int32)[part.codes] if mapped else part.codes)
        return cls(as_read_only(np.concatenate(codes)), tuple(index))

    def concat(self, other: Strings) -> Strings:
        """This column with the other's rows appended."""
        return Strings.concat_all([self, other])

    def assign(self, rows: Array, text: str) -> Strings:
        """This column with the given rows set to ``text``."""
        values = self.values if text in self.values else (*self.values, text)
        codes = self.codes.copy()
        codes[rows] = values.index(text)
        return Strings(as_read_only(codes), values)


class Table(Mapping[str, "Array | Strings"]):
    """Columns of one length by name; read-only.

    Examples
    --------
    >>> table = Table({"duration_ns": np.array([3, 4])})
    >>> table.num_rows, int(table["duration_ns"].sum())
    (2, 7)
    """

    __slots__ = ("_columns", "num_rows")

    def __init__(self, columns: Mapping[str, Array | Strings], num_rows: int | None = None) -> None:
        lengths = {name: len(column) for name, column in columns.items()}
        if num_rows is None:
            num_rows = next(iter(lengths.values()), 0)
        wrong = {name: length for name, length in lengths.items() if length != num_rows}
        if wrong:
            raise GraphError(
                f"columns differ in length: {wrong} instead of {num_rows} rows",
                fix="give every column one value per row",
            )
        self.num_rows: int = num_rows
        self._columns: dict[str, Array | Strings] = {
            name: column if isinstance(column, Strings) else as_read_only(column) for name, column in columns.items()
        }

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], schema: Mapping[str, Column]) -> Table:
        """Build a table with each column cast to its type; those of plug-ins are kept as they are.

        Raises
        ------
        GraphError
            A value does not fit its column, or no such column is declared.
        """
        for name in columns:
            check_declared(name, schema)
        return cls({name: cast_column(name, values, schema) for name, values in columns.items()})

    def __getitem__(self, name: str) -> Any:
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(self._columns)
            raise GraphError(f"there is no column {name!r}", fix=f"columns here: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def get(self, name: str, default: Any = None) -> Any:
        """The column, or ``default`` where the table has none."""
        return self._columns.get(name, default)

    def strings(self, name: str) -> Strings:
        """The text column ``name``."""
        column = self[name]
        if not isinstance(column, Strings):
            raise GraphError(f"column {name!r} holds numbers, not text")
        return column

    def replace(self, **columns: Array | Strings) -> Table:
        """A table with these columns set, sharing all others."""
        return Table({**self._columns, **columns}, self.num_rows)

    def take(self, rows: Array) -> Table:
        """The given rows (indices or mask) of every column."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return Table(
            {
                name: column.take(index) if isinstance(column, Strings) else column[index]
                for name, column in self._columns.items()
            },
            len(index),
        )

    def concat(self, other: Table, schema: Mapping[str, Column]) -> Table:
        """This table with the other's rows appended; a column that one side lacks gets its default there."""
        return concat_all([self, other], schema)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table) or set(self) != set(other):
            return False
        return all(_same(self._columns[name], other._columns[name]) for name in self)

    def __hash__(self) -> int:
        return id(self)


def _same(left: Array | Strings, right: Array | Strings) -> bool:
    if isinstance(left, Strings) or isinstance(right, Strings):
        return left is right or (isinstance(left, Strings) and left == right)
    return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")


def concat_all(tables: Sequence[Table], schema: Mapping[str, Column]) -> Table:
    """The rows of all tables, one table after the other; a column that one lacks gets its default there."""
    names = dict.fromkeys(name for table in tables for name in table)
    columns: dict[str, Array | Strings] = {}
    for name in names:
        # The type of a missing column is that of the first table that has it.
        like = next(table[name] for table in tables if name in table)
        parts: list[Any] = [table[name] if name in table else _default(table, name, like, schema) for table in tables]
        columns[name] = Strings.concat_all(parts) if isinstance(like, Strings) else np.concatenate(parts)
    return Table(columns, sum(table.num_rows for table in tables))


def _default(table: Table, name: str, like: Array | Strings, schema: Mapping[str, Column]) -> Array | Strings:
    default = schema[name].default if name in schema else ""
    if isinstance(like, Strings):
        return Strings.repeat(str(default), table.num_rows)
    value = default if name in schema else 0
    return np.full((table.num_rows, *like.shape[1:]), value, dtype=like.dtype)


def cast_column(name: str, values: Any, schema: Mapping[str, Column]) -> Array | Strings:
    """Cast one column to the type that the schema gives it.

    Raises
    ------
    GraphError
        A value does not fit the type: NaN, a fraction or an overflow in an integer column.
    """
    if isinstance(values, Strings):
        return values
    column = schema.get(name)
    is_text = column.dtype is None if column is not None else _starts_with_text(values)
    if is_text and not isinstance(values, np.ndarray):
        return Strings.of([str(value) for value in values])  # an array of text is as wide as its longest, in every row
    array = np.asarray(values)
    if (column is None and array.dtype.kind in "UO") or (column is not None and column.dtype is None):
        return Strings.of([str(value) for value in array.tolist()])
    if column is None:
        return array
    return _cast(name, array, np.dtype(column.dtype))


def check_declared(name: str, schema: Mapping[str, Column]) -> None:
    """Refuse a column that the schema does not know and no plug-in's name stands in front of.

    Raises
    ------
    GraphError
    """
    if name not in schema and "." not in name:
        raise GraphError(
            f"there is no column {name!r} in the schema",
            fix=f"put the name of the plug-in in front, as in 'mine.{name}', or use one of {', '.join(sorted(schema))}",
        )


def _starts_with_text(values: Any) -> bool:
    return isinstance(values, list | tuple) and bool(values) and isinstance(values[0], str)


def _cast(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf":
        raise GraphError(f"column {name!r} must hold numbers, not {array.dtype}")
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
    wrong = ~np.isfinite(array) if array.dtype.kind == "f" else np.zeros(array.shape, dtype=bool)
    # A value that the type cannot hold (a fraction, one out of range) differs after the cast.
    if dtype.kind in "iu":
        wrong |= cast != array
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise GraphError(
            f"column {name!r} cannot hold {array.flat[int(np.flatnonzero(wrong)[0])]}",
            where=f"row {row}",
            fix=f"values must be finite and fit {dtype}",
        )
    return cast
