"""The key groups of an operator as files: how a savepoint holds them, and how they are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.errors import CorruptRecordError
from lockstep.protocol.savepoint import Contents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "group int, state binary"
_ROWS_PER_FILE = 16  # key groups; each may be megabytes


def write_groups(frame: DataFrame, location: str) -> Contents:
    """Store key groups (columns ``group`` and ``state``) at a location, which must be new; and count what is there then."""
    writer = frame.select("group", "state").write.option("maxRecordsPerFile", _ROWS_PER_FILE).mode("overwrite")
    writer.parquet(location)
    return count(read_groups(frame.sparkSession, location))


def read_groups(spark: SparkSession, location: str) -> DataFrame:
    return spark.read.schema(SCHEMA).parquet(location)


def count(frame: DataFrame) -> Contents:
    from pyspark.sql import functions as F

    found = frame.agg(
        F.count("*").alias("groups"),
        F.coalesce(F.sum(F.octet_length("state")), F.lit(0)).alias("bytes"),
        F.coalesce(F.sum(F.crc32("state") * (F.col("group") + 1)), F.lit(0)).alias("checksum"),
    ).first()
    if found is None:
        raise CorruptRecordError("an aggregate without a row")
    return Contents(int(found["groups"]), int(found["bytes"]), int(found["checksum"]))


def require_contents(found: Contents, promised: Contents, uid: str, where: str) -> None:
    if found != promised:
        raise CorruptRecordError(
            f"{where}: the state of operator {uid!r} is not as it was saved: {found.groups} key groups with {found.bytes} "
            f"bytes (checksum {found.checksum}), where {promised.groups} with {promised.bytes} ({promised.checksum}) should "
            "be. Files are missing, damaged or of another savepoint. Take another savepoint; nothing was written."
        )
