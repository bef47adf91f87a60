"""Which checkpoint locations are on the driver's own disk, and where."""

from __future__ import annotations

import pytest

from lockstep.engine.storage import local_path


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/checkpoints/orders", "/checkpoints/orders"),
        ("file:/checkpoints/orders", "/checkpoints/orders"),
        ("file:///checkpoints/orders", "/checkpoints/orders"),
        ("file:/jobs#1", "/jobs#1"),
        ("file:/jobs?x", "/jobs?x"),
        ("file:/a%20b", "/a%20b"),
        ("relative/path", "relative/path"),
        ("hdfs://name/checkpoints", None),
        ("s3a://bucket/checkpoints", None),
    ],
)
def test_local_paths_stand_for_themselves(location: str, path: str | None) -> None:
    assert local_path(location) == path
