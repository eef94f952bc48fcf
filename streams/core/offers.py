"""What can be had, where, at what price: offers, refusals, and the stock A_r(c) they add up to."""

from collections import Counter
from collections.abc import Iterable

from schemas.events import AvailabilityChanged, ClaimRefused, PriceChanged
from schemas.policy import CorePolicy
from schemas.problems import Pool, Stock
from streams.core import refusals
from streams.core.fleet import is_going, is_healthy
from streams.core.state import OfferState, State, stock_key


def absorb(state: State, event: AvailabilityChanged | PriceChanged) -> None:
    """Take the newer word of a source."""
    offer = state.offers.setdefault(event.offer.key, OfferState(offer=event.offer))
    if isinstance(event, PriceChanged):
        if event.at_ms >= offer.price_at_ms:
            _absorb_price(state, offer, event)
    elif event.at_ms >= offer.obtainable_at_ms:
        offer.obtainable, offer.obtainable_at_ms = event.obtainable, event.at_ms


def _absorb_price(state: State, offer: OfferState, event: PriceChanged) -> None:
    """A price far from the last is more likely a wrong unit than a market move: the last one stays."""
    offer.price_at_ms, offer.heard_ms = event.at_ms, state.now_ms
    policy, usd = state.policy, event.usd_per_hour
    if policy is None or offer.usd_per_hour is None or _is_near(usd, offer.usd_per_hour, policy):
        offer.usd_per_hour, offer.doubted_usd = usd, None
    elif offer.doubted_usd is None or not _is_near(usd, offer.doubted_usd, policy):
        offer.doubted_usd, offer.doubted_since_ms = usd, state.now_ms
    elif state.now_ms - offer.doubted_since_ms >= policy.price_doubt_ms:
        offer.usd_per_hour, offer.doubted_usd = usd, None


def _is_near(usd: float, known: float, policy: CorePolicy) -> bool:
    return known / policy.price_jump <= usd <= known * policy.price_jump


def standing_alerts(state: State, policy: CorePolicy) -> dict[str, str]:
    """Prices in quarantine, and prices that are used and old, by alert name."""
    alerts: dict[str, str] = {}
    for key, offer in sorted(state.offers.items()):
        if offer.doubted_usd is not None:
            alerts[f"PriceQuarantined:{key}"] = (
                f"{key}: {offer.doubted_usd} USD/h after {offer.usd_per_hour} USD/h, "
                f"expected a change of less than {policy.price_jump} times"
            )
        age_ms = state.now_ms - offer.heard_ms
        if offer.usd_per_hour is not None and age_ms >= policy.price_stale_ms:
            alerts[f"PriceStale:{key}"] = (
                f"{key}: nothing newer than {offer.usd_per_hour} USD/h for {age_ms // 3_600_000} h"
            )
    return alerts


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
    return _latest_price(_of(state, pool, configuration))


def _latest_price(offers: Iterable[OfferState]) -> float | None:
    priced = [(o.price_at_ms, o.offer.source, o.usd_per_hour) for o in offers if o.usd_per_hour is not None]
    return max(priced)[2] if priced else None


def _of(state: State, pool: Pool, configuration: str) -> Iterable[OfferState]:
    prefix = f"{stock_key(pool, configuration)}|"
    return (offer for key, offer in state.offers.items() if key.startswith(prefix))


def stocks(state: State) -> list[Stock]:
    """A_r(c): held nodes that will stay plus obtainable ones, where price and availability are known.

    A granted node is held before it registers: its pool offers it no more, and it may take minutes.
    """
    offered: dict[str, list[OfferState]] = {}
    for offer in state.offers.values():
        offered.setdefault(stock_key(offer.offer.pool, offer.offer.configuration), []).append(offer)
    held, refused = _held(state), refusals.of_nodes(state)
    return [
        stock
        for key, found in sorted(offered.items())
        if (stock := _stock(state, key, found, held[key], refused.get(key, ()))) is not None
    ]


def _stock(
    state: State, key: str, offers: list[OfferState], held: int, refused: tuple[str, ...]
) -> Stock | None:
    known = [offer.obtainable for offer in offers if offer.obtainable is not None]
    usd = _latest_price(offers)
    if not known or usd is None:
        return None
    more = 0 if key in state.refused_until_ms else min(known)
    return Stock(
        pool=offers[0].offer.pool,
        configuration=offers[0].offer.configuration,
        nodes=held + more,
        usd_per_hour=usd,
        refused=refused,
    )


def _held(state: State) -> Counter[str]:
    """Granted nodes that will stay, by stock key.

    One on which nothing new may go counts only for what runs on it, which stays.
    """
    used = {claim for i in state.instances.values() if i.wanted for claim in i.claims}
    held: Counter[str] = Counter()
    for key, asked in state.claims.items():
        name = asked.claim.node
        node = state.nodes.get(name) if name is not None else None
        stays = node is None or (not is_going(node) and (key in used or is_healthy(state, node.report.node)))
        if name is not None and stays:
            held[stock_key(asked.claim.pool, asked.claim.configuration)] += 1
    return held
