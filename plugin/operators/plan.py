"""Walks a plan of the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def nodes_of(plan: Any) -> Iterator[Any]:
    """Every node of a plan, logical or physical, from the sinks upwards."""
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from nodes_of(children.apply(index))


def class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())
