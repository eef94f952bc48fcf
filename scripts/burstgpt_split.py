"""What BurstGPT's unknown split of prompt and output changes: the sensitivity table of docs/catalogs.md.

    python scripts/burstgpt_split.py             # prints the table
    python scripts/burstgpt_split.py --write     # writes it into docs/catalogs.md, between its two marks

For the two models that the paper has on BurstGPT, in paper mode: every configuration, one to four equal nodes
(runtime `vllm`), at the cheapest price of its regions; the roofline's saturated throughput at each split of
the same total, with prefill and decode on the same nodes and apart.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from schemas.catalog import PAPER_CATALOG, Catalog, Configuration, Model, Phase, load_catalog
from schemas.performance import Efficiencies, load_efficiencies
from solver.placement import Refusal, search
from solver.roofline import Roofline

SHARES = (0.05, 0.10, 0.15, 0.25, 0.35, 0.50)
"""Output's share of a request's tokens: the conversation traces have 6% (2024) and 15% (2023)."""
ASSUMED = 0.25
PHASES: tuple[Phase, ...] = ("both", "prefill", "decode")
MOST_NODES = 4
PAGE = Path(__file__).parents[1] / "docs" / "catalogs.md"
BEGIN, END = "<!-- scripts/burstgpt_split.py -->", "<!-- end -->"


class Option(NamedTuple):
    """Equal nodes: how many, of which configuration, their price, and the requests/s they give."""

    nodes: int
    node: str
    usd_per_hour: float
    requests_per_s: float

    @property
    def name(self) -> str:
        return f"{self.nodes} x {self.node}" if self.nodes > 1 else self.node

    @property
    def usd_per_1000(self) -> float:
        return 1000 * self.usd_per_hour / (3600 * self.requests_per_s)


def main() -> None:
    text = "\n".join(table(load_catalog(PAPER_CATALOG), load_efficiencies()))
    if "--write" not in sys.argv[1:]:
        sys.stdout.write(text + "\n")
        return
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def table(catalog: Catalog, efficiencies: Efficiencies) -> Iterator[str]:
    titles = ["model", "output's share", "tokens in, out"]
    titles += [f"{phase}: cheapest, requests/s, USD per 1000" for phase in PHASES]
    yield f"| {' | '.join([*titles, 'nodes of the assumption, dearer by'])} |"
    yield f"| {' | '.join(['---'] * (len(titles) + 1))} |"
    for model in catalog.models:
        if model.levels and model.levels[0].workload.name == "burstgpt":
            yield from _rows(catalog, efficiencies, model)


def _rows(catalog: Catalog, efficiencies: Efficiencies, model: Model) -> Iterator[str]:
    found = {
        share: [options(catalog, efficiencies, model, share, phase) for phase in PHASES] for share in SHARES
    }
    assumed = [_cheapest(here) for here in found[ASSUMED]]
    for share, phases in found.items():
        tokens_in, tokens_out = split(model, share)
        mark = " (assumed)" if share == ASSUMED else ""
        cells = [model.name, f"{share:.0%}{mark}", f"{tokens_in:.0f}, {tokens_out:.0f}"]
        best = [_cheapest(here) for here in phases]
        cells += [f"{o.name}, {o.requests_per_s:.1f}, {o.usd_per_1000:.3f}" for o in best]
        dearer = [_dearer(a, b, here) for a, b, here in zip(assumed, best, phases, strict=True)]
        yield f"| {' | '.join(cells)} | {', '.join(dearer)} |"


def _cheapest(here: Sequence[Option]) -> Option:
    return min(here, key=lambda option: option.usd_per_1000)


def _dearer(assumed: Option, best: Option, here: Sequence[Option]) -> str:
    """What the nodes chosen for the assumed split cost more than the best ones of this split."""
    same = next((o for o in here if (o.nodes, o.node) == (assumed.nodes, assumed.node)), None)
    return "cannot" if same is None else f"{same.usd_per_1000 / best.usd_per_1000 - 1:.0%}"


def split(model: Model, share: float) -> tuple[float, float]:
    """Mean prompt and output of a request of the same total."""
    workload = model.levels[0].workload
    total = workload.mean_input_tokens + workload.mean_output_tokens
    return total * (1 - share), total * share


def options(
    catalog: Catalog, efficiencies: Efficiencies, model: Model, share: float, phase: Phase
) -> list[Option]:
    """Every count of equal nodes that keeps the promises, with the best checkpoint."""
    tokens_in, tokens_out = split(model, share)
    (level,) = model.levels
    lengths = {"mean_input_tokens": tokens_in, "mean_output_tokens": tokens_out}
    level = level.model_copy(update={"workload": level.workload.model_copy(update=lengths)})
    gpus = {gpu.name: gpu for gpu in catalog.gpus}
    rooflines = [Roofline(model, v, level, gpus, efficiencies, phase) for v in model.variants]
    per_request = {"both": 1.0, "prefill": tokens_in, "decode": tokens_out}[phase]
    found = []
    for name in catalog.setups[-1].configurations:
        node = catalog.configuration(name)
        price = min(p.usd_per_hour for p in catalog.prices if p.configuration == name)
        for count in range(1, MOST_NODES + 1):
            best = max(throughput(roofline, [node] * count) for roofline in rooflines)
            if best > 0:
                found.append(Option(count, name, count * price, best / per_request))
    return found


def throughput(roofline: Roofline, nodes: Sequence[Configuration]) -> float:
    """Requests/s or, of one phase, tokens/s; 0 where the nodes cannot serve it."""
    found = search(roofline, nodes)
    return 0.0 if isinstance(found, Refusal) else found.throughput


if __name__ == "__main__":
    main()
