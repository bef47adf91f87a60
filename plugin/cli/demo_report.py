"""What a demo found out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.cli.demo_check import Comparison


@dataclass(frozen=True)
class DemoReport:
    """The result, as it is stored for other programs."""

    rows_in: int
    comparison: Comparison
    offsets_match: bool
    kills: int
    restarts: int
    epochs: int
    seconds: float
    seed: int

    @property
    def exactly_once(self) -> bool:
        return self.comparison.exact and self.offsets_match and self.comparison.rows_out == self.rows_in

    def to_json(self) -> dict[str, Any]:
        return {
            "rows_in": self.rows_in,
            "rows_out": self.comparison.rows_out,
            "missing": self.comparison.missing,
            "duplicated": self.comparison.duplicated,
            "unexpected": self.comparison.unexpected,
            "altered": self.comparison.altered,
            "offsets_match": self.offsets_match,
            "exactly_once": self.exactly_once,
            "kills": self.kills,
            "restarts": self.restarts,
            "epochs": self.epochs,
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
        }
