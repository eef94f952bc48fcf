"""Offers: said when they change, repeated when they are old, never taken back by an older one."""

import pytest

from schemas.events import AvailabilityChanged, AvailabilityOffered, Offer, PriceChanged, PriceOffered
from schemas.problems import Pool
from streams.core import fold_offers
from streams.core.fold_offers import REPEAT_MS, OfferBook

POOL = Pool(cloud="gcp", region="us-central1", market="spot")


def offer(source: str = "feed") -> Offer:
    return Offer(pool=POOL, configuration="2xL4", source=source)


def price(usd: float, at_ms: int, source: str = "feed") -> PriceOffered:
    return PriceOffered(offer=offer(source), usd_per_hour=usd, at_ms=at_ms)


def test_a_change_is_said_once() -> None:
    book = OfferBook()
    assert book.hear(price(1.5, 10), 10) == PriceChanged(offer=offer(), usd_per_hour=1.5, at_ms=10)
    assert book.hear(price(1.5, 20), 20) is None
    assert book.hear(price(1.4, 30), 30) == PriceChanged(offer=offer(), usd_per_hour=1.4, at_ms=30)


def test_availability_and_price_of_one_offer_are_apart_and_so_are_sources() -> None:
    book = OfferBook()
    stock = AvailabilityOffered(offer=offer(), obtainable=0, at_ms=1)
    assert book.hear(price(1.5, 1), 1) is not None
    assert book.hear(stock, 1) == AvailabilityChanged(offer=offer(), obtainable=0, at_ms=1)
    assert book.hear(price(1.5, 1, "other"), 1) is not None


def test_an_unchanged_offer_is_repeated_after_30_s() -> None:
    book = OfferBook()
    book.hear(price(1.5, 0), 1000)
    assert book.hear(price(1.5, 1), 1000 + REPEAT_MS) is None
    repeated = book.hear(price(1.5, 2), 1001 + REPEAT_MS)
    assert repeated is not None
    assert repeated.at_ms == 2
    assert book.hear(price(1.5, 3), 1002 + REPEAT_MS) is None


def test_an_older_offer_is_dropped() -> None:
    book = OfferBook()
    book.hear(price(1.5, 100), 0)
    assert book.hear(price(9.9, 99), 1) is None
    assert book.hear(price(1.5, 101), 2) is None, "it took no note of the older one"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_offers, "MAX_OFFERS", 2)
    book = OfferBook()
    for n in range(5):
        book.hear(price(1.5, 0, f"s{n}"), 0)
    assert len(book._last) == 2
    assert book.hear(price(1.5, 0, "s0"), 0) is not None, "forgotten, so said again"
