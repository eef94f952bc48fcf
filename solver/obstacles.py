"""What stands in the way of a cheaper plan, and of one more instance of a service."""

import math
from collections.abc import Iterator

import numpy as np

from schemas.problems import Binding, Service
from solver.candidates import Templates
from solver.columns import Question
from solver.places import Room
from solver.program import Floats, Solved
from solver.shapes import Flags
from solver.shelves import Kind, most_of
from solver.sites import fitting

WORTH = 1e-6
"""USD per hour: a limit that is worth no more costs nothing."""
SLACK = 1e-9


def binding(question: Question, solved: Solved) -> tuple[Binding, ...]:
    """The limits that cost something, dearest first.

    Prices are the relaxation's, which may use up what the plan, in whole nodes, does not: named is only what
    leaves no room for one more instance, node or unit.
    """
    left = _left(question, solved)
    prices = {row: usd for row, usd in enumerate(solved.row_price.tolist()) if usd > WORTH}
    found = [
        (usd, question.program.rows.name[row])
        for row, usd in prices.items()
        if row not in question.ties
        and left[row] < _unit(question, row, left) - SLACK
        and not _may_be_raised(question, solved, row, left)
    ]
    ordered = sorted(found, key=lambda pair: (-pair[0], pair[1]))
    return tuple(Binding(limit=name, usd_per_hour=usd) for usd, name in ordered)


def _unit(question: Question, row: int, left: list[float]) -> float:
    """The least that one more instance, node or unit takes of a row, if it takes any."""
    program = question.program
    if row in question.limits:
        draws = [_draws(question, b, row, left) for b in range(len(program.blocks))]
        least = [float(d[np.isfinite(d) & (d > 0)].min(initial=math.inf)) for d in draws]
    else:
        least = [
            draw.amount
            for block, site in zip(program.blocks, question.sites, strict=True)
            for draw in block.draws
            if draw.row == row and draw.configuration in site.kind.most
        ]
    return min((amount for amount in least if math.isfinite(amount)), default=1.0)


def _may_be_raised(question: Question, solved: Solved, row: int, left: list[float]) -> bool:
    """Whether a row is no limit of its own: a node more may be bought, or it asks for what there is not, and
    is told as a breach."""
    draws = question.program.extras.draws
    for extra in (k for k, at, amount in draws if at == row and amount < 0):
        takes = [(at, amount) for k, at, amount in draws if k == extra and amount > 0]
        if extra in question.bought and all(left[at] >= amount - SLACK for at, amount in takes):
            return True
        missing = question.missing.get(extra)
        if missing and missing.floor - round(float(solved.extras[extra])) < missing.asked:
            return True
    return False


def obstacles(question: Question, solved: Solved, service: Service) -> str:
    """What stands in the way of one more instance of a service."""
    problem, library = question.problem, question.library
    keys = {key for key in _halves(question, service) if any(question.shelves.of(key))}
    if not keys:
        return _why_no_template(library, service.key)
    excluded = set(_excluded(question, keys))
    unsuited = _unsuited(question, service, keys)
    short = set() if unsuited else _short(question, solved, keys)
    withheld = {
        reason for stock in problem.stocks if stock.configuration in short for reason in stock.refused
    }
    refused = withheld | set(_refusals(question, keys))
    parts = ["half rule: no instance counts for more than half"] * _is_thin(question, solved, service)
    parts += unsuited
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
    """Configurations of which some pool has less left than some template of the services takes that nothing
    else keeps out: of others there could be any number, and it would not help."""
    rooms, left = _rooms_left(question, solved), _left(question, solved)
    sites = [
        (s, _welcome(question, b, left)) for b, s in enumerate(question.sites) if s.asked.service.key in keys
    ]
    if not sites:  # no pool has the nodes for any
        offered = (s for s in question.offered if s.asked.service.key in keys)
        sites = [(s, ~_is_excluded(question, s.kind)) for s in offered]
    short = {name for s, among in sites for name in rooms[s.place.pool.key].short(_most(s.kind, among))}
    if not sites:  # nor any node for one
        kinds = [kind for key in keys for kind in question.shelves.of(key)]
        wanted = {c for kind in kinds for c in _most(kind, ~_is_excluded(question, kind))}
        short = {question.shelves.configurations[c] for c in wanted}
    dear = {
        name for name, price in zip(question.program.rows.name, solved.row_price, strict=True) if price > 0
    }
    # With many templates nearly everything is too small for one of them: what costs something tells more.
    told = {name for name in short if any(row.startswith(f"stock of {name} in ") for row in dear)}
    return told or short


def _welcome(question: Question, b: int, left: list[float]) -> Flags:
    """[n]: whether policies have room for one more instance of each of a block's templates."""
    welcome = ~_is_excluded(question, question.sites[b].kind)
    for row in question.limits:
        welcome &= _draws(question, b, row, left) <= left[row] + SLACK
    return welcome


def _is_excluded(question: Question, kind: Kind) -> Flags:
    """[n]: whether the question rules out a node of a template."""
    names, excluded = question.shelves.configurations, set(question.problem.excluded_configurations)
    at = [c for c, name in enumerate(names) if name in excluded]
    return np.asarray(np.isin(kind.nodes, at).any(axis=1), np.bool_)


def _most(kind: Kind, among: Flags) -> dict[int, int]:
    """Configuration -> the most nodes of it that one of some templates of a kind has."""
    return kind.most if among.all() else most_of(kind.nodes[among])


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
        draws = [
            float(_draws(question, b, row, left)[there].min()) for b, there in places.items() if there.any()
        ]
        if draws and min(draws) > left[row] + SLACK:
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
        for draw in block.draws:
            left[draw.row] -= count * uses.get(draw.configuration, 0) * draw.amount
        for term in block.terms:
            left[term.row] -= count * (term.instance + term.cover * cover + term.usd * usd)
    for k, row, amount in program.extras.draws:
        left[row] -= amount * solved.extras[k]
    found: list[float] = left.tolist()
    return found


def _draws(question: Question, b: int, row: int, left: list[float]) -> Floats:
    """[n]: what one more instance of each of a block's templates draws on a row by its policy; minus infinity
    where that says nothing of them."""
    block = question.program.blocks[b]
    cover = question.program.families[block.family].cover
    terms = [term for term in block.terms if term.row == row]
    found = np.zeros(len(cover)) if terms else np.full(len(cover), -math.inf)
    for term in terms:
        found += term.instance + term.cover * cover
        if term.usd:
            found += term.usd * _usd(question, b, left)
    return found


def _usd(question: Question, b: int, left: list[float]) -> Floats:
    """[n]: what one more instance of each of a block's templates adds to the bill at least; infinity where
    its nodes have no price. A slice adds the node that has to be bought for it."""
    site, block = question.sites[b], question.program.blocks[b]
    nodes = np.zeros(len(site.offered) + 1)
    for c in np.flatnonzero(site.offered).tolist():
        draws = [draw for draw in block.draws if draw.configuration == c]
        if site.place.is_slice(site.place.names[c]) and any(left[d.row] < d.amount - SLACK for d in draws):
            nodes[c] = min(stock.usd_per_hour for stock in site.place.hosts_of(site.place.names[c]))
    own = site.kind.sums(np.where(site.offered, block.price, math.inf))
    return np.asarray(own + nodes[site.kind.nodes].max(axis=1), np.float64)


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
