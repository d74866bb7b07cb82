"""CDF plots as PNG, where matplotlib is to be had."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .measure import Repetition
from .rows import by_cell

#: Where the distribution is kept: parts per 100 000, as in harness/src/summary.rs.
CDF_POINTS = (
    0, 1000, 5000, 10000, 15000, 20000, 25000, 30000, 35000, 40000, 45000, 50000, 55000, 60000, 65000, 70000, 75000,
    80000, 85000, 90000, 95000, 98000, 99000, 99500, 99900, 99990, 100000,
)


def interpreter(venv: Path, say: Callable[[str], None]) -> str | None:
    """A Python that has matplotlib: this one, or one of our own making. `None`, said aloud, if there is none."""
    if importlib.util.find_spec("matplotlib") is not None:
        return sys.executable
    python = venv / "bin" / "python"
    if python.is_file() and subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode == 0:
        return str(python)
    say("installing matplotlib for the plots …")
    steps = ([sys.executable, "-m", "venv", str(venv)], [str(python), "-m", "pip", "install", "-q", "matplotlib"])
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"no plots: {error}")
            return None
        if done.returncode != 0:
            tail = (done.stderr or done.stdout).strip().splitlines()[-1:]
            say(f"no plots: matplotlib could not be installed: {tail[0] if tail else done.returncode}")
            return None
    return str(python)


def curves(kept: list[Repetition]) -> dict[str, dict[str, list[list[float]]]]:
    """Per plot and system, the pointwise median of the repetitions' distributions: [µs, part]."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for cell, reps in by_cell(kept).items():
        rows = [r.cdf_ns for r in reps if r.cdf_ns and len(r.cdf_ns) == len(CDF_POINTS)]
        if cell.experiment != "rtt" or not rows:
            continue
        where = "" if cell.placement == "local" else f"{cell.placement}-"
        pairs = zip(zip(*rows, strict=False), CDF_POINTS, strict=False)
        line = [[sorted(column)[len(column) // 2] / 1e3, part / 1e5] for column, part in pairs]
        plot = f"rtt-{where}{cell.payload}-{cell.waiting}{'-knob' if cell.knob else ''}.png"
        name = " ".join(word for word in (cell.system, cell.variant) if word)
        found.setdefault(plot, {})[name + (" (python)" if cell.language == "python" else "")] = line
    return found


DRAW = """
import json, sys
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
folder, data = sys.argv[1], json.load(sys.stdin)
for name, lines in data.items():
    figure, axes = plt.subplots(figsize=(8, 5))
    for label, points in sorted(lines.items()):
        axes.plot([max(x, 1e-3) for x, _ in points[:-1]], [y for _, y in points[:-1]], label=label)
    axes.set_xscale("log"); axes.set_xlabel("round trip, us"); axes.set_ylabel("part of round trips")
    axes.set_title(name[:-4]); axes.grid(True, which="both", alpha=0.3); axes.legend(fontsize=8)
    figure.tight_layout(); figure.savefig(f"{folder}/{name}", dpi=120); plt.close(figure)
"""


def draw(kept: list[Repetition], folder: Path, venv: Path, say: Callable[[str], None]) -> list[str]:
    """Draws the plots into `folder`; their file names."""
    data = curves(kept)
    if not data:
        return []
    python = interpreter(venv, say)
    if python is None:
        return []
    done = subprocess.run([python, "-c", DRAW, str(folder)], input=json.dumps(data), capture_output=True, text=True)
    if done.returncode != 0:
        say(f"no plots: {done.stderr.strip().splitlines()[-1:]}")
        return []
    return sorted(data)
