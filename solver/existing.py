"""The columns of a program that exist, as flat arrays, and what one costs at given prices of rows.

A column does not exist where its pool lacks a configuration, where a limit says so, or where one instance
alone draws more on a row than the row has ("drop columns that alone exceed the stock", solver.md): without
that the proof fails as soon as stock is short. What is left of a million columns is some hundred thousand
with ample stock and a few thousand with little, so it is worth copying out: later passes are short.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.compiled import compiled
from solver.picking import room_of_rows
from solver.program import Block, Bytes, Floats, Ints, Program


@dataclass(frozen=True, eq=False)
class Existing:
    """Columns that exist; m of them, by block and row."""

    program: Program
    start: Ints
    """[blocks + 1]: where each block's columns begin."""
    row: Ints
    """[m]: of the family."""
    nodes: Bytes
    """[m, most nodes]: configurations plus one, 0 beyond the last node."""
    cover: Floats
    block: Ints
    service: Ints
    own: Floats
    """[m]: surcharge, USD per hour."""

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def cost(self) -> Floats:
        """[m]: USD per hour of a new instance."""
        return self._sums(_costs_per_node(self.program)) + self.own

    def drawn(self, price: Floats) -> Floats:
        """[m]: what an instance draws on rows at these prices of the rows ([R])."""
        program = self.program
        found = self._sums(_draws_per_node(program, price))
        for number, block in enumerate(program.blocks):
            at = slice(int(self.start[number]), int(self.start[number + 1]))
            for term in block.terms:
                found[at] += price[term.row] * (term.instance + term.cover * self.cover[at])
        return found

    def _sums(self, per_node: Floats) -> Floats:
        found = np.empty(len(self))
        _sum_nodes(self.nodes, self.start, per_node, found)
        return found

    def find(self, block: int, row: int) -> int | None:
        """Where a column is, None if it does not exist."""
        low, high = int(self.start[block]), int(self.start[block + 1])
        at = low + int(np.searchsorted(self.row[low:high], row))
        return at if at < high and int(self.row[at]) == row else None


def existing(program: Program) -> Existing:
    """Find them; a pass over all columns."""
    room = room_of_rows(program)
    start, rows, cover, own = [0], [], [], []
    for number, block in enumerate(program.blocks):
        family = program.families[block.family]
        found = np.empty(len(family), np.int64)
        count = _fitting(family.nodes, _most(block, room), found)
        kept = found[:count]
        if block.limit is not None:
            special = [s.row for s in program.specials if s.block == number]
            kept = kept[(block.limit[kept] > 0) | np.isin(kept, special)]
        kept = kept[_within_shared_rows(program, block, kept, room)]
        rows.append(kept)
        cover.append(family.cover[kept])
        own.append(np.zeros(len(kept)) if block.surcharge is None else block.surcharge[kept])
        start.append(start[-1] + len(kept))
    blocks = np.repeat(np.arange(len(program.blocks)), np.diff(start))
    services = np.array([program.families[b.family].service for b in program.blocks], np.int64)
    return Existing(
        program=program,
        start=np.array(start, np.int64),
        row=np.concatenate([np.zeros(0, np.int64), *rows]),
        nodes=_nodes(program, rows),
        cover=np.concatenate([np.zeros(0), *cover]),
        block=blocks,
        service=services[blocks],
        own=np.concatenate([np.zeros(0), *own]),
    )


# ------------------------------------------------------------------------------------------------- helpers


def _most(block: Block, room: Floats) -> Ints:
    """[C]: nodes of a configuration that one instance may have, by each row alone."""
    most = np.full(len(block.price), 127.0)
    for draw in block.draws:
        if draw.amount > 0 and np.isfinite(room[draw.row]):
            fits = np.floor(max(0.0, room[draw.row]) / draw.amount + 1e-9)
            most[draw.configuration] = min(most[draw.configuration], fits)
    most[~block.offered] = 0
    return most.astype(np.int64)


def _within_shared_rows(
    program: Program, block: Block, rows: Ints, room: Floats
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """[len(rows)]: whether rows that several configurations draw on would hold one instance."""
    drawn: dict[int, dict[int, float]] = {}
    for draw in block.draws:
        drawn.setdefault(draw.row, {})[draw.configuration] = draw.amount
    holds = np.ones(len(rows), np.bool_)
    for row, amounts in drawn.items():
        if len(amounts) > 1 and np.isfinite(room[row]):
            per_node = np.zeros(len(block.price) + 1)
            per_node[list(amounts)] = list(amounts.values())
            holds &= per_node[program.families[block.family].nodes[rows]].sum(axis=1) <= room[row] + 1e-9
    return holds


def _nodes(program: Program, rows: Sequence[Ints]) -> Bytes:
    """[m, most nodes]: of these rows of the blocks."""
    wide = max((int(family.nodes.shape[1]) for family in program.families), default=1)
    found, low = np.zeros((sum(map(len, rows)), wide), np.int8), 0
    for block, kept in zip(program.blocks, rows, strict=True):
        _copy_nodes(program.families[block.family].nodes, kept, found[low : low + len(kept)])
        low += len(kept)
    return found


def _costs_per_node(program: Program) -> Floats:
    """[blocks, C + 1]: USD per hour of a node of a new instance; 0 for no node."""
    table = np.zeros((len(program.blocks), _configurations(program) + 1))
    for number, block in enumerate(program.blocks):
        table[number, 1:] = block.price + block.start
    return table


def _draws_per_node(program: Program, price: Floats) -> Floats:
    """[blocks, C + 1]: what a node draws, by draws and by terms that count USD."""
    table = np.zeros((len(program.blocks), _configurations(program) + 1))
    for number, block in enumerate(program.blocks):
        for draw in block.draws:
            table[number, draw.configuration + 1] += price[draw.row] * draw.amount
        for term in block.terms:
            if term.usd:
                table[number, 1:] += price[term.row] * term.usd * block.price
    return table


def _configurations(program: Program) -> int:
    return len(program.blocks[0].price) if program.blocks else 0


@compiled
def _fitting(nodes: Bytes, most: Ints, found: Ints) -> int:
    """Rows whose nodes of each configuration are at most `most`; equal nodes stand side by side."""
    count = 0
    for row in range(nodes.shape[0]):
        before, run, fits = -1, 0, True
        for at in range(nodes.shape[1]):
            c = nodes[row, at]
            if c < 0:
                break
            run = run + 1 if c == before else 1
            before = c
            if run > most[c]:
                fits = False
                break
        if fits:
            found[count] = row
            count += 1
    return count


@compiled
def _copy_nodes(nodes: Bytes, rows: Ints, found: Bytes) -> None:
    """Configurations plus one."""
    for k in range(len(rows)):
        for at in range(nodes.shape[1]):
            found[k, at] = nodes[rows[k], at] + 1


@compiled
def _sum_nodes(nodes: Bytes, start: Ints, per_node: Floats, found: Floats) -> None:
    """found[j] = sum over the nodes of column j of its block's figure."""
    for block in range(len(start) - 1):
        figures = per_node[block]
        for column in range(start[block], start[block + 1]):
            total = 0.0
            for at in range(nodes.shape[1]):
                total += figures[nodes[column, at]]
            found[column] = total
