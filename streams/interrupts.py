"""What Python itself remembers of interrupts. Imports nothing: `streams.entry` needs it first of all."""

INTERRUPTED = 130
"""The exit code of what was interrupted and has cleaned up."""


def forget() -> None:
    """An interrupt has been dealt with: the exit code shall say so.

    CPython notes a KeyboardInterrupt that passes through the evaluation of a text, as named tuples and
    dataclasses do while modules are imported, and ends the process by SIGINT even where it was caught and
    another exit code asked for (`run_eval_code_obj`). The next evaluation clears the note.
    """
    eval("None")  # noqa: S307  a constant
