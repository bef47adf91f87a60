"""``lockstep.configure`` adds what is needed and overwrites nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import lockstep
from lockstep.engine import session, versions
from lockstep.errors import ConfigurationError, EnvironmentProblemError


class Builder:
    """Keeps options as pyspark's builder does."""

    def __init__(self, **options: str) -> None:
        self._options = {key.replace("__", "."): value for key, value in options.items()}

    def config(self, key: str, value: str) -> Builder:
        self._options[key] = value
        return self


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with Java, Spark 4.0.0 and Delta 4.0.0, and nothing set."""
    monkeypatch.setattr(session, "require_java", lambda: None)
    monkeypatch.setattr(versions, "_installed", {"pyspark": "4.0.0", "delta-spark": "4.0.0"}.__getitem__)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


def configured(**options: str) -> dict[str, str]:
    builder: Any = Builder(**options)
    assert lockstep.configure(builder) is builder
    return dict(builder._options)


def test_jars_extension_catalog_and_python_are_set() -> None:
    options = configured()
    assert options == {
        "spark.jars.packages": "io.delta:delta-spark_2.13:4.0.0,org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.pyspark.python": sys.executable,
    }


def test_what_the_user_set_is_kept_and_wins() -> None:
    options = configured(
        spark__jars__packages="org.postgresql:postgresql:42.7.4, io.delta:delta-spark_2.13:4.0.1",
        spark__sql__extensions="my.Extension",
        spark__sql__catalog__spark_catalog="my.Catalog",
        spark__pyspark__python="/opt/python",
    )
    assert options["spark.jars.packages"].split(",") == [
        "org.postgresql:postgresql:42.7.4",
        "io.delta:delta-spark_2.13:4.0.1",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    ]
    assert options["spark.sql.extensions"] == "my.Extension,io.delta.sql.DeltaSparkSessionExtension"
    assert options["spark.sql.catalog.spark_catalog"] == "my.Catalog"
    assert options["spark.pyspark.python"] == "/opt/python"


def test_configuring_twice_changes_nothing() -> None:
    builder: Any = Builder()
    once = dict(lockstep.configure(builder)._options)
    assert dict(lockstep.configure(builder)._options) == once


def test_python_chosen_in_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.12")
    assert "spark.pyspark.python" not in configured()


@pytest.mark.parametrize(
    ("spark", "delta", "artifact"),
    [
        ("4.0.0", "4.0.0", "io.delta:delta-spark_2.13:4.0.0"),
        ("4.0.1", "4.1.0", "io.delta:delta-spark_4.0_2.13:4.1.0"),
        ("4.1.1", "4.1.0", "io.delta:delta-spark_4.1_2.13:4.1.0"),
        ("4.2.0", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_coordinates_fit_the_installed_versions(
    monkeypatch: pytest.MonkeyPatch, spark: str, delta: str, artifact: str
) -> None:
    monkeypatch.setattr(versions, "_installed", {"pyspark": spark, "delta-spark": delta}.__getitem__)
    assert versions.packages() == [artifact, f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}"]


@pytest.mark.parametrize("version", ["3.5.3", "4.3.0", "5.0.0"])
def test_unknown_spark_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(versions, "_installed", {"pyspark": version, "delta-spark": "4.0.0"}.__getitem__)
    with pytest.raises(EnvironmentProblemError, match=r"install pyspark 4\.0 to 4\.2"):
        configured()


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="Spark Connect"):
        configured(spark__remote="sc://localhost")
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(ConfigurationError, match="Spark Connect"):
        configured()
