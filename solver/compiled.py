"""Loops compiled by numba: the searches', which numpy cannot say.

What is compiled is kept beside the source, in `__pycache__`, or in the user's cache where that cannot be
written; `NUMBA_CACHE_DIR` names another folder. Where nothing can be written every process compiles anew,
which takes some 10 s.
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])

BLAS = "scipy.linalg.cython_blas"

# When numba's compiler is loaded it looks for products of matrices, and finds SciPy: a third of a second, a
# sixth of all that a small set-up takes, for what no loop here needs. None marks a module as not to be found.
if BLAS not in sys.modules:
    sys.modules[BLAS] = None  # type: ignore[assignment]
    try:
        import numba.np.arraymath  # noqa: F401 - it looks once, when it is loaded
    finally:
        del sys.modules[BLAS]


def compiled(loop: Loop) -> Loop:
    """Compile a function when it is first called, and let go of Python's lock while it runs."""
    try:
        return cast(Loop, njit(cache=True, nogil=True)(loop))
    except RuntimeError:  # there is no folder to keep it in
        return cast(Loop, njit(nogil=True)(loop))
