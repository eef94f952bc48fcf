"""What stands in the way of one more instance of a service, in words: stock, refusals, policies."""

import math
from collections.abc import Iterator

import numpy as np

from schemas.problems import Service
from solver.candidates import Templates
from solver.columns import Question
from solver.places import Room
from solver.program import Solved
from solver.shapes import Flags
from solver.sites import fitting


def obstacles(question: Question, solved: Solved, service: Service) -> str:
    """What stands in the way of one more instance of a service."""
    problem, library = question.problem, question.library
    keys = {key for key in _halves(question, service) if any(question.shelves.of(key))}
    if not keys:
        return _why_no_template(library, service.key)
    excluded = set(_excluded(question, keys))
    short = _short(question, solved, keys) - excluded
    withheld = {
        reason
        for stock in problem.stocks
        if stock.configuration in short and stock.configuration not in problem.excluded_configurations
        for reason in stock.refused
    }
    refused = withheld | set(_refusals(question, keys))
    parts = ["half rule: no instance counts for more than half"] * _is_thin(question, solved, service)
    parts += _unsuited(question, service, keys)
    parts += [f"stock of {', '.join(sorted(short))}"] * bool(short)
    parts += [f"excluded: {', '.join(sorted(excluded))}"] * bool(excluded)
    parts += [f"refused: {', '.join(sorted(refused))}"] * bool(refused)
    parts += sorted(_full_limits(question, solved, keys))
    return "; ".join(parts) or "work limit of the solver"


def _halves(question: Question, service: Service) -> set[str]:
    """Services that could serve it: itself, and where it may be served apart both halves."""
    apart = {f"{p.model}/{p.slo_class}/both" for p in question.problem.policy.disaggregation}
    parts = [service.model_copy(update={"phase": phase}).key for phase in ("prefill", "decode")]
    return {service.key, *parts} if service.key in apart else {service.key}


def _excluded(question: Question, keys: set[str]) -> Iterator[str]:
    """Configurations of the services' templates that the question rules out, wherever they are."""
    names = question.shelves.configurations
    used = {names[c] for key in keys for kind in question.shelves.of(key) for c in kind.most}
    yield from used & set(question.problem.excluded_configurations)


def _unsuited(question: Question, service: Service, keys: set[str]) -> list[str]:
    """What makes every template of the services useless, whatever there is of stock."""
    policy, kinds = question.problem.policy, [k for key in keys for k in question.shelves.of(key)]
    allowed = policy.variants.get(service.model)
    variants = sorted({kind.variant for kind in kinds})
    if allowed is not None and not set(variants) & set(allowed):
        return [f"variants: none of {', '.join(variants)} is good enough"]
    lost = policy.lost_per_node(service.model)
    if all((lost * kind.size >= 1).all() for kind in kinds):
        return ["restarts: instances fail as fast as they recover"]
    return []


def _short(question: Question, solved: Solved, keys: set[str]) -> set[str]:
    """Configurations of which some pool has less left than some template of the services takes."""
    rooms = _rooms_left(question, solved)
    most: dict[int, int] = {}
    for kind in (kind for key in keys for kind in question.shelves.of(key)):
        most |= {c: max(count, most.get(c, 0)) for c, count in kind.most.items()}
    if not rooms:  # no pool at all
        return {question.shelves.configurations[c] for c in most}
    short = {name for room in rooms.values() for name in room.short(most)}
    dear = {
        name for name, price in zip(question.program.rows.name, solved.row_price, strict=True) if price > 0
    }
    # With many templates nearly everything is too small for one of them: what costs something tells more.
    told = {name for name in short if any(row.startswith(f"stock of {name} in ") for row in dear)}
    return told or short


def _rooms_left(question: Question, solved: Solved) -> dict[str, Room]:
    rooms = {place.pool.key: Room(place) for place in question.places}
    for b, row, count in solved.counts:
        rooms[question.pool(b).key].take(question.uses(b, row), count)
    return rooms


def _refusals(question: Question, keys: set[str]) -> Iterator[str]:
    """What refused a model where there is the stock for it."""
    at = {name: c for c, name in enumerate(question.shelves.configurations)}
    for site in (site for site in question.offered if site.asked.service.key in keys):
        for unfit in question.problem.unfit:
            here = (unfit.model, unfit.pool.key) == (site.asked.service.model, site.place.pool.key)
            c = at.get(unfit.configuration)
            if here and c is not None and any(c in site.kind.nodes[row] for row in fitting(site)):
                yield f"{unfit.reason} on {unfit.configuration} in {unfit.pool.key}"


def _full_limits(question: Question, solved: Solved, keys: set[str]) -> Iterator[str]:
    """Policies that leave no room for one more instance of the services, wherever stock is left for it."""
    if not question.limits:
        return
    blocks = [b for b, site in enumerate(question.sites) if site.asked.service.key in keys]
    left, rooms = _left(question, solved), _rooms_left(question, solved)
    places = {b: _with_stock(question, b, rooms) for b in blocks}
    if not any(there.any() for there in places.values()):
        places = {b: np.ones(len(question.sites[b].kind), np.bool_) for b in blocks}
    for row in question.limits:
        draws = [_least_draw(question, b, row, there) for b, there in places.items() if there.any()]
        if draws and min(draws) > left[row] + 1e-9:
            yield question.program.rows.name[row]


def _with_stock(question: Question, b: int, rooms: dict[str, Room]) -> Flags:
    """[n]: whether a node of each kind that a template has is left."""
    site = question.sites[b]
    room = rooms[site.place.pool.key]
    free = [bool(offered) and room.most({c: 1}) > 0 for c, offered in enumerate(site.offered)]
    return np.asarray(np.array([*free, True])[site.kind.nodes].all(axis=1), np.bool_)


def _left(question: Question, solved: Solved) -> list[float]:
    """[R]: what the plan leaves of each row."""
    program = question.program
    left = program.rows.right.copy()
    for b, row, count in solved.counts:
        block = program.blocks[b]
        uses, cover = question.uses(b, row), float(program.families[block.family].cover[row])
        usd = sum(float(block.price[c]) * nodes for c, nodes in uses.items())
        for term in block.terms:
            left[term.row] -= count * (term.instance + term.cover * cover + term.usd * usd)
    for k, row, amount in program.extras.draws:
        left[row] -= amount * solved.extras[k]
    found: list[float] = left.tolist()
    return found


def _least_draw(question: Question, b: int, row: int, there: Flags) -> float:
    """The least that one more instance of some of a block's templates draws on a row by its policy."""
    block = question.program.blocks[b]
    family = question.program.families[block.family]
    usd, cover = np.append(block.price, 0.0)[family.nodes[there]].sum(axis=1), family.cover[there]
    draws = [t.instance + t.cover * cover + t.usd * usd for t in block.terms if t.row == row]
    return float(np.min(sum(draws))) if draws else -math.inf


def _is_thin(question: Question, solved: Solved, service: Service) -> bool:
    """Whether what is chosen would do if an instance counted for all it gives."""
    asked = question.asked[service.key]
    if asked.most >= 1:
        return False
    given = 0.0
    for b, row, count in solved.counts:
        site = question.sites[b]
        if site.asked is asked:
            kept = 1 - asked.lost_per_node * int(site.kind.size[row])
            given += count * float(site.kind.throughput[row]) * kept
    return given >= asked.rate


def _why_no_template(library: Templates, key: str) -> str:
    refused = next((r for r in library.refused if r.service.key == key), None)
    if refused is None:
        return "the library was not built for this service"
    return "no template meets the SLO" if "slo-too-tight" in refused.reasons else "no template fits"
