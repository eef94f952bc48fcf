"""What errors must not show."""

import re
from collections.abc import Sequence

_SECRET = re.compile("passw|api.?key", re.IGNORECASE)


def is_secret(text: str) -> bool:
    """Whether a field's name, or what was given for several fields, speaks of keys or passwords.

    Names that are misspelt count too: what they were given is no less secret.
    """
    return _SECRET.search(text) is not None


def shown(steps: Sequence[str]) -> Sequence[str]:
    """The way to a value; what follows `api_keys` in it would be a key."""
    return steps[: steps.index("api_keys") + 1] if "api_keys" in steps else steps
