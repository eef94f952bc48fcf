"""What can be had, where, at what price: offers, refusals, and the stock A_r(c) they add up to."""

from collections.abc import Iterable

from schemas.events import AvailabilityChanged, ClaimRefused, PriceChanged
from schemas.policy import CorePolicy
from schemas.problems import Pool, Stock
from streams.core.fleet import is_going
from streams.core.state import ClaimState, OfferState, State, stock_key


def absorb(state: State, event: AvailabilityChanged | PriceChanged) -> str | None:
    """Take the newer word of a source; returns why a price was quarantined instead, if it was."""
    offer = state.offers.setdefault(event.offer.key, OfferState(offer=event.offer))
    if isinstance(event, PriceChanged):
        return _absorb_price(state, offer, event)
    if event.at_ms >= offer.obtainable_at_ms:
        offer.obtainable, offer.obtainable_at_ms = event.obtainable, event.at_ms
    return None


def _absorb_price(state: State, offer: OfferState, event: PriceChanged) -> str | None:
    """A price far from the last is more likely a wrong unit than a market move: the last one stays."""
    if event.at_ms < offer.price_at_ms:
        return None
    known, offer.price_at_ms = offer.usd_per_hour, event.at_ms
    jump = state.policy.price_jump if state.policy is not None else None
    if known is not None and jump is not None and not known / jump <= event.usd_per_hour <= known * jump:
        return (
            f"{event.offer.key}: {event.usd_per_hour} USD/h after {known} USD/h, "
            f"expected a change of less than {jump} times"
        )
    offer.usd_per_hour = event.usd_per_hour
    return None


def absorb_refusal(state: State, event: ClaimRefused, policy: CorePolicy) -> None:
    """Remember that a pool had none, for as long as the refusal says."""
    asked = state.claims.get(event.claim)
    if asked is None:
        return
    wait = policy.refusal_memory_ms if event.terminal else event.retry_after_ms
    refuse(state, asked.claim.pool, asked.claim.configuration, wait)


def refuse(state: State, pool: Pool, configuration: str, for_ms: int) -> None:
    state.refused_until_ms[stock_key(pool, configuration)] = state.now_ms + for_ms


def forget_refusals(state: State) -> None:
    """Drop the refusals whose time is over."""
    state.refused_until_ms = {k: until for k, until in state.refused_until_ms.items() if until > state.now_ms}


def obtainable(state: State, pool: Pool, configuration: str) -> int | None:
    """How many more nodes could be had: the least over the sources; None when none says."""
    known = [offer.obtainable for offer in _of(state, pool, configuration) if offer.obtainable is not None]
    if not known:
        return None
    return 0 if stock_key(pool, configuration) in state.refused_until_ms else min(known)


def price(state: State, pool: Pool, configuration: str) -> float | None:
    """The latest price any source gave, USD per hour."""
    priced = [
        (offer.price_at_ms, offer.offer.source, offer.usd_per_hour)
        for offer in _of(state, pool, configuration)
        if offer.usd_per_hour is not None
    ]
    return max(priced)[2] if priced else None


def _of(state: State, pool: Pool, configuration: str) -> Iterable[OfferState]:
    prefix = f"{stock_key(pool, configuration)}|"
    return (offer for key, offer in state.offers.items() if key.startswith(prefix))


def stocks(state: State) -> list[Stock]:
    """A_r(c): held nodes that will stay plus obtainable ones, where price and availability are known.

    A granted node is held before it registers: its pool offers it no more, and it may take minutes.
    """
    found = {
        stock_key(o.offer.pool, o.offer.configuration): (o.offer.pool, o.offer.configuration)
        for o in state.offers.values()
    }
    result = []
    for _, (pool, configuration) in sorted(found.items()):
        more, usd = obtainable(state, pool, configuration), price(state, pool, configuration)
        if more is None or usd is None:
            continue
        held = sum(_is_held(state, c, pool, configuration) for c in state.claims.values())
        result.append(Stock(pool=pool, configuration=configuration, nodes=held + more, usd_per_hour=usd))
    return result


def _is_held(state: State, held: ClaimState, pool: Pool, configuration: str) -> bool:
    """Whether a claim has its node. A suspect one counts: what runs there stays until it is lost."""
    if (held.claim.pool, held.claim.configuration) != (pool, configuration) or held.claim.node is None:
        return False
    node = state.nodes.get(held.claim.node)
    return node is None or not is_going(node)
