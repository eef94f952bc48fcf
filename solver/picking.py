"""Some columns of a program written out with their entries of A, to make small integer programs of."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from solver.program import FREE, Block, Bytes, Floats, Ints, Picked, Program


def pick(program: Program, block: Sequence[int] | Ints, row: Sequence[int] | Ints) -> Picked:
    """Write some columns out, sorted, each once; columns that do not exist are left out."""
    at = np.unique(np.stack([np.asarray(block, np.int64), np.asarray(row, np.int64)], axis=1), axis=0)
    return _written(program, at[:, 0], at[:, 1])


def pick_all(program: Program) -> Picked:
    """Every column, for references on small programs."""
    sizes = [len(program.families[block.family]) for block in program.blocks]
    rows = [np.zeros(0, np.int64), *map(np.arange, sizes)]
    return _written(program, np.repeat(np.arange(len(sizes)), sizes), np.concatenate(rows))


def room_of_rows(program: Program) -> Floats:
    """[R]: the most that columns may draw on a row, infinite where some may also give to it."""
    gives = {d.row for block in program.blocks for d in block.draws if d.amount < 0}
    gives |= {t.row for b in program.blocks for t in b.terms if min(t.instance, t.cover, t.usd) < 0}
    room = program.rows.right.astype(np.float64)
    extras = program.extras
    for k, row, amount in extras.draws:
        room[row] -= min(amount * extras.low[k], amount * extras.high[k])
    room[sorted(gives)] = np.inf
    return room


# ------------------------------------------------------------------------------------------------- helpers


def _written(program: Program, block: Ints, row: Ints) -> Picked:
    if not len(block):
        return _nothing()
    blocks = program.blocks
    uses = _uses(_nodes(program, block, row), len(blocks[0].price))
    running, least, limit = _counts(program, block, row)
    missing = ((uses > 0) & ~np.array([b.offered for b in blocks])[block]).any(axis=1)
    exists = ~missing & ((limit > 0) | (running > 0) | (least > 0))
    block, row, uses = block[exists], row[exists], uses[exists]
    running, least, limit = running[exists], least[exists], limit[exists]
    cover, surcharge = _own(program, block, row)
    price = (uses * np.array([b.price for b in blocks])[block]).sum(axis=1)
    column, drawn, amount = _terms(program, block, uses, cover, price)
    room = _room(program, column, drawn, amount, len(block))
    return Picked(
        block=block,
        row=row,
        service=np.array([program.families[b.family].service for b in blocks], np.int64)[block],
        cover=cover,
        price=price + surcharge,
        start=(uses * np.array([b.start for b in blocks])[block]).sum(axis=1),
        running=running,
        least=least,
        limit=np.maximum(np.minimum(limit, room), least),
        term_column=column,
        term_row=drawn,
        term_amount=amount,
    )


def _parts(program: Program, block: Ints) -> Iterator[tuple[int, Block, slice]]:
    """The blocks among sorted columns, and where theirs are."""
    ends = np.searchsorted(block, np.arange(len(program.blocks) + 1)).tolist()
    for number, (low, high) in enumerate(pairwise(ends)):
        if high > low:
            yield number, program.blocks[number], slice(low, high)


def _nodes(program: Program, block: Ints, row: Ints) -> Bytes:
    """[m, most nodes]: -1 beyond the last."""
    found = np.full((len(block), max(f.nodes.shape[1] for f in program.families)), -1, np.int8)
    for _, b, at in _parts(program, block):
        nodes = program.families[b.family].nodes
        found[at, : nodes.shape[1]] = nodes[row[at]]
    return found


def _uses(nodes: Bytes, configurations: int) -> Floats:
    """[m, C]: nodes of each configuration."""
    counts = np.zeros((len(nodes), configurations + 1))
    np.add.at(counts, (np.arange(len(nodes))[:, None], nodes), 1.0)
    return counts[:, :configurations]


def _own(program: Program, block: Ints, row: Ints) -> tuple[Floats, Floats]:
    """What the columns cover, and their surcharges."""
    cover, surcharge = np.zeros((2, len(block)))
    for _, b, at in _parts(program, block):
        cover[at] = program.families[b.family].cover[row[at]]
        if b.surcharge is not None:
            surcharge[at] = b.surcharge[row[at]]
    return cover, surcharge


def _counts(program: Program, block: Ints, row: Ints) -> tuple[Ints, Ints, Ints]:
    """Instances that run, that there are at least, and at most."""
    running, least = np.zeros((2, len(block)), np.int64)
    limit = np.full(len(block), FREE, np.int64)
    for _, b, at in _parts(program, block):
        if b.limit is not None:
            limit[at] = b.limit[row[at]]
    for special in program.specials:
        low, high = np.searchsorted(block, [special.block, special.block + 1])
        here = int(low + np.searchsorted(row[low:high], special.row))
        if here < high and row[here] == special.row:
            running[here], least[here], limit[here] = special.running, special.least, special.limit
    return running, least, limit


def _terms(
    program: Program, block: Ints, uses: Floats, cover: Floats, price: Floats
) -> tuple[Ints, Ints, Floats]:
    """The entries of A: columns, rows, amounts."""
    dense = np.zeros((len(block), len(program.rows.right)))
    for _, b, at in _parts(program, block):
        drawn = np.zeros((len(b.price), dense.shape[1]))
        for draw in b.draws:
            drawn[draw.configuration, draw.row] += draw.amount
        dense[at] = uses[at] @ drawn
        for term in b.terms:
            dense[at, term.row] += term.instance + term.cover * cover[at] + term.usd * price[at]
    column, row = np.nonzero(dense)
    return column, row, dense[column, row]


def _room(program: Program, column: Ints, row: Ints, amount: Floats, size: int) -> Ints:
    """[m]: instances of each column that every row would hold, were they alone."""
    room = np.full(size, FREE, np.int64)
    left = room_of_rows(program)[row]
    counts = (amount > 0) & np.isfinite(left)
    fits = np.floor(np.maximum(left[counts], 0.0) / amount[counts] + 1e-9)
    np.minimum.at(room, column[counts], np.minimum(fits, FREE).astype(np.int64))
    return room


def _nothing() -> Picked:
    none, real = np.zeros(0, np.int64), np.zeros(0)
    return Picked(none, none, none, real, real, real, none, none, none, none, none, real)
