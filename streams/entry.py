"""The `coral` console script. It imports next to nothing, so that even a Ctrl-C while the rest is being
imported ends without a traceback.
"""

# ruff: noqa: PLC0415

import gc
import sys

from streams.interrupts import INTERRUPTED, forget


def run() -> None:
    """Run the command line; exits 130 on a Ctrl-C that nobody handled."""
    try:
        gc.disable()  # what is imported stays: looking for garbage in it takes a sixth of the time
        from streams.cli import app

        gc.freeze()
        gc.enable()
        app()
    except KeyboardInterrupt:
        forget()
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    run()
