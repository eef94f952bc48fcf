"""Addresses that people give: checked where they enter."""

from urllib.parse import SplitResult, urlsplit


def http_url(given: str) -> SplitResult:
    """The parts of an http or https URL.

    Raises:
        ValueError: it is another one, or names no host, or its port is impossible.
    """
    try:
        parts = urlsplit(given)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(letter.isspace() for letter in given):
        raise ValueError(f"{given!r}, expected an http or https URL with a host")
    return parts
