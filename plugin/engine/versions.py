"""The only place that names versions of Spark, Delta and Scala."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from lockstep.errors import EnvironmentProblemError

_SCALA = "2.13"
_OLDEST_SPARK = (4, 0)
_NEWEST_SPARK = (4, 2)
_FIRST_DELTA_WITH_SPARK_IN_ITS_NAME = (4, 1)
_POSTGRESQL_DRIVER = "42.7.14"


def spark_version() -> str:
    """Version of the installed pyspark; an error when Lockstep does not know it."""
    version = _installed("pyspark")
    if not _OLDEST_SPARK <= _numbers(version) <= _NEWEST_SPARK:
        raise EnvironmentProblemError(
            f"pyspark {version} is not supported: install pyspark {_OLDEST_SPARK[0]}.{_OLDEST_SPARK[1]} to "
            f"{_NEWEST_SPARK[0]}.{_NEWEST_SPARK[1]}."
        )
    return version


def packages() -> list[str]:
    """Maven coordinates of the jars for the installed pyspark and delta-spark."""
    spark, delta = spark_version(), _installed("delta-spark")
    suffix = _SCALA
    if _numbers(delta) >= _FIRST_DELTA_WITH_SPARK_IN_ITS_NAME:
        suffix = f"{'.'.join(map(str, _numbers(spark)))}_{_SCALA}"
    return [
        f"io.delta:delta-spark_{suffix}:{delta}",
        f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{spark}",
    ]


def postgresql_package() -> str:
    """Maven coordinate of the PostgreSQL JDBC driver, which only ``JdbcSink`` needs."""
    return f"org.postgresql:postgresql:{_POSTGRESQL_DRIVER}"


def checkpoint_file_manager(jvm: Any) -> Any:
    """Spark's class for atomic files in a checkpoint directory, which moved after 4.0."""
    streaming = jvm.org.apache.spark.sql.execution.streaming
    if _numbers(spark_version()) == _OLDEST_SPARK:
        return streaming.CheckpointFileManager
    return streaming.checkpointing.CheckpointFileManager


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        raise EnvironmentProblemError(f"{distribution} is not installed: pip install {distribution}") from error


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
