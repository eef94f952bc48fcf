"""The columns of a program whose rows are only drawn on, as plans are made of them.

An instance that runs already is a column of its own that can be used once, at its lower cost.
"""

from dataclasses import dataclass

import numpy as np

from solver.compiled import compiled
from solver.existing import Existing, existing
from solver.knapsacks import GRID, Flags, Items, Shorts
from solver.program import FREE, Block, Bytes, Floats, Ints, Program


def packs(program: Program) -> bool:
    """Whether rows are only drawn on, a unit by each node: stock, and nothing that couples otherwise."""
    plain = all(
        not block.terms
        and all(draw.amount == 1.0 for draw in block.draws)
        and len({draw.configuration for draw in block.draws}) == len(block.draws)
        for block in program.blocks
    )
    return (
        plain
        and bool(program.blocks)
        and not program.extras.name
        and bool((program.needs == 1).all())
        and not any(special.least for special in program.specials)
    )


@dataclass(frozen=True, eq=False)
class Board:
    """All columns that exist, or some of them."""

    columns: Existing
    at: Ints
    """[m]: which of `columns` an item is."""
    items: Items
    right: Ints
    """[R]: whole nodes."""

    def __len__(self) -> int:
        return len(self.at)

    def part(self, kept: Flags) -> "Board":
        """Some of the columns."""
        items = self.items
        before = np.append(0, np.cumsum(kept))
        once = [
            before[low + once] - before[low]
            for low, once in zip(items.begin[:-1].tolist(), items.once.tolist(), strict=True)
        ]
        return Board(
            columns=self.columns,
            at=self.at[kept],
            items=Items(
                cost=items.cost[kept],
                use=items.use[kept],
                step=items.step[kept],
                cover=items.cover[kept],
                most=items.most[kept],
                begin=before[items.begin].astype(np.int64),
                once=np.array(once, np.int64),
            ),
            right=self.right,
        )


def make_board(program: Program) -> Board:
    """Lay them out."""
    columns = existing(program)
    cost, most = columns.cost, np.full(len(columns), FREE, np.int64)
    for number, block in enumerate(program.blocks):
        if block.limit is not None:
            part = slice(int(columns.start[number]), int(columns.start[number + 1]))
            most[part] = block.limit[columns.row[part]]
    once = _running(columns, cost, most)
    at, cost, most, begin, counts = _by_service(columns, cost, most, once)
    right = np.floor(program.rows.right + 1e-9).astype(np.int64)
    rows = np.array([_rows(block, len(right)) for block in program.blocks])
    use = np.empty((len(at), columns.nodes.shape[1]), np.int16)
    _rows_of_nodes(rows, columns.block, columns.nodes, at, use)
    cover = columns.cover[at]
    items = Items(
        cost=cost,
        use=use,
        step=np.clip(np.ceil(cover * GRID - 1e-9), 1, GRID).astype(np.int64),
        cover=cover,
        most=most,
        begin=begin,
        once=counts,
    )
    return Board(columns, at, items, right)


# ------------------------------------------------------------------------------------------------- helpers


def _running(columns: Existing, cost: Floats, most: Ints) -> list[tuple[int, float]]:
    """Instances that run: their columns and costs. Of new ones there may be as many fewer (`most`)."""
    found = []
    for special in columns.program.specials:
        at = columns.find(special.block, special.row)
        if at is None:
            continue
        block = columns.program.blocks[special.block]
        runs = min(special.running, special.limit, _held(columns, at, block))
        most[at] = max(0, special.limit - special.running) if special.limit < FREE else FREE
        start = float(np.append(0.0, block.start)[columns.nodes[at]].sum())
        found += [(at, float(cost[at]) - start)] * runs
    return found


def _held(columns: Existing, at: int, block: Block) -> int:
    """Instances of a column that the stock holds; it exists, so that is one at least."""
    rows = _rows(block, len(columns.program.rows.right))[columns.nodes[at]]
    drawn = np.bincount(rows, minlength=len(columns.program.rows.right) + 1)[:-1]
    return int((columns.program.rows.right[drawn > 0] // drawn[drawn > 0]).min(initial=FREE))


def _by_service(
    columns: Existing, cost: Floats, most: Ints, once: list[tuple[int, float]]
) -> tuple[Ints, Floats, Ints, Ints, Ints]:
    """Columns with their costs and limits service by service, and where each one's begin; how many of them
    can be used once."""
    at, costs, limits, begin, counts = [], [], [], [0], []
    services = [columns.program.families[b.family].service for b in columns.program.blocks]
    for s in range(len(columns.program.services)):
        runs = [(j, usd) for j, usd in once if columns.service[j] == s]
        slices = [
            np.arange(low, high)
            for low, high, service in zip(columns.start[:-1], columns.start[1:], services, strict=True)
            if service == s
        ]
        new = np.concatenate([np.zeros(0, np.int64), *slices])
        new = new[most[new] > 0]
        at += [np.array([j for j, _ in runs], np.int64), new]
        costs += [np.array([usd for _, usd in runs], np.float64), cost[new]]
        limits += [np.ones(len(runs), np.int64), most[new]]
        begin.append(begin[-1] + len(runs) + len(new))
        counts.append(len(runs))
    return (
        np.concatenate(at),
        np.concatenate(costs),
        np.concatenate(limits),
        np.array(begin, np.int64),
        np.array(counts, np.int64),
    )


def _rows(block: Block, none: int) -> Shorts:
    rows = np.full(len(block.price) + 1, none, np.int16)
    for draw in block.draws:
        rows[draw.configuration + 1] = draw.row
    return rows


@compiled
def _rows_of_nodes(rows: Shorts, block: Ints, nodes: Bytes, at: Ints, use: Shorts) -> None:
    """[m, w]: the row of each node of these columns, by block and configuration."""
    for k in range(len(at)):
        here = rows[block[at[k]]]
        for node in range(nodes.shape[1]):
            use[k, node] = here[nodes[at[k], node]]
