"""The study of N_max and rho as a table, and as a plot."""

from collections.abc import Sequence
from pathlib import Path

from schemas.problems import Service
from solver.sensitivity import PLATEAU, Trial, plateau
from streams.catalog_view import View, plain_table
from streams.library_view import combination_text

BAR = 20
"""Characters of the best template's bar."""


def shown(service: Service, trials: Sequence[Trial], cores: int) -> View:
    best = max((trial.per_usd for trial in trials), default=0.0)
    columns = ("N_max", "rho", "combinations", "templates", "s", "best per USD/h", "of the best", "on")
    table = plain_table(f"{service.key}, on {cores} cores", *columns)
    for trial in trials:
        share = trial.per_usd / best if best else 0.0
        figures = (str(trial.combinations), str(trial.templates), f"{trial.seconds:.2f}")
        bar = "#" * round(BAR * share)
        nodes = combination_text(trial.nodes) or "-"
        table.add_row(
            str(trial.n_max), f"{trial.rho:g}", *figures, f"{trial.per_usd:.1f}", f"{share:.1%} {bar}", nodes
        )
    flat = plateau(trials)
    said = plain_table("Plateau", f"least limits within {PLATEAU:.0%} of the best")
    if flat is not None:
        said.add_row(f"N_max {flat.n_max}, rho {flat.rho:g}: {combination_text(flat.nodes)}")
    data = {
        "service": service.key,
        "cores": cores,
        "trials": [trial._asdict() for trial in trials],
        "plateau": None if flat is None else {"n_max": flat.n_max, "rho": flat.rho},
    }
    return View(data, [table, said])


def plot(service: Service, trials: Sequence[Trial], path: Path) -> None:
    """Efficiency, templates and seconds over N_max, a line for each rho.

    Raises:
        ModuleNotFoundError: there is no matplotlib.
        OSError, ValueError: the file cannot be written, or in no such format.
    """
    from matplotlib import rcParams  # noqa: PLC0415  only who plots needs it
    from matplotlib.figure import Figure  # noqa: PLC0415

    rcParams["svg.hashsalt"] = "coral"  # the same figures give the same file
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    values = {
        "best template, throughput per USD/h": [trial.per_usd for trial in trials],
        "templates": [float(trial.templates) for trial in trials],
        "seconds": [trial.seconds for trial in trials],
    }
    for axis, (title, column) in zip(axes, values.items(), strict=True):
        for rho in sorted({trial.rho for trial in trials}):
            points = [(t.n_max, v) for t, v in zip(trials, column, strict=True) if t.rho == rho]
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=f"rho {rho:g}")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("N_max")
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    figure.suptitle(service.key, fontsize=10)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
