"""The vLLM arguments that a variant may set: those that change memory or speed and nothing else."""

import re
from collections.abc import Mapping

_WHOLE = (r"[1-9]\d*", "a whole number of at least 1")
_WORD = (r"\S+", "a word")
ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "dtype": _WORD,
    "quantization": _WORD,
    "kv-cache-dtype": _WORD,
    "block-size": _WHOLE,
    "max-model-len": _WHOLE,
    "max-num-seqs": _WHOLE,
    "max-num-batched-tokens": _WHOLE,
    "gpu-memory-utilization": (r"0?\.\d*[1-9]\d*|1(\.0*)?", "a share above 0 and at most 1, such as 0.9"),
    "enable-prefix-caching": (r"true|false", "true or false"),
}
"""Name -> what its value matches, and that in words. The roofline reckons with numbers, no `32k`."""


def wrong_arguments(given: Mapping[str, str]) -> list[str]:
    """What is not allowed, or has a value that vLLM would not take."""
    wrong = []
    for name, value in given.items():
        pattern, expected = ARGUMENTS.get(name, ("", ""))
        if not pattern:
            wrong.append(f"{name!r} is not allowed; expected one of {sorted(ARGUMENTS)}")
        elif not re.fullmatch(pattern, value):
            wrong.append(f"{name}: {value!r}, expected {expected}")
    return wrong
