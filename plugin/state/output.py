"""The rows that a function emits, gathered and checked in bulk against the operator's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lockstep.errors import LockstepError
from lockstep.state.codec import codec_of
from lockstep.state.ddl import to_ddl

Converter = Callable[[Any], Sequence[Any]]


class OutputMismatchError(LockstepError):
    """A row does not fit the output. ``position``: the row's, among those that were gathered."""

    def __init__(self, problem: str, position: int | None) -> None:
        super().__init__(problem)
        self.position = position


class Output:
    """Gathers rows in ``rows``; :meth:`flush` checks them and turns them into a record batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows: list[Any] = []
        self.batches: list[pa.RecordBatch] = []
        self._names = tuple(schema.names)
        self._codecs = [codec_of(field.type) for field in schema]

    def flush(self) -> None:
        """All gathered rows become one batch. Raises :class:`OutputMismatchError` for the first row that does not fit."""
        if not self.rows:
            return
        rows = self._as_tuples(self.rows)
        arrays = []
        for i, (column, field, codec) in enumerate(
            zip(zip(*rows, strict=True), self.schema, self._codecs, strict=True)
        ):
            try:
                array = codec.convert(column)
            except (TypeError, ValueError):
                raise self._mismatch(i, column) from None
            if not field.nullable and array.null_count:
                raise self._mismatch(i, column)
            arrays.append(array)
        self.batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        self.rows.clear()

    def add(self, emitted: Any) -> None:
        """Takes what ``process_batch`` emits: rows, and whole frames and tables in between; or one of these alone."""
        for each in [emitted] if _is_frame(emitted) else emitted:
            if isinstance(each, (pa.Table, pa.RecordBatch)):
                self.flush()
                self._add_columns(dict(zip(each.schema.names, each.columns, strict=True)), each.num_rows)
            elif _is_frame(each):
                self.flush()
                self._add_columns({str(name): each[name] for name in each.columns}, len(each))
            else:
                self.rows.append(each)

    def _add_columns(self, columns: dict[str, Any], rows: int) -> None:
        if columns.keys() != set(self._names):
            raise OutputMismatchError(
                f"a frame with the columns {', '.join(columns)} does not fit the output ({_ddl(self.schema)}). "
                "Give it exactly these columns, in any order.",
                None,
            )
        arrays = []
        for field in self.schema:
            try:
                array = _cast(columns[field.name], field.type)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise OutputMismatchError(
                    f"the column {field.name} of a frame can't become {to_ddl(field.type)}: {error}", None
                ) from error
            if not field.nullable and array.null_count:
                raise OutputMismatchError(f"the column {field.name} of a frame has nulls, but is NOT NULL.", None)
            arrays.append(array)
        if rows:
            self.batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def _as_tuples(self, rows: list[Any]) -> list[Any]:
        """Every row as a sequence of values in the output's order; their number is checked."""
        converters = {kind: self._converter(kind) for kind in set(map(type, rows))}
        width = len(self._names)
        if any(converters.values()):
            tuples = []
            for position, row in enumerate(rows):
                converter = converters[type(row)]
                try:
                    tuples.append(row if converter is None else converter(row))
                except (TypeError, ValueError) as error:
                    raise OutputMismatchError(f"{_shown(row)} is no row of the output: {error}", position) from None
            rows = tuples
        if set(map(len, rows)) != {width}:
            position = next(i for i, row in enumerate(rows) if len(row) != width)
            raise OutputMismatchError(
                f"the row {_shown(rows[position])} has {len(rows[position])} values, but the output has {width} columns: "
                f"{_ddl(self.schema)}.",
                position,
            )
        return rows

    def _converter(self, kind: type) -> Converter | None:
        """How rows of this type become tuples; ``None`` for those that are."""
        if issubclass(kind, tuple):
            names = getattr(kind, "_fields", None)
            if names is None and hasattr(kind, "asDict"):  # pyspark's Row, which has its names in each instance
                return lambda row: self._from_dict(row.asDict()) if hasattr(row, "__fields__") else row
            if names is None or tuple(names) == self._names or set(names) != set(self._names):
                return None
            order = [names.index(name) for name in self._names]
            return lambda row: [tuple.__getitem__(row, i) for i in order]
        if issubclass(kind, dict):
            return self._from_dict
        return self._refuse

    def _from_dict(self, row: dict[str, Any]) -> list[Any]:
        if not row.keys() <= set(self._names):
            unknown = ", ".join(str(name) for name in row if name not in self._names)
            raise ValueError(f"the output ({_ddl(self.schema)}) has no column {unknown}.")
        missing = [name for name in self._names if name not in row]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}; give None for a null.")
        return [row[name] for name in self._names]

    def _refuse(self, row: Any) -> Sequence[Any]:
        raise TypeError(
            f"a row is a tuple, a dict or a Row, not {type(row).__name__}. A hook returns an iterable of rows: "
            "yield each row, or return [row]."
        )

    def _mismatch(self, index: int, column: Sequence[Any]) -> OutputMismatchError:
        """Finds the row that did not fit."""
        field, check = self.schema.field(index), self._codecs[index].check
        for position, value in enumerate(column):
            problem = None
            try:
                check(value)
            except (TypeError, ValueError) as error:
                problem = str(error)
            if value is None and not field.nullable:
                problem = "it is NOT NULL, but None was given"
            if problem is not None:
                return OutputMismatchError(
                    f"the column {field.name} of row {_shown(self.rows[position])} does not fit: {problem}. The output "
                    f"is {_ddl(self.schema)}.",
                    position,
                )
        return OutputMismatchError(f"the column {field.name} can't become {to_ddl(field.type)}.", None)


class DroppedOutput(Output):
    """Takes whatever a function emits, and keeps nothing."""

    def flush(self) -> None:
        self.rows.clear()

    def add(self, emitted: Any) -> None:
        for _ in emitted:
            pass  # a generator does its work only while somebody asks


def _is_frame(emitted: Any) -> bool:
    return isinstance(emitted, (pa.Table, pa.RecordBatch)) or hasattr(emitted, "itertuples")  # the latter is pandas'


def _cast(given: Any, arrow: pa.DataType) -> pa.Array:
    """A column of a frame as the output's type: never by reading numbers out of text, never by guessing a time zone."""
    if not isinstance(given, (pa.Array, pa.ChunkedArray)):
        if given.dtype == object:
            return codec_of(arrow).convert(given.tolist())
        exact = isinstance(given.dtype, np.dtype) and given.dtype.kind == "f" and pa.types.is_floating(arrow)
        given = pa.array(given.to_numpy() if exact else given, from_pandas=not exact)  # a NaN stays a NaN
    if _family(given.type) != _family(arrow):
        raise TypeError(f"it has the type {given.type}")
    cast = given if given.type == arrow else given.cast(arrow)
    return cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast


def _family(arrow: pa.DataType) -> str:
    """Types of one family become one another where no value is lost."""
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow):
        return "number"
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return "string"
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow):
        return "binary"
    if pa.types.is_timestamp(arrow):
        return "instant" if arrow.tz else "wall clock"
    return "date" if pa.types.is_date(arrow) else str(arrow)


def _ddl(schema: pa.Schema) -> str:
    return to_ddl(pa.struct(list(schema)))[len("struct<") : -1]


def _shown(row: Any) -> str:
    text = repr(row)
    return text if len(text) <= 200 else text[:197] + "..."
