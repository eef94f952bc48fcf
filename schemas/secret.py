"""What errors must not show."""

import re

_SECRET = re.compile("passw|api.?key", re.IGNORECASE)


def is_secret(text: str) -> bool:
    """Whether a field's name, or what was given for several fields, speaks of keys or passwords.

    Names that are misspelt count too: what they were given is no less secret.
    """
    return _SECRET.search(text) is not None
