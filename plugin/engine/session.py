"""Prepares a Spark session for Lockstep."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from lockstep.broker.java import require_java
from lockstep.engine.versions import packages
from lockstep.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG_KEY = "spark.sql.catalog.spark_catalog"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add to ``builder`` what Lockstep needs, and return it.

    * ``spark.jars.packages``: the Kafka source and Delta, for the installed pyspark and delta-spark; packages that you
      set yourself are kept, and win over ours.
    * ``spark.sql.extensions``: Delta's, beside yours. ``spark.sql.catalog.spark_catalog``: Delta's, unless you set one.
    * ``spark.pyspark.python``, and PYSPARK_PYTHON in the environment: this interpreter, unless you chose one.

    Under ``spark-submit`` the JVM is up before Python runs, so jars can't be added here: give them with ``--packages``
    (``lockstep packages`` prints them).

    Examples
    --------
    >>> spark = lockstep.configure(SparkSession.builder.appName("orders")).getOrCreate()  # doctest: +SKIP
    """
    require_java()
    options = _options(builder)
    builder.config("spark.jars.packages", ",".join(_merge_packages(options.get("spark.jars.packages", ""))))
    builder.config("spark.sql.extensions", ",".join(_merge(options.get("spark.sql.extensions", ""), [_EXTENSION])))
    if _CATALOG_KEY not in options:
        builder.config(_CATALOG_KEY, _CATALOG)
    if "PYSPARK_PYTHON" not in os.environ:
        if "spark.pyspark.python" not in options:
            builder.config("spark.pyspark.python", sys.executable)
        # Spark runs Python data sources, such as the one behind timers, with this and not with the setting.
        os.environ["PYSPARK_PYTHON"] = options.get("spark.pyspark.python", sys.executable)
    return builder


def require_classic(spark: Any) -> None:
    """Refuse a Spark Connect session: Lockstep works inside the driver."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            "this is a Spark Connect session; Lockstep runs in the driver process. Create the session without remote() "
            "and without SPARK_REMOTE, and submit the program to the cluster (spark-submit)."
        )


def _options(builder: Any) -> dict[str, str]:
    options = dict(getattr(builder, "_options", {}))
    if "spark.remote" in options or "SPARK_REMOTE" in os.environ:
        raise ConfigurationError(
            "lockstep.configure was given a Spark Connect builder; Lockstep runs in the driver process. "
            "Leave out remote() and SPARK_REMOTE."
        )
    return options


def _merge_packages(given: str) -> list[str]:
    """The user's packages, and ours except where the user names another version of the same artifact."""
    theirs = _merge(given, [])
    artifacts = {package.rpartition(":")[0] for package in theirs}
    return theirs + [package for package in packages() if package.rpartition(":")[0] not in artifacts]


def _merge(given: str, ours: list[str]) -> list[str]:
    theirs = [item.strip() for item in given.split(",") if item.strip()]
    return theirs + [item for item in ours if item not in theirs]
