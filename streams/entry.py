"""The `coral` console script. It imports next to nothing, so that even a Ctrl-C while the rest is being
imported ends without a traceback.
"""

# ruff: noqa: PLC0415

import sys

INTERRUPTED = 130


def run() -> None:
    """Run the command line; exits 130 on a Ctrl-C that nobody handled."""
    try:
        from streams.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    run()
