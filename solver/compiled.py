"""Loops compiled by numba: the searches', which numpy cannot say.

What is compiled is kept beside the source, in `__pycache__`, or in the user's cache where that cannot be
written; `NUMBA_CACHE_DIR` names another folder. Where nothing can be written every process compiles anew
what it uses: all of it takes a minute. What is kept of a loop is dropped when its own file changes, not when
that of a loop it calls does: `make setup` compiles all anew after any such change.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.core.dispatcher import Dispatcher

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
        made = njit(cache=True, nogil=True)(loop)
    except RuntimeError:  # there is no folder to keep it in
        made = njit(nogil=True)(loop)
    if isinstance(made, Dispatcher):  # and not the function itself, as NUMBA_DISABLE_JIT has it
        _by_type(made)
    return cast(Loop, made)


def _by_type(made: Any) -> None:
    """Have loops that call this one with a constant share what is compiled for others of its type.

    Numba would compile it anew for each constant, which took a quarter of all time and made no solve faster.
    """
    template = made.get_call_template
    plain: Callable[[Any], Any] = types.unliteral

    def shared(args: Iterable[Any], kws: Mapping[str, Any]) -> Any:
        return template(
            tuple(plain(given) for given in args), {name: plain(given) for name, given in kws.items()}
        )

    made.get_call_template = shared
