"""How any name is written in Spark's SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A column's name as Spark's expressions and DDL take any name."""
    return "`" + name.replace("`", "``") + "`"
