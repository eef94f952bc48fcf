"""Small programs made by hand or by chance, in paper mode: a row for every pool and configuration."""

from collections.abc import Sequence

import numpy as np

from solver.program import Block, Bytes, Draw, Family, Program, Rows, Special


def paper_program(
    uses: Sequence[Sequence[Sequence[int]]],
    cover: Sequence[Sequence[float]],
    price: Sequence[Sequence[float]],
    stock: Sequence[Sequence[int]],
    specials: Sequence[Special] = (),
    ratio: float = 0.0,
    weight: Sequence[float] | None = None,
) -> Program:
    """A family for each service, a block for each (service, pool), services outermost.

    Args:
        uses: by service and template, nodes of each configuration.
        cover: by service and template.
        price: by pool and configuration, USD per hour.
        stock: by pool and configuration.
        ratio: K of every service.
    """
    families = tuple(
        Family(service, nodes_of(u), np.array(a, np.float64))
        for service, (u, a) in enumerate(zip(uses, cover, strict=True))
    )
    wide = len(stock[0])
    blocks = tuple(
        Block(
            family=family,
            pool=f"pool-{pool}",
            price=np.array(price[pool], np.float64),
            start=ratio * np.array(price[pool], np.float64),
            offered=np.array(stock[pool]) > 0,
            draws=tuple(Draw(c, pool * wide + c, 1.0) for c in range(wide)),
        )
        for family in range(len(families))
        for pool in range(len(stock))
    )
    rows = Rows(
        name=tuple(f"{c} in pool-{p}" for p in range(len(stock)) for c in range(wide)),
        right=np.array(stock, np.float64).ravel(),
    )
    return Program(
        services=tuple(f"service-{s}" for s in range(len(families))),
        weight=np.ones(len(families)) if weight is None else np.array(weight, np.float64),
        families=families,
        blocks=blocks,
        rows=rows,
        specials=tuple(sorted(specials)),
    )


def nodes_of(uses: Sequence[Sequence[int]]) -> Bytes:
    """[n, most nodes]: the nodes of templates that use so many of each configuration."""
    most = max(map(sum, uses), default=1)
    nodes = np.full((len(uses), most), -1, np.int8)
    for row, counts in enumerate(uses):
        nodes[row, : sum(counts)] = np.repeat(np.arange(len(counts)), counts)
    return nodes


def random_program(
    seed: int, services: int = 2, templates: int = 5, wide: int = 3, pools: int = 2
) -> Program:
    """Some that run now, some short of stock."""
    rng = np.random.default_rng(seed)
    uses = rng.integers(0, 3, (services, templates, wide))
    uses[uses.sum(axis=2) == 0, 0] = 1
    speed = rng.uniform(0.5, 1.5, (services, wide))
    rate = rng.uniform(1.0, 6.0, services)
    made = np.einsum("stc,sc->st", uses, speed) * rng.uniform(0.9, 1.1, (services, templates))
    specials = [
        Special(int(block), int(rng.integers(templates)), running=int(rng.integers(1, 3)))
        for block in rng.choice(services * pools, 2, replace=False)
        if seed % 2
    ]
    return paper_program(
        uses.tolist(),
        np.minimum(1.0, made / rate[:, None]).tolist(),
        rng.uniform(0.8, 5.0, (pools, wide)).tolist(),
        rng.integers(0, 6, (pools, wide)).tolist(),
        specials,
        ratio=float(rng.choice([0.0, 0.25])),
    )
