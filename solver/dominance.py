"""Columns that no plan needs: another does as much, for no more, on nodes that it has anyway.

What one column does for its service, another of the same service and pool may do as well: cover no less, cost
no more, and draw no more on any row, since its nodes are some of the first one's, or smaller slices of them.
Then any plan is as good with the other in its place. Shares are capped (`Asked.cover`), so where demand is a
few instances this leaves one column of many: 2,500 of 190,000. Where it is hundreds, it leaves most.

What runs or is pinned stays, and what has a limit of its own stands in for nothing.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.compiled import compiled
from solver.existing import Existing
from solver.program import FREE, Block, Bytes, Floats, Ints, Program

Flags = NDArray[np.bool_]

WIDEST = 9
"""Nodes that fit into a key of seven bits each."""
MOST_SMALLER = 1024
"""Combinations of smaller nodes that are looked at for one column."""
SAMPLE, LEAST = 64, 0.25
"""Every so many-th column is looked at first; where fewer than that share of them go, the rest is left."""


def undominated(columns: Existing) -> Existing:
    """Without the columns that others stand in for; the order stays."""
    kept = np.ones(len(columns), np.bool_)
    cost, keys = columns.cost, _keys(columns.nodes)
    special, limited = _special(columns)
    for blocks in _alike(columns.program):
        at = np.concatenate([np.arange(columns.start[b], columns.start[b + 1]) for b in blocks])
        block = columns.program.blocks[blocks[0]]
        if not len(at) or columns.nodes.shape[1] > WIDEST or not _only_takes(block):
            continue
        group = _Group(columns.nodes[at], keys[at], cost[at], columns.cover[at])
        exact = any(term.cover > 0 for term in block.terms)
        kept[at[group.replaced(~limited[at], exact, _smaller(block))]] = False
    return _only(columns, kept | special)


class _Group(NamedTuple):
    """Columns of one service in one pool."""

    nodes: Bytes
    keys: Ints
    cost: Floats
    cover: Floats

    def replaced(self, stands_in: Flags, exact: bool, smaller: Ints) -> Flags:
        """[m]: whether another stands in.

        Args:
            stands_in: [m], which may.
            exact: a row limits what is covered, so another has to cover the same.
            smaller: `_smaller`.
        """
        table = np.full(1 << max(4, int(2 * len(self.keys)).bit_length()), -1, np.int64)
        _fill(table, self.keys, stands_in)
        every, lost = np.arange(len(self.keys)), np.zeros(len(self.keys), np.bool_)
        sample = every[::SAMPLE]
        _by_fewer(*self, table, exact, sample, lost)
        if len(every) > SAMPLE**2 and lost[sample].mean() < LEAST:
            return np.zeros(len(every), np.bool_)
        _by_fewer(*self, table, exact, every, lost)
        if smaller.any():
            _by_smaller(*self, table, exact, smaller, lost)
        return lost


def _alike(program: Program) -> list[list[int]]:
    """Blocks of which one column could stand in for another's: variants of a service in a pool."""
    found: dict[Hashable, list[int]] = {}
    for number, block in enumerate(program.blocks):
        figures = (block.price.tobytes(), block.start.tobytes(), block.offered.tobytes())
        service = program.families[block.family].service
        found.setdefault((service, block.pool, block.draws, block.terms, figures), []).append(number)
    return list(found.values())


def _only_takes(block: Block) -> bool:
    """Whether fewer nodes never draw more on a row, nor cost more."""
    sums = [draw.amount for draw in block.draws] + [term.usd for term in block.terms]
    return min(sums, default=0.0) >= 0 and min(block.price.min(), block.start.min()) >= 0


def _special(columns: Existing) -> tuple[Flags, Flags]:
    """[m] each: columns that run or are pinned; columns with a limit of their own."""
    special, limited = np.zeros(len(columns), np.bool_), np.zeros(len(columns), np.bool_)
    for number, block in enumerate(columns.program.blocks):
        if block.limit is not None:
            at = slice(int(columns.start[number]), int(columns.start[number + 1]))
            limited[at] = block.limit[columns.row[at]] < FREE
    for s in columns.program.specials:
        at_special = columns.find(s.block, s.row)
        if at_special is not None:
            special[at_special] = True
            limited[at_special] |= s.limit < FREE
    return special, limited


def _smaller(block: Block) -> Ints:
    """[C + 1, k]: for each node (configuration plus one), others that draw on some of its rows only, no more,
    and cost no more; 0 beyond the last."""
    draws: list[dict[int, float]] = [{} for _ in block.price]
    for draw in block.draws:
        draws[draw.configuration][draw.row] = draws[draw.configuration].get(draw.row, 0.0) + draw.amount
    offered = np.flatnonzero(block.offered).tolist()
    found: list[list[int]] = [[] for _ in range(len(block.price) + 1)]
    for large in offered:
        for small in offered:
            less = all(amount <= draws[large].get(row, 0.0) for row, amount in draws[small].items())
            cheap = block.price[small] <= block.price[large] and block.start[small] <= block.start[large]
            if draws[small] and draws[small] != draws[large] and less and cheap:
                found[large + 1].append(small + 1)
    wide = max(1, *map(len, found))
    return np.array([names + [0] * (wide - len(names)) for names in found], np.int64)


def _keys(nodes: Bytes) -> Ints:
    """[m]: a combination as one number, seven bits a node."""
    key = np.zeros(len(nodes), np.int64)
    for at in range(min(nodes.shape[1], WIDEST)):
        key = np.where(nodes[:, at] > 0, (key << 7) | nodes[:, at], key)
    return key


def _only(columns: Existing, kept: Flags) -> Existing:
    before = np.concatenate([[0], np.cumsum(kept)])
    return replace(
        columns,
        start=before[columns.start],
        **{
            name: getattr(columns, name)[kept]
            for name in ("row", "nodes", "cover", "block", "service", "own")
        },
    )


# ------------------------------------------------------------------------------------------------ compiled


@compiled
def _place(key: int, mask: int) -> int:
    mixed = key * 0x9E3779B97F4A7C1
    return (mixed ^ (mixed >> 29)) & mask


@compiled
def _fill(table: Ints, keys: Ints, stands_in: Flags) -> None:
    mask = len(table) - 1
    for j in range(len(keys)):
        if stands_in[j]:
            at = _place(keys[j], mask)
            while table[at] >= 0:
                at = (at + 1) & mask
            table[at] = j


@compiled
def _stands_in(key: int, j: int, keys: Ints, cost: Floats, cover: Floats, table: Ints, exact: bool) -> bool:
    """Whether a column with these nodes covers no less than j and costs no more; of equals the first."""
    mask = len(table) - 1
    at = _place(key, mask)
    while table[at] >= 0:
        i = table[at]
        if keys[i] == key and i != j:
            less, more = cost[i] - cost[j], cover[i] - cover[j]
            enough = more == 0.0 if exact else more >= 0.0
            same = key == keys[j] and less == 0.0 and more == 0.0
            if less <= 0.0 and enough and (not same or i < j):
                return True
        at = (at + 1) & mask
    return False


@compiled
def _part(nodes: Bytes, j: int, mask: int) -> int:
    """The key of some of a column's nodes."""
    key = 0
    for at in range(nodes.shape[1]):
        if mask >> at & 1:
            key = (key << 7) | nodes[j, at]
    return key


@compiled
def _count(nodes: Bytes, j: int) -> int:
    count = 0
    while count < nodes.shape[1] and nodes[j, count] > 0:
        count += 1
    return count


@compiled
def _by_fewer(
    nodes: Bytes,
    keys: Ints,
    cost: Floats,
    cover: Floats,
    table: Ints,
    exact: bool,
    which: Ints,
    lost: Flags,
) -> None:
    """By one column on some of the nodes."""
    for j in which:
        for mask in range(1, 1 << _count(nodes, j)):
            if _stands_in(_part(nodes, j, mask), j, keys, cost, cover, table, exact):
                lost[j] = True
                break


@compiled
def _by_smaller(
    nodes: Bytes,
    keys: Ints,
    cost: Floats,
    cover: Floats,
    table: Ints,
    exact: bool,
    smaller: Ints,
    lost: Flags,
) -> None:
    """By one column on some of the nodes, or smaller ones in their place: all choices, counted through."""
    wide = nodes.shape[1]
    choice, ways, own = np.zeros(wide, np.int64), np.zeros(wide, np.int64), np.zeros(wide, np.int64)
    for j in range(len(keys)):
        all_ways = _ways(nodes, j, smaller, ways)
        if lost[j] or all_ways > MOST_SMALLER:
            continue
        choice[:] = 0
        for _ in range(all_ways - 1):
            _next(choice, ways)
            if choice.max() < 2:  # its own nodes only
                continue
            if _stands_in(_chosen(nodes, j, smaller, choice, own), j, keys, cost, cover, table, exact):
                lost[j] = True
                break


@compiled
def _ways(nodes: Bytes, j: int, smaller: Ints, ways: Ints) -> int:
    """How many choices there are: for each node none, itself, or one that is smaller."""
    product = 1
    for at in range(_count(nodes, j)):
        ways[at] = 2 + np.count_nonzero(smaller[nodes[j, at]])
        product *= ways[at]
    return product


@compiled
def _next(choice: Ints, ways: Ints) -> None:
    """Count on by one."""
    at = 0
    while choice[at] == ways[at] - 1:
        choice[at] = 0
        at += 1
    choice[at] += 1


@compiled
def _chosen(nodes: Bytes, j: int, smaller: Ints, choice: Ints, own: Ints) -> int:
    """The key of what was chosen in place of a column's nodes."""
    taken = 0
    for k in range(_count(nodes, j)):
        if choice[k] == 0:
            continue
        node = nodes[j, k] if choice[k] == 1 else smaller[nodes[j, k], choice[k] - 2]
        place = taken
        while place > 0 and own[place - 1] > node:
            own[place] = own[place - 1]
            place -= 1
        own[place] = node
        taken += 1
    key = 0
    for k in range(taken):
        key = (key << 7) | own[k]
    return key
