"""Fits rows to a table's columns, or says why it can't: Spark's ANSI store assignment.

Delta's staging call does not do this by itself: it would write a LONG into an INT column and spoil the table. As in SQL's
INSERT, a number out of range or a text too long fails the write, with a message that names the column, and is never
turned into null; a fraction that the column can't hold is rounded or cut.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lockstep.errors import SchemaMismatchError
from lockstep.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_IDENTITY = "delta.identity.start"
_GENERATED = "delta.generationExpression"
_DEFAULT = "CURRENT_DEFAULT"


class StoreAssignment:
    """How rows of one schema go into a table of another."""

    def __init__(self, spark: SparkSession, rows: StructType, table: StructType, target: str) -> None:
        self._spark = spark
        self._target = target
        self._rows = {field.name.lower(): field for field in rows.fields}
        self._table = {field.name.lower(): field for field in table.fields}
        if len(self._rows) != len(rows.fields):
            raise SchemaMismatchError(f"{target}: the rows have two columns of the same name: {', '.join(rows.names)}")

    def new_columns(self) -> list[str]:
        """Columns that the rows have and the table lacks."""
        return [field.name for name, field in self._rows.items() if name not in self._table]

    def check(self) -> None:
        """Raise :class:`SchemaMismatchError`, naming every column that can't be stored, and the remedy."""
        problems = [f"column {name!r} is not in the table" for name in self.new_columns()]
        for name, field in self._table.items():
            given = self._rows.get(name)
            if _IDENTITY in field.metadata:
                problems.append(f"column {field.name!r} is an identity column, whose values would repeat across epochs")
            elif given is None:
                if not field.nullable and _GENERATED not in field.metadata and _DEFAULT not in field.metadata:
                    problems.append(f"column {field.name!r} is NOT NULL in the table and missing in the rows")
            elif _VARCHAR in field.metadata and _is_nested(field.dataType):
                problems.append(f"column {field.name!r} has CHAR or VARCHAR inside of {field.metadata[_VARCHAR]}")
            elif not self._assignable(given.dataType, field.dataType):
                problems.append(
                    f"column {field.name!r} is {given.dataType.simpleString()} in the rows and "
                    f"{field.dataType.simpleString()} in the table"
                )
        if problems:
            raise SchemaMismatchError(
                f"{self._target} can't take the rows: {'; '.join(problems)}. Select and cast the columns to fit the table, "
                "or let new columns be added with merge_schema=True."
            )

    def apply(self, rows: DataFrame) -> DataFrame:
        """The rows with the table's types. Columns that the rows lack are left to Delta (null, default, generated)."""
        from pyspark.sql import functions as F

        taken = [(self._rows[name], field) for name, field in self._table.items() if name in self._rows]
        if [given.name for given in self._rows.values()] == [field.name for _, field in taken] and all(
            given.dataType == field.dataType and _VARCHAR not in field.metadata for given, field in taken
        ):
            return rows
        return rows.select(
            *[self._fit(F.col(quoted(given.name)), given, field).alias(field.name) for given, field in taken]
        )

    def _assignable(self, given: DataType, wanted: DataType) -> bool:
        """As ANSI says for plain types; inside of structs, arrays and maps only what needs no look at the values."""
        if given == wanted:
            return True
        if not (_is_nested(given) or _is_nested(wanted)):
            return bool(self._cast.canANSIStoreAssign(_java(self._spark, given), _java(self._spark, wanted)))
        return self._widens(given, wanted) and bool(
            self._cast.canUpCast(_java(self._spark, given), _java(self._spark, wanted))
        )

    def _widens(self, given: DataType, wanted: DataType) -> bool:
        """Whether every part goes into the part of the same name, without loss. (Spark's cast goes by position.)"""
        if hasattr(given, "fields") and hasattr(wanted, "fields"):
            names = [[field.name.lower() for field in one.fields] for one in (given, wanted)]
            pairs = zip(given.fields, wanted.fields, strict=False)
            return names[0] == names[1] and all(self._widens(a.dataType, b.dataType) for a, b in pairs)
        for parts in (("elementType",), ("keyType", "valueType")):
            if all(hasattr(one, part) for one in (given, wanted) for part in parts):
                return all(self._widens(getattr(given, part), getattr(wanted, part)) for part in parts)
        java = _java(self._spark, given), _java(self._spark, wanted)
        return given == wanted or bool(self._cast.canUpCast(*java) and self._cast.canANSIStoreAssign(*java))

    def _fit(self, value: Column, given: StructField, field: StructField) -> Column:
        if given.dataType != field.dataType:
            value = self._converted(value, given, field)
        match = re.fullmatch(r"(var)?char\((\d+)\)", str(field.metadata.get(_VARCHAR, "")))
        return _within(value, field.name, self._target, int(match[2]), pad=not match[1]) if match else value

    def _converted(self, value: Column, given: StructField, field: StructField) -> Column:
        from pyspark.sql import functions as F

        given_type, wanted = _java(self._spark, given.dataType), _java(self._spark, field.dataType)
        if self._cast.canUpCast(given_type, wanted):
            return value.cast(field.dataType)
        narrowed = value.try_cast(field.dataType)  # null where the value does not fit
        text = (
            f"{self._target}: column {field.name} ({field.dataType.simpleString()}) can't hold the value of type "
            f"{given.dataType.simpleString()}: "
        )
        refused = F.raise_error(F.concat(F.lit(text), value.cast("string"))).cast(field.dataType)
        return F.when(value.isNotNull() & narrowed.isNull(), refused).otherwise(narrowed)

    @property
    def _cast(self) -> Any:
        return self._spark._jvm.org.apache.spark.sql.catalyst.expressions.Cast  # type: ignore[union-attr]


def _within(value: Column, name: str, target: str, length: int, pad: bool) -> Column:
    from pyspark.sql import functions as F

    refused = F.raise_error(F.concat(F.lit(f"{target}: column {name} takes {length} characters: "), value)).cast(
        "string"
    )
    fitted = F.rpad(value, length, " ") if pad else F.substring(value, 1, length)
    return F.when(F.length(F.rtrim(value)) > length, refused).otherwise(fitted)


def _is_nested(data_type: DataType) -> bool:
    return any(hasattr(data_type, part) for part in ("fields", "elementType", "keyType"))


def _java(spark: SparkSession, data_type: DataType) -> Any:
    return spark._jsparkSession.parseDataType(data_type.json())
