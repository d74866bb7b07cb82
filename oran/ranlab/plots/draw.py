"""Draws `name.png` beside each `name.json` of the experiments, with the matplotlib that the comparison suite uses too."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from suite.plots import interpreter

DRAW = """
import json, sys
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
for path in sys.argv[1:]:
    with open(path) as file:
        report = json.load(file)
    plots = report["plots"]
    if not plots:
        continue
    columns = 2 if len(plots) > 1 else 1
    rows = -(-len(plots) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(6.5 * columns, 3.6 * rows), squeeze=False)
    for axes, plot in zip(grid.flat, plots):
        for label, points in sorted(plot["lines"].items()):
            points = [p for p in points if p[1] is not None and (not plot["log"] or p[1] > 0)]
            style = {"linestyle": "", "marker": "o"} if plot["points"] else {"linewidth": 0.9}
            axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
        for mark in plot["marks"]:
            axes.axvline(mark, color="black", linestyle=":", linewidth=1)
        if plot["log"]:
            axes.set_yscale("log")
        axes.set_title(plot["title"], fontsize=10)
        axes.set_xlabel(plot["x"] or "s"); axes.set_ylabel(plot["y"]); axes.grid(True, which="both", alpha=0.3)
        if len(plot["lines"]) > 1:
            axes.legend(fontsize=7)
    for axes in list(grid.flat)[len(plots):]:
        axes.axis("off")
    figure.suptitle(report["experiment"] + ": " + report["title"], fontsize=11)
    figure.tight_layout()
    figure.savefig(path[:-5] + ".png", dpi=110)
    plt.close(figure)
"""


def draw_all(folder: Path, venv: Path, say: Callable[[str], None]) -> list[str]:
    """Draws what is in the folder; the plots' file names. Without matplotlib says so and draws nothing."""
    reports = sorted(str(path) for path in folder.glob("*.json"))
    python = interpreter(venv, say) if reports else None
    if python is None:
        return []
    done = subprocess.run([python, "-c", DRAW, *reports], capture_output=True, text=True)
    if done.returncode != 0:
        say(f"no plots: {done.stderr.strip().splitlines()[-1:]}")
        return []
    return [Path(path).with_suffix(".png").name for path in reports if Path(path).with_suffix(".png").is_file()]
