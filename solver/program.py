"""The question of the allocation as arrays: the integer program that `solver.bounds` solves and proves.

    min   sum_j (p_j x_j + k_j max(0, x_j - running_j)) + sum_k d_k y_k
    s.t.  cover, per service s:  sum_j a_j x_j + sum_k e_k y_k + u_s >= need_s
          rows i:                sum_j A_ij x_j + sum_k G_ik y_k <= b_i
          x whole, least_j <= x_j <= limit_j;  low_k <= y_k <= high_k, whole or not;  0 <= u_s <= need_s

There are millions of columns j, so none is an object. They lie in **blocks**: the templates of one variant
of a service (a `Family`, shared by its blocks) in one pool. A column is named (block, row of the family). All
of a block is linear in the nodes that its templates use: configuration c costs `price[c]` a node, `start[c]`
more a node that is newly started, and draws on some rows; a few rows may count instances, shares covered or
USD. So pricing a block is one sum over a template's nodes. What differs from column to column (runs now,
pinned) is listed apart.

What a row means is up to whoever builds the program (`Rows.name`). Unmet shares weigh `weight_s`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = NDArray[np.int8]

FREE = 1 << 30
"""A limit that limits nothing."""

Step = Literal["worst", "total", "cost"]
"""What is minimised, one after the other: the largest weighted unmet share, their sum, the cost."""


@dataclass(frozen=True, eq=False)
class Family:
    """Templates of one variant of one service; n rows."""

    service: int
    nodes: Bytes
    """[n, most nodes]: the configuration of each node, -1 beyond the last (`Kept.combination`)."""
    cover: Floats
    """[n]: share of the service's demand that one instance covers, capped (`cap_s`); above 0."""

    def __len__(self) -> int:
        return len(self.cover)


class Draw(NamedTuple):
    """One node of a configuration counts `amount` in a row."""

    configuration: int
    row: int
    amount: float


class Term(NamedTuple):
    """One instance of any column of a block counts in a row, by any of these."""

    row: int
    instance: float = 0.0
    cover: float = 0.0
    """Times the share that it covers."""
    usd: float = 0.0
    """Times its price, without start-up."""


@dataclass(frozen=True, eq=False)
class Block:
    """A family in a pool: a column for each of its rows."""

    family: int
    pool: str
    price: Floats
    """[C]: USD per hour of a node."""
    start: Floats
    """[C]: USD per hour more of a node of a new instance (K times its price)."""
    offered: NDArray[np.bool_]
    """[C]: whether the pool has the configuration at all; columns that use another do not exist."""
    draws: tuple[Draw, ...]
    terms: tuple[Term, ...] = ()
    surcharge: Floats | None = None
    """[n]: USD per hour more of an instance (complexity, risk); None: nothing."""
    limit: Ints | None = None
    """[n]: most instances, 0 where the column does not exist; None: no such limit."""


class Special(NamedTuple):
    """A column that runs now or is pinned."""

    block: int
    row: int
    running: int = 0
    """So many instances pay no start-up."""
    least: int = 0
    limit: int = FREE


@dataclass(frozen=True, eq=False)
class Rows:
    """b and what each row is called."""

    name: tuple[str, ...]
    right: Floats


@dataclass(frozen=True, eq=False)
class Extras:
    """The variables y; an extra covers at most one service."""

    name: tuple[str, ...] = ()
    price: Floats = field(default_factory=lambda: np.zeros(0))
    low: Floats = field(default_factory=lambda: np.zeros(0))
    high: Floats = field(default_factory=lambda: np.zeros(0))
    """Finite."""
    whole: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    aside: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Nobody pays their price: it only says how much they are to be avoided, so no gap is relative to it."""
    covers: tuple[tuple[int, int, float], ...] = ()
    """(extra, service, e > 0)."""
    draws: tuple[tuple[int, int, float], ...] = ()
    """(extra, row, G)."""


@dataclass(frozen=True, eq=False)
class Program:
    """The whole question."""

    services: tuple[str, ...]
    weight: Floats
    """[S]: of an unmet share, above 0."""
    families: tuple[Family, ...]
    blocks: tuple[Block, ...]
    rows: Rows
    specials: tuple[Special, ...] = ()
    """Each column once, in rising order."""
    extras: Extras = field(default_factory=Extras)
    need: Floats | None = None
    """[S]: share to cover: 1, or 0 for a service whose columns are wanted by rows only; None: all 1."""
    steps: tuple[Step, ...] = ("worst", "total", "cost")

    @cached_property
    def needs(self) -> Floats:
        return np.ones(len(self.services)) if self.need is None else self.need

    @property
    def size(self) -> int:
        """Columns, with those that do not exist."""
        return sum(len(self.families[block.family]) for block in self.blocks)


@dataclass(frozen=True, eq=False)
class Picked:
    """Some columns written out; m of them, in rising order of (block, row)."""

    block: Ints
    row: Ints
    service: Ints
    cover: Floats
    price: Floats
    """USD per hour of an instance that runs already."""
    start: Floats
    """USD per hour more of a new one."""
    running: Ints
    least: Ints
    limit: Ints
    """Counts that no plan exceeds: of the column itself, and of rows that it alone would break."""
    term_column: Ints
    """With `term_row` and `term_amount`, the entries of A."""
    term_row: Ints
    term_amount: Floats

    def __len__(self) -> int:
        return len(self.block)


class Ends(NamedTuple):
    """What earlier steps promised: later ones leave no more unmet than this."""

    worst: float = np.inf
    total: float = np.inf


@dataclass(frozen=True, eq=False)
class Partial:
    """An answer over some columns, to one step."""

    counts: Ints
    """[m]."""
    extras: Floats
    value: float
    """Of the step's objective."""
    bound: float
    """No choice of these columns does better."""
    nodes: int = 0


class Finish(Protocol):
    """The integer program over some columns: the best answer below the cutoff, None if there is none.
    `solver.allocation` has it in Pyomo."""

    def __call__(
        self,
        program: Program,
        picked: Picked,
        step: Step,
        ends: Ends,
        cutoff: float,
        *,
        gap: float = ...,
        node_limit: int = ...,
    ) -> Partial | None: ...


class Count(NamedTuple):
    """x of a column, above 0."""

    block: int
    row: int
    instances: int


class Proof(NamedTuple):
    """What a step reached, and what cannot be beaten."""

    step: Step
    value: float
    bound: float
    aside: float = 0.0
    """Of the value: prices that nobody pays (`Extras.aside`)."""

    @property
    def gap(self) -> float:
        """Relative to what is paid for the cost, which is all of it where that is nothing; of unmet shares as
        it is."""
        over, paid = max(0.0, self.value - self.bound), self.value - self.aside
        return min(1.0, over / paid) if self.step == "cost" and paid > 0 else over


@dataclass(frozen=True, eq=False)
class Solved:
    """The best plan found, with its proof."""

    counts: tuple[Count, ...]
    """In rising order."""
    extras: Floats
    unmet: Floats
    """[S]: share of each need that is left."""
    cost: float
    """USD per hour, without start-up: prices of instances and extras."""
    penalty: float
    """USD per hour, of start-up."""
    proofs: tuple[Proof, ...]
    """Of the steps that were needed: where demand can be met, of the cost alone."""
    row_price: Floats
    """[R]: shadow price, USD per hour that one more unit of a row would save, at the relaxation."""
    service_price: Floats
    """[S]: USD per hour of a service's whole need, at the relaxation."""
    survivors: int = 0
    """Columns that the proof did not exclude by itself."""
    iterations: int = 0
    nodes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """By part of the search, by the clock that was passed in; else empty."""

    @property
    def value(self) -> float:
        return self.cost + self.penalty

    @property
    def bound(self) -> float:
        """On cost and penalty, for what is left unmet."""
        return self.proofs[-1].bound

    @property
    def gap(self) -> float:
        return self.proofs[-1].gap


Better = Callable[[Solved], None]
"""Is told of a plan that a search has, while it goes on."""
