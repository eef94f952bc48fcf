"""How unevenly requests arrive in the public traces, as `burstiness` of a catalog's workloads.

    CORAL_SHARED_DATA=<folder> python scripts/burstiness.py          # a Markdown table
    CORAL_SHARED_DATA=<folder> python scripts/burstiness.py --yaml   # entries for a catalog

The folder holds the data sets that schemas/data/README.md names; without the variable it is ../shared/data.
"""

import argparse
import csv
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from schemas.catalog import Burstiness
from solver.arrivals import dispersion, rate_cv2
from solver.shapes import Floats

REPO = Path(__file__).resolve().parent.parent
INTERVALS_S = (1.0, 10.0, 60.0, 300.0, 600.0)
BURSTGPT_TOKENS_CV2 = 1.0
"""Of tokens per request: not in the aggregates; exponential lengths are assumed."""
BURSTGPT_TOKENS = 734.0
"""Mean tokens per request, from the data set's README."""


class Stream(NamedTuple):
    """One trace, and how its figures were come by."""

    name: str
    source: str
    how: str
    burstiness: tuple[Burstiness, ...]


def rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def arrivals(path: Path, column: str, per_second: float = 1.0) -> Floats:
    return np.sort([float(row[column]) / per_second for row in rows(path)])


def of_requests(name: str, source: str, times_s: Floats, shortest_s: float = 1.0) -> Stream:
    measured = tuple(dispersion(times_s, w) for w in INTERVALS_S if w >= shortest_s)
    return Stream(name, source, "arrival times", measured)


def azure(data: Path) -> Iterator[Stream]:
    for file, name in (("conv", "conversation"), ("code", "code")):
        times = arrivals(data / "traces_azure_llm_2023" / f"{file}.csv", "arrival_s")
        yield of_requests(f"azure-2023-{file}", f"Azure LLM inference trace 2023, {name} (CC BY 4.0)", times)


def mooncake(data: Path) -> Iterator[Stream]:
    """Timestamps come in ticks of 3 s, so shorter intervals would count the ticks."""
    times = arrivals(data / "traces_mooncake" / "conversation_trace.csv", "timestamp_ms", 1000.0)
    yield of_requests(
        "mooncake-conversation", "Mooncake, conversation trace (Apache-2.0)", times, shortest_s=10.0
    )


def burstgpt(data: Path) -> Iterator[Stream]:
    """Tokens a minute only: what lengths add to their spread is taken off."""
    path = data / "traces_burstgpt" / "week1_tokens_per_minute.csv"
    tokens = np.array([float(row["total_tokens"]) for row in rows(path)])
    per_s = float(tokens.mean() / BURSTGPT_TOKENS / 60)
    found = []
    for minutes in (1, 5, 10):
        sums = tokens[: len(tokens) // minutes * minutes].reshape(-1, minutes).sum(axis=1)
        requests = per_s * 60 * minutes
        spread = float(sums.var(ddof=1) / sums.mean() ** 2) * requests - BURSTGPT_TOKENS_CV2
        found.append(Burstiness(interval_s=60.0 * minutes, dispersion=spread, requests_per_s=per_s))
    how = "tokens a minute over a week, lengths assumed exponential"
    yield Stream("burstgpt-week1", "BurstGPT, first week (CC BY 4.0)", how, tuple(found))


def servegen(data: Path) -> Iterator[Stream]:
    """Rates of 10 minutes, and within them each client's inter-arrival times.

    Clients are taken as independent renewal streams, so that within a window the counts of all have the
    dispersion sum(rate x cv^2) / sum(rate). Gaps in the record (rate 0) are left out.
    """
    folder = data / "traces_servegen"
    clients: dict[str, list[tuple[float, float]]] = {}
    for row in rows(folder / "client_rates.csv.gz"):
        if row["cv"]:
            clients.setdefault(row["model"], []).append((float(row["rate_req_s"]), float(row["cv"])))
    windows: dict[str, list[float]] = {}
    for row in rows(folder / "model_rates.csv"):
        windows.setdefault(row["model"], []).append(float(row["rate_req_s"]))
    for model, each in clients.items():
        rate, cv = np.array(each).T
        within = float((rate * cv**2).sum() / rate.sum())
        total = np.array([r for r in windows[model] if r > 0])
        mean, slow = float(total.mean()), float(total.var(ddof=1) / total.mean() ** 2)
        found = tuple(
            Burstiness(interval_s=w, dispersion=within + slow * mean * w, requests_per_s=mean)
            for w in (10.0, 60.0, 600.0)
        )
        how = "rates of 10 minutes over days; within them clients' inter-arrival times, clients independent"
        yield Stream(f"servegen-{model}", f"ServeGen, {model} (Apache-2.0)", how, found)


def streams(data: Path) -> list[Stream]:
    return [stream for read in (azure, burstgpt, servegen, mooncake) for stream in read(data)]


def as_table(found: list[Stream]) -> Iterator[str]:
    heads = [f"{w:g} s" for w in INTERVALS_S]
    yield f"| trace | requests/s | {' | '.join(heads)} | from |"
    yield f"| --- | --- |{' --- |' * len(heads)} --- |"
    for stream in found:
        shown = {b.interval_s: rate_cv2([b], np.array([b.interval_s]))[0] for b in stream.burstiness}
        cells = [f"{shown[w]:.3f} ({_dispersion(stream, w):.3g})" if w in shown else "-" for w in INTERVALS_S]
        rate = stream.burstiness[-1].requests_per_s
        yield f"| {stream.name} | {rate:.3g} | {' | '.join(cells)} | {stream.how} |"


def _dispersion(stream: Stream, interval_s: float) -> float:
    return next(b.dispersion for b in stream.burstiness if b.interval_s == interval_s)


def as_yaml(found: list[Stream]) -> Iterator[str]:
    for stream in found:
        yield f"# {stream.name}: {stream.source}; {stream.how}"
        yield "burstiness:"
        for b in stream.burstiness:
            yield (
                f"  - {{ interval_s: {b.interval_s:g}, dispersion: {b.dispersion:.4g}, "
                f"requests_per_s: {b.requests_per_s:.4g} }}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--yaml", action="store_true", help="entries for a catalog, in place of the table")
    data = Path(os.environ.get("CORAL_SHARED_DATA", REPO.parent / "shared" / "data"))
    found = streams(data)
    lines = as_yaml(found) if parser.parse_args().yaml else as_table(found)
    print("\n".join(lines))  # noqa: T201  what it is for


if __name__ == "__main__":
    main()
