"""The process that solves: holds the library, answers problem by problem.

Alone in its process, a solver may ignore its limit, leak or crash: whoever asked kills it and starts
another (solving.py). It says nothing but frames on the pipe that was its standard output, and ends
with its parent, however that ends.

A frame is four bytes of length and as much JSON. First comes {"setup": "module:function",
"arguments": {...}}; the answer is {"ready": digest}. Then problem after problem, each answered by
{"answer": ...} or {"failed": reason}, after as many {"incumbent": answer} as the search told of on its way:
whoever asked has them where the last word never comes.
"""

import ctypes
import importlib
import json
import logging
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from schemas.problems import Answer, Problem

LENGTH = struct.Struct(">I")
PARENT_POLL_S = 0.5
PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


Better = Callable[[Answer], None]
"""Is told of a plan that is better than those before, while the search goes on."""


@dataclass(frozen=True)
class Bench:
    """What a setup function gives: a solve function that has its library and is warm."""

    digest: str
    """Of the library."""
    solve: Callable[[Problem, Better], Answer]
    """Raises SolveError where it comes to no answer."""


class SolveError(Exception):
    """A solve came to none; the text is the reason that goes on the log."""


def frame(said: dict[str, Any]) -> bytes:
    body = json.dumps(said).encode()
    return LENGTH.pack(len(body)) + body


def main() -> None:
    """The whole life of the process; its one argument is its parent's id."""
    parent = int(sys.argv[1])
    _end_with(parent)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    # Solvers print to file descriptor 1; the frames go where it pointed, and it points at stderr.
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    questions = sys.stdin.buffer
    if (order := _next(questions)) is None:
        return
    module, _, function = order["setup"].partition(":")
    bench: Bench = getattr(importlib.import_module(module), function)(**order["arguments"])
    replies.write(frame({"ready": bench.digest}))

    def better(answer: Answer) -> None:
        replies.write(frame({"incumbent": answer.model_dump(mode="json")}))

    while (question := _next(questions)) is not None:
        replies.write(frame(_reply(bench, question, better)))


def _reply(bench: Bench, question: dict[str, Any], better: Better) -> dict[str, Any]:
    problem = Problem.model_validate_json(json.dumps(question))
    try:
        return {"answer": bench.solve(problem, better).model_dump(mode="json")}
    except SolveError as error:
        return {"failed": str(error)}
    except Exception as error:
        # Whatever a solver raises is an answer too: this one failed.
        logger.exception("problem %s", problem.id)
        return {"failed": f"{type(error).__name__}: {error}"}


def _next(questions: BinaryIO) -> dict[str, Any] | None:
    head = questions.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None  # the parent closed the pipe
    said: dict[str, Any] = json.loads(questions.read(LENGTH.unpack(head)[0]))
    return said


def _end_with(parent: int) -> None:
    """Die when the parent does: at once on Linux, elsewhere as soon as somebody looks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
