"""Random problems that are small enough to try everything."""

import random
from typing import Any

from schemas.problems import Problem
from solver.candidates import Templates


def random_case(seed: int, box: Any) -> tuple[Problem, Templates]:
    """Two models, up to two templates each, two pools; stock of up to two nodes; some running or refused."""
    rng = random.Random(seed)
    names = ["a", "b"]
    combinations = [("a",), ("b",), ("a", "a"), ("a", "b"), ("b", "b")]
    rated = [
        box.rated(combination, round(rng.uniform(0.5, 4), 2) * len(combination), model)
        for model in ("m", "n")
        for combination in rng.sample(combinations, rng.randint(1, 2))
    ]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [
        box.stock(name, rng.randint(0, 2), round(rng.uniform(0.5, 5), 2), pool)
        for pool in (box.east, box.west)
        for name in names
    ]
    running = [box.running(r, rng.randint(1, 2), rng.choice((box.east, box.west))) for r in rated[::2]]
    demands = {model: round(rng.uniform(0.5, 8), 2) for model in ("m", "n")}
    ratio = {"m": 0.3, "n": rng.choice((0.0, 0.5))}
    unfit = [box.unfit(rng.choice(names), rng.choice("mn"), rng.randint(0, 1))] if seed % 2 else []
    return (
        box.problem(library, demands, stocks, running=running, ratio=ratio, unfit=unfit),
        library,
    )
