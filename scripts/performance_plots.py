"""The plots of docs/performance-model.md: modelled over measured seconds."""

from pathlib import Path

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure

from solver.validation import P90_AT_MOST, Comparison

rcParams.update({"svg.hashsalt": "coral", "font.size": 7, "svg.fonttype": "none"})

SHOWN_AT_MOST = 30
"""Points a phase: enough to see by, few enough for a small file."""
COLOURS = {"prefill": "tab:orange", "decode": "tab:blue", "TTFT": "tab:orange", "TPOT": "tab:blue"}


def plot(comparisons: list[Comparison], level: str, path: Path) -> None:
    """Modelled over measured against measured, a panel a GPU; held-out points only."""
    names = list(dict.fromkeys(c.gpu for c in comparisons))
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.1 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axis, gpu in zip(axes.flat, names, strict=False):
        for c in (c for c in comparisons if c.gpu == gpu):
            judged = np.flatnonzero(c.held_out)
            judged = judged[np.linspace(0, len(judged) - 1, min(SHOWN_AT_MOST, len(judged))).astype(int)]
            ratio = c.modelled[judged] / c.measured[judged]
            axis.plot(c.measured[judged] * 1e3, ratio, ".", ms=3, color=COLOURS[c.phase], label=c.phase)
        bound = P90_AT_MOST[level]
        axis.axhspan(1 - bound, 1 + bound, color="0.93", zorder=0)
        axis.axhline(1, color="0.6", lw=0.8)
        axis.set(xscale="log", ylim=(0.4, 1.8), title=gpu, xlabel="measured, ms")
        axis.minorticks_off()
        known = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        axis.legend(known.values(), known.keys(), fontsize=6, frameon=False)
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for row in axes:
        row[0].set_ylabel("modelled / measured")
    figure.savefig(path, metadata={"Date": None})
