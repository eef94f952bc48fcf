"""Performs a `Solve`: in a worker process, under a fuse of wall-clock time from outside.

The limit given to a solver is a wish (HiGHS #2226, #885: not always granted). So the fuse kills the
process and starts the next one at once. What the search told of on its way is the answer then, and says so
(`Answer.stopped`); without that the failure goes on the log as a reason like any other. Every answer is
checked here, out of reach of what found it.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from schemas.problems import Answer, Problem
from solver.verify import verify
from streams.solve_worker import LENGTH, SolveError, frame

__all__ = ["SolveError", "Solver"]

START_S = 600.0
"""A guard against hangs. A library takes some 5 s to build for the whole catalog, once, and its search 10 s
to compile where nobody has."""


class _Worker:
    """One worker process, ready to be asked."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.library = ""
        self.incumbent: dict[str, Any] | None = None
        """The last plan told of on the way to an answer."""

    @classmethod
    async def start(cls, setup: str, arguments: Mapping[str, Any]) -> "_Worker":
        """Raises SolveError if it ends before it is ready; kills it if we are cancelled meanwhile."""
        worker = cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                # Not -m: the module would be there twice, each with a SolveError of its own.
                "from streams.solve_worker import main; main()",
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # Ctrl-C in the terminal is for us; we end it when we have nothing left to ask.
                start_new_session=True,
            )
        )
        try:
            async with asyncio.timeout(START_S):
                worker.library = (await worker.ask({"setup": setup, "arguments": dict(arguments)}))["ready"]
        except TimeoutError:
            await worker.kill()
            raise SolveError(f"start: the solver process was not ready within {START_S:g} s") from None
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Raises SolveError if the process ends without an answer."""
        self.incumbent = None
        questions, replies = self._process.stdin, self._process.stdout
        if questions is None or replies is None:
            raise RuntimeError("the solver process was started without pipes")
        try:
            questions.write(frame(question))
            await questions.drain()
            while "incumbent" in (reply := await _heard(replies)):
                self.incumbent = reply["incumbent"]
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise SolveError(f"crash: the solver process ended with {await self._process.wait()}") from error
        return reply

    @property
    def gone(self) -> bool:
        return self._process.returncode is not None

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class Solver:
    """One worker process, replaced whenever it fails; an async context manager.

    Args:
        setup: `module:function` that the worker calls once with `arguments` (plain JSON data) and
            that returns its `solve_worker.Bench`.
        fuse_s: the most seconds of wall-clock time one solve may take.
    """

    def __init__(self, setup: str, arguments: Mapping[str, Any], fuse_s: float) -> None:
        self._setup = setup
        self._arguments = arguments
        self._fuse_s = fuse_s
        self._worker: asyncio.Task[_Worker] | None = None
        self._turn = asyncio.Lock()
        self._library: str | None = None

    async def __aenter__(self) -> Self:
        self._worker = asyncio.create_task(_Worker.start(self._setup, self._arguments))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._worker is not None:
            await _end(self._worker)
            self._worker = None

    async def library(self) -> str:
        """Digest of the library, once the first worker is warm; later ones have the same library.

        Raises:
            SolveError: the worker does not start.
        """
        if self._library is None:
            self._library = (await self._ready()).library
        return self._library

    async def solve(self, problem: Problem) -> Answer:
        """The answer, in turn: one at a time, the fuse burning from when the worker is asked.

        Where the search fails or is stopped, the last plan that it told of, with the reason in `stopped`.

        Raises:
            SolveError: there is none; the text says why. A cancelled solve ends its process too.
        """
        async with self._turn:
            worker = await self._ready()
            try:
                return _checked(problem, await self._ask(worker, problem))
            except SolveError as error:
                return _best_so_far(problem, worker.incumbent, error)

    async def _ask(self, worker: _Worker, problem: Problem) -> dict[str, Any]:
        """The answer as the worker puts it; raises SolveError where it comes to none in time."""
        try:
            async with asyncio.timeout(self._fuse_s):
                reply = await worker.ask(problem.model_dump(mode="json"))
        except TimeoutError:
            self._replace()
            raise SolveError(f"fuse: no answer to {problem.id} within {self._fuse_s:g} s") from None
        except (SolveError, asyncio.CancelledError):
            self._replace()
            raise
        if "failed" in reply:
            raise SolveError(reply["failed"])
        answer: dict[str, Any] = reply["answer"]
        return answer

    async def _ready(self) -> _Worker:
        """The worker, once it is warm; a new one if the last ended, or never came up."""
        if self._worker is None:
            raise RuntimeError("the solver is closed: use it as an async context manager")
        if self._worker.done() and (self._worker.exception() is not None or self._worker.result().gone):
            self._replace()
        # Shielded: who gives up waiting must not end a worker that others wait for.
        return await asyncio.shield(self._worker)

    def _replace(self) -> None:
        """Kill the worker and start the next one, without waiting for either."""
        old = self._worker
        if old is not None:
            self._worker = asyncio.create_task(self._succeed(old))

    async def _succeed(self, old: asyncio.Task[_Worker]) -> _Worker:
        await _end(old)
        return await _Worker.start(self._setup, self._arguments)


async def _heard(replies: asyncio.StreamReader) -> dict[str, Any]:
    """The next frame; raises IncompleteReadError where the pipe ends before it does."""
    head = await replies.readexactly(LENGTH.size)
    said: dict[str, Any] = json.loads(await replies.readexactly(LENGTH.unpack(head)[0]))
    return said


def _checked(problem: Problem, said: dict[str, Any]) -> Answer:
    """Raises SolveError: it does not answer the problem."""
    answer = Answer.model_validate_json(json.dumps(said))
    if violations := verify(problem, answer):
        raise SolveError(f"check: {violations[0].name}: {violations[0].detail}")
    return answer


def _best_so_far(problem: Problem, incumbent: dict[str, Any] | None, error: SolveError) -> Answer:
    """What the search told of before it failed; raises SolveError where that is nothing, or no answer."""
    if incumbent is None:
        raise error
    try:
        return _checked(problem, incumbent).model_copy(update={"stopped": str(error)})
    except SolveError as wrong:
        raise SolveError(f"{error}; its best plan so far: {wrong}") from error


async def _end(worker: asyncio.Task[_Worker]) -> None:
    worker.cancel()
    with contextlib.suppress(SolveError, asyncio.CancelledError):
        await (await worker).kill()
