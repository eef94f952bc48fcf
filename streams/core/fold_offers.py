"""Offers of one partition: what is new about them goes to the control log."""

from schemas.events import AvailabilityChanged, AvailabilityOffered, PriceChanged, PriceOffered

REPEAT_MS = 30_000
"""An unchanged offer is said again after so long, so that the core can tell its age from silence."""
MAX_OFFERS = 100_000
"""Remembered offers of a partition; one that is forgotten is merely said again."""

Offered = AvailabilityOffered | PriceOffered
Changed = AvailabilityChanged | PriceChanged


class OfferBook:
    """The last offer of every (kind, key) of one partition."""

    def __init__(self) -> None:
        self._last: dict[tuple[type, str], tuple[Offered, int]] = {}

    def hear(self, offered: Offered, broker_ms: int) -> Changed | None:
        """The change to report, or None for an old offer or one that says nothing new.

        Args:
            broker_ms: the broker's timestamp of the offer.
        """
        key = (type(offered), offered.offer.key)
        last, sent_ms = self._last.pop(key, (None, 0))
        if last is not None and offered.at_ms < last.at_ms:
            self._last[key] = (last, sent_ms)
            return None
        is_news = last is None or _said(last) != _said(offered) or broker_ms - sent_ms > REPEAT_MS
        self._last[key] = (offered, broker_ms if is_news else sent_ms)
        if len(self._last) > MAX_OFFERS:
            del self._last[next(iter(self._last))]
        return _change(offered) if is_news else None


def _said(offered: Offered) -> float:
    return offered.obtainable if isinstance(offered, AvailabilityOffered) else offered.usd_per_hour


def _change(offered: Offered) -> Changed:
    if isinstance(offered, AvailabilityOffered):
        return AvailabilityChanged(offer=offered.offer, obtainable=offered.obtainable, at_ms=offered.at_ms)
    return PriceChanged(offer=offered.offer, usd_per_hour=offered.usd_per_hour, at_ms=offered.at_ms)
