"""Plans of one service against all multisets of columns: bounds, what is listed, and the cheapest."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from solver.board import Board, make_board
from solver.knapsacks import GRID, Ask, Want, fill, table, want
from solver.plans import bound, listed, needed, walk
from solver.pricing import Asked, Effort, Prices, Pricing, free_prices
from solver.program import Floats, Ints, Special
from solver.rounds import slacks
from tests.solver.programs import paper_program, random_program

SEEDS = range(24)
WORK = 1_000_000


@dataclass(frozen=True)
class Every:
    """All plans of a service, each with no instance that it could do without."""

    use: Ints
    worth: Floats
    unmet: Floats


def every_plan(
    board: Board, s: int, price: Floats, share: float, spare: float, dear: float, most: int = 5
) -> Every:
    """By trying all counts."""
    items, rows = board.items, len(board.right)
    columns = range(int(items.begin[s]), int(items.begin[s + 1]))
    use, worth, unmet = [], [], []
    for size in range(most + 1):
        for plan in itertools.combinations_with_replacement(columns, size):
            if any(plan.count(j) > items.most[j] for j in set(plan)):
                continue
            drawn = np.bincount(items.use[list(plan)].ravel(), minlength=rows + 1)[:rows]
            left = max(0.0, share - float(items.cover[list(plan)].sum()))
            left = left if left > 1e-9 else 0.0
            if (drawn <= board.right).all() and left <= spare + 1e-9:
                use.append(drawn)
                worth.append(float(items.cost[list(plan)].sum() + drawn @ price) + dear * left)
                unmet.append(left)
    return Every(np.array(use).reshape(-1, rows), np.array(worth), np.array(unmet))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("share", "spare", "dear"), [(1.0, 0.0, 0.0), (0.7, 0.0, 0.0), (1.0, 0.6, 3.0)])
def test_plans_of_a_service(seed: int, share: float, spare: float, dear: float) -> None:
    board = make_board(random_program(seed, templates=3 + seed % 3))
    rng = np.random.default_rng(seed)
    price, paper, rows = rng.uniform(0, 2, len(board.right)), table(len(board)), len(board.right)
    out, one = listed(20_000, rows), listed(1, rows)
    wanted = want(Ask(np.array([share]), np.array([spare]), np.array([dear])), 0)
    for s in range(2):
        if board.items.begin[s] == board.items.begin[s + 1]:
            continue
        every = every_plan(board, s, price, share, spare, dear)
        own = np.zeros(rows + 1)
        asked = (board.right, wanted)
        for steps in (0, 8):
            least, depth = bound(board.items, s, np.append(price, 0.0), own, *asked, np.inf, steps, paper)
            assert least <= every.worth.min(initial=np.inf) + 1e-9
        if not len(every.worth):
            continue
        best = float(every.worth.min())
        count, whole, _ = walk(
            board.items, s, depth, own, *asked, best + 1.0, True, WORK, paper, table(len(board)), one
        )
        assert (count, whole) == (1, True)
        assert one.worth[0] == pytest.approx(best)
        count, whole, _ = walk(
            board.items, s, depth, own, *asked, best + 1.0, False, WORK, paper, table(len(board)), out
        )
        assert whole
        keep, order = np.zeros(count, np.bool_), np.argsort(out.worth[:count], kind="stable")
        needed(out, order, keep)
        for k in np.flatnonzero(every.worth <= best + 1.0 - 1e-9):
            no_less = (out.use[:count] <= every.use[k]).all(axis=1) & (
                out.worth[:count] <= every.worth[k] + 1e-9
            )
            assert (no_less & (out.unmet[:count] <= every.unmet[k] + 1e-9) & keep).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_listed_plans_are_what_they_say(seed: int) -> None:
    board = make_board(random_program(seed, templates=6))
    rows, paper, out = len(board.right), table(len(board)), listed(5000, len(board.right))
    if board.items.begin[1] == 0:
        return
    price = np.random.default_rng(seed).uniform(0, 1, rows)
    asked = (board.right, Want(1.0, 1.0, 4.0, GRID, GRID))
    _, depth = bound(board.items, 0, np.append(price, 0.0), np.zeros(rows + 1), *asked, np.inf, 0, paper)
    count, *_ = walk(
        board.items, 0, depth, np.zeros(rows + 1), *asked, 8.0, False, WORK, paper, table(len(board)), out
    )
    assert count
    for p in range(count):
        columns = out.columns[p, : out.size[p]]
        drawn = np.bincount(board.items.use[columns].ravel(), minlength=rows + 1)[:rows]
        assert (drawn == out.use[p]).all()
        assert (drawn <= board.right).all()
        assert out.cost[p] == pytest.approx(board.items.cost[columns].sum())
        left = max(0.0, 1.0 - board.items.cover[columns].sum())
        assert out.unmet[p] == pytest.approx(left, abs=1e-8)
        assert out.worth[p] == pytest.approx(out.cost[p] + drawn @ price + 4.0 * left, abs=1e-7)
        assert out.worth[p] <= 8.0


def test_a_table_knows_what_can_be_used_once_only() -> None:
    """An instance that runs costs 1, a new one 3, and two are wanted."""
    program = paper_program([[[1]]], [[0.5]], [[1.0]], [[4]], [Special(0, 0, running=1)], ratio=2.0)
    board = make_board(program)
    paper = table(len(board))
    rows = fill(board.items, 0, np.zeros(2), Want(1.0, 0.0, 0.0, GRID, 0), paper)
    assert (rows, board.items.once.tolist()) == (1, [1])
    assert paper.open[0, GRID] == pytest.approx(1.0 + 3.0)
    assert paper.open[1, GRID] == pytest.approx(6.0)
    assert paper.open[0, GRID // 2] == pytest.approx(1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_prices_bound_every_choice_of_plans(seed: int) -> None:
    """And say no more of a column than the cheapest choice that has it."""
    board = make_board(random_program(seed, templates=3))
    services, rows = 2, len(board.right)
    every, none = np.ones(services), np.zeros(services)
    asked = Asked(Ask(every, none, none), every, scale=1.0)
    least = cheapest_choice(board)
    rng = np.random.default_rng(seed)
    free = free_prices(services, rows)
    for prices in (
        free,
        Prices(rng.uniform(0, 2, rows), 0.0, free.own),
        Pricing(board, asked, Effort()).climb(free),
    ):
        worth, slack = slacks(board, asked, prices)
        base = worth.sum() - prices.base(board.right, asked.total)
        assert base <= min(least.values(), default=np.inf) + 1e-9
        assert (
            Pricing(board, asked, Effort()).look(prices).bound <= min(least.values(), default=np.inf) + 1e-9
        )
        for columns, cost in least.items():
            for j in columns:
                assert base + slack[j] <= cost + 1e-9


def cheapest_choice(board: Board) -> dict[tuple[int, ...], float]:
    """The cost of each pair of plans within the stock, by their columns."""
    found: dict[tuple[int, ...], float] = {}
    each = []
    for s in range(2):
        columns = range(int(board.items.begin[s]), int(board.items.begin[s + 1]))
        each.append(
            [
                plan
                for size in range(1, 4)
                for plan in itertools.combinations_with_replacement(columns, size)
                if board.items.cover[list(plan)].sum() >= 1 - 1e-9
                and not any(plan.count(j) > board.items.most[j] for j in plan)
            ]
        )
    for first, second in itertools.product(*each):
        both = [*first, *second]
        drawn = np.bincount(board.items.use[both].ravel(), minlength=len(board.right) + 1)[:-1]
        if (drawn <= board.right).all():
            found[tuple(both)] = float(board.items.cost[both].sum())
    return found
