"""``python -m unit_tests.snapshots docs/pictures`` draws the pictures of ``docs/snapshots.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from unit_tests.snapshots.runs import pictures

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures().items():
        (folder / name).write_text(svg, encoding="utf-8")
