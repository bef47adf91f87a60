"""Classes of the driver's JVM by their dotted names, each looked up once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaPackage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Known:
    """A package of the JVM that remembers what was found in it.

    py4j asks the JVM about every part of a dotted name, each time it is written, and for each the JVM looks through all
    its jars: a millisecond for a class. An epoch needs dozens of them.
    """

    def __init__(self, package: Any) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._package, name)
        if isinstance(found, JavaPackage):  # or a class that is not there
            found = _Known(found)
        setattr(self, name, found)
        return found


def jvm_of(spark: SparkSession) -> Any:
    """What ``spark._jvm`` is, and fast from the second use of a name: keep it. A missing class is no ``JavaClass``."""
    return _Known(spark._jvm)
