"""Where things are."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out"
LOGS = OUT / "logs"
RESULTS = OUT / "results"


def in_ci() -> bool:
    """Whether this is a CI run, which may skip only what `scripts/may-skip.list` allows."""
    return os.environ.get("INSANE_CI", "0") not in ("", "0")
