"""Write the tables and the plot of docs/templates.md.

They say what runtime `vllm` costs, by how much templates beat their parts, and what N_max and rho give.

    python scripts/templates_report.py             # prints the tables
    python scripts/templates_report.py --write     # writes them, and docs/templates/sensitivity.svg

Everything is of the extended set-up (paper mode), on all cores; seconds are of this machine's processors, all
cores together, since it may be busy. Takes minutes.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from schemas.catalog import PAPER_CATALOG, Phase, Runtime, load_catalog
from schemas.performance import load_efficiencies
from schemas.problems import Service
from solver import worth
from solver.building import build_library
from solver.figures import Figures
from solver.library import Library
from solver.margins import in_need, margins
from solver.sensitivity import Trial, plateau, trials
from solver.setups import Setup, paper_setup
from solver.shapes import Floats
from solver.worth import Prices
from streams.library_view import combination_text
from streams.sensitivity_view import plot

PHASES: tuple[Phase, ...] = ("prefill", "decode", "both")
STUDIED = Service(model="gpt-oss-120b", slo_class="interactive", phase="prefill")
N_MAXES = (1, 2, 3, 4, 5, 6, 7)
MARGINS = {"0.0001%": 1e-6, "0.01%": 1e-4, "0.1%": 1e-3, "1%": 1e-2}
RHOS = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT = DOCS / "templates.md", DOCS / "templates" / "sensitivity.svg"


def main() -> None:
    setup = paper_setup("extended", load_catalog(PAPER_CATALOG))
    figures = Figures(setup.catalog, load_efficiencies(), None)
    studied = study(setup, figures)
    names: tuple[Runtime, ...] = ("coral", "vllm")
    coral, vllm = (
        build_library(figures, replace(setup.scope, phases=PHASES, runtime=name)) for name in names
    )
    tables = {
        "runtimes": list(runtimes(coral, vllm, Prices(setup.catalog, setup.regions))),
        "margins": list(near_ties(coral)),
        "sensitivity": list(sensitivity(studied)),
    }
    if "--write" not in sys.argv[1:]:
        sys.stdout.write("\n\n".join("\n".join(lines) for lines in tables.values()) + "\n")
        return
    page = PAGE.read_text()
    for name, lines in tables.items():
        begin = f"<!-- {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n" + "\n".join(lines) + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]
    PAGE.write_text(page)
    PLOT.parent.mkdir(exist_ok=True)
    plot(STUDIED, studied, PLOT)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


# ----------------------------------------------------------------------------------------------- runtimes


def runtimes(coral: Library, vllm: Library, prices: Prices) -> Iterator[str]:
    head = ["service", "coral: templates", "best, median per USD/h", "best on"]
    head += ["vllm: templates", "best, median per USD/h", "best on", "best: vllm gives", "median: vllm gives"]
    yield from table(head, rows(coral, vllm, prices))


def rows(coral: Library, vllm: Library, prices: Prices) -> Iterator[Sequence[object]]:
    for (key, one), two in zip(coral.parts.items(), vllm.parts.values(), strict=True):
        cells: list[object] = [f"{key.model} {key.phase}"]
        figures = []
        for shelf in (one, two):
            values = worth.per_usd(shelf, prices)[0]
            values = values[values > 0]
            if not len(values):
                cells += [len(shelf), "-", "-"]
                figures.append((0.0, 0.0))
                continue
            (top,) = worth.best(shelf, prices)
            median = float(np.median(values))
            figures.append((top.per_usd, median))
            cells += [len(shelf), f"{top.per_usd:.4g}, {median:.4g}", combination_text(shelf.nodes(top.row))]
        (best, median), (vllm_best, vllm_median) = figures
        yield [*cells, share(vllm_best, best), share(vllm_median, median)]


def share(part: float, whole: float) -> str:
    return f"{part / whole - 1:+.1%}" if part and whole else "-"


# ------------------------------------------------------------------------------------------------- margins


def near_ties(library: Library) -> Iterator[str]:
    head = [
        "service",
        "templates",
        *(f"beat their parts by < {name}" for name in MARGINS),
        "median",
    ]
    yield from table([*head, "with a node that cannot serve alone"], margin_rows(library))


def margin_rows(library: Library) -> Iterator[Sequence[object]]:
    every, needy = [], 0
    for key, shelf in library.parts.items():
        if key.phase == "both":
            continue
        given, needs = margins(shelf.kept, len(library.inputs.configurations)), int(in_need(shelf.kept).sum())
        every.append(given)
        needy += needs
        yield [f"{key.model} {key.phase}", *margin_cells(given), needs]
    yield ["all", *margin_cells(np.concatenate(every)), needy]


def margin_cells(given: Floats) -> list[object]:
    finite = given[np.isfinite(given)]
    median = f"{np.median(finite):.2%}" if len(finite) else "-"
    return [len(given), *(int((given < limit).sum()) for limit in MARGINS.values()), median]


# --------------------------------------------------------------------------------------------- sensitivity


def study(setup: Setup, figures: Figures) -> list[Trial]:
    scope = replace(setup.scope, levels=((STUDIED.model, STUDIED.slo_class),), phases=(STUDIED.phase,))
    build_library(figures, replace(scope, n_max=2))  # compiles, or loads what was compiled
    prices = Prices(setup.catalog, setup.regions)
    return list(trials(figures, scope, prices, N_MAXES, RHOS, time.process_time))


def sensitivity(found: Sequence[Trial]) -> Iterator[str]:
    best = max(trial.per_usd for trial in found)
    head = ["N_max", *(f"rho {rho:g}" for rho in RHOS)]
    yield from table(
        head, ([n, *(cell(trial, best) for trial in found if trial.n_max == n)] for n in N_MAXES)
    )
    yield ""
    flat = plateau(found)
    if flat is not None:
        yield f"Within 1% of the best from N_max {flat.n_max}, rho {flat.rho:g} on."


def cell(trial: Trial, best: float) -> str:
    return f"{trial.templates} in {trial.seconds:.2f} s: {trial.per_usd / best:.1%}"


if __name__ == "__main__":
    main()
