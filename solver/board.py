"""The columns of a program whose rows are only drawn on, as the search takes them.

An instance that runs already is a column of its own that can be used once, at its lower cost.
"""

from dataclasses import dataclass

import numpy as np

from solver.existing import Existing, existing
from solver.knapsacks import GRID, Items
from solver.program import FREE, Block, Floats, Ints, Program


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
    """All columns, those of running instances last."""

    columns: Existing
    at: Ints
    """[m]: of `columns`."""
    cost: Floats
    step: Ints
    service: Ints
    most: Ints
    new: int
    """How many come before those of running instances."""
    rows: Ints
    """[blocks, C + 1]: the row that a node draws on; R for none."""

    def __len__(self) -> int:
        return len(self.at)

    @property
    def once(self) -> Ints:
        return np.arange(self.new, len(self))

    def drawn(self, price: Floats) -> Floats:
        """[m]: what instances draw at these prices of the rows."""
        return self.columns.drawn(price)[self.at]

    def items(self, chosen: Ints, priced: bool) -> tuple[Ints, Items]:
        """Some columns, by service, and what the search needs of them; without prices they cost nothing."""
        chosen = chosen[np.argsort(self.service[chosen], kind="stable")]
        at = self.at[chosen]
        use = self.rows[self.columns.block[at][:, None], self.columns.nodes[at]]
        run = np.ones_like(use)
        for k in range(1, use.shape[1]):
            run[:, k] = np.where(use[:, k] == use[:, k - 1], run[:, k - 1] + 1, 1)
        run[use == len(self.columns.program.rows.right)] = 1
        cover = self.columns.cover[at]
        return chosen, Items(
            cost=self.cost[chosen] if priced else np.zeros(len(chosen)),
            use=use,
            run=run,
            step=self.step[chosen],
            down=np.floor(cover * GRID + 1e-9).astype(np.int64),
            cover=cover,
            service=self.service[chosen],
            most=self.most[chosen],
        )


def make_board(program: Program) -> Board:
    """Lay them out."""
    columns = existing(program)
    cost, most = columns.costs(), np.full(len(columns), FREE, np.int64)
    for number, block in enumerate(program.blocks):
        if block.limit is not None:
            part = slice(int(columns.start[number]), int(columns.start[number + 1]))
            most[part] = block.limit[columns.row[part]]
    kept, price = [], []
    for special in program.specials:
        at = columns.find(special.block, special.row)
        if at is None:
            continue
        runs = min(special.running, special.limit)
        most[at] = max(0, special.limit - runs) if special.limit < FREE else FREE
        kept += [at] * runs
        price += [float(cost[at]) - _start(columns, at)] * runs
    every: Ints = np.append(np.arange(len(columns)), np.array(kept, np.int64)).astype(np.int64)
    step = np.clip(np.ceil(columns.cover * GRID - 1e-9), 1, GRID).astype(np.int64)
    return Board(
        columns=columns,
        at=every,
        cost=np.append(cost, price),
        step=step[every],
        service=columns.service[every],
        most=np.append(most, np.ones(len(kept), np.int64)),
        new=len(columns),
        rows=np.array([_rows(block, len(program.rows.right)) for block in program.blocks]),
    )


def _start(columns: Existing, at: int) -> float:
    block = columns.program.blocks[columns.block[at]]
    return float(np.append(0.0, block.start)[columns.nodes[at]].sum())


def _rows(block: Block, none: int) -> Ints:
    rows = np.full(len(block.price) + 1, none, np.int64)
    for draw in block.draws:
        rows[draw.configuration + 1] = draw.row
    return rows
