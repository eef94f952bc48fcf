"""The engines of one node as tasks: starts or adopts them, passes requests on, tells what becomes of them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from agents.engine import End, Engine, EngineError, EngineFactory, EngineSpec, Progress
from agents.ledger import Gone, Observation, RankKey, Ready

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Wait before a request that failed is made again."""
REQUEST_S = 5.0
"""How long an agent that lets go waits for what it asked of its engines to be passed on."""


class EngineRoom:
    """Whatever an engine raises fails that engine, and nothing else.

    Args:
        observe: told of every engine once when it is up and once when it is gone. What it raises is its
            caller's own fault, kept in `broken`; from then on it is told nothing.
    """

    def __init__(self, make: EngineFactory, observe: Callable[[Observation], None]) -> None:
        self.broken: Exception | None = None
        self._make = make
        self._observe = observe
        self._engines: dict[RankKey, Engine] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._requests: set[asyncio.Task[None]] = set()

    # --- what is there -------------------------------------------------------------------------------
    def progress(self, key: RankKey) -> Progress | None:
        """What it does while it starts."""
        engine = self._engines.get(key)
        return None if engine is None else engine.progress

    def in_flight(self, key: RankKey) -> int:
        engine = self._engines.get(key)
        return 0 if engine is None else engine.in_flight

    # --- what is done --------------------------------------------------------------------------------
    def start(self, spec: EngineSpec) -> None:
        engine = self._engines[spec.key] = self._make()
        # A task of its own, made here, so that no request overtakes it and an agent that lets go awaits it.
        starting = _into(self._requests, engine.start(spec))
        _into(self._lives, self._live(spec.key, engine, starting))

    async def adopt(self, key: RankKey) -> bool:
        """Go on with what an earlier agent left; False where there is nothing, or nothing that can be."""
        engine = self._make()
        try:
            if not await engine.adopt(key):
                return False
        except Exception:
            log.exception("%s cannot be adopted", key)
            return False
        self._engines[key] = engine
        _into(self._lives, self._live(key, engine, None))
        return True

    def drain(self, key: RankKey) -> None:
        self._ask(key, self._engines[key].drain)

    def stop(self, key: RankKey) -> None:
        self._ask(key, self._engines[key].stop)

    def may_pull(self, key: RankKey) -> None:
        self._ask(key, self._engines[key].may_pull)

    async def emptied(self) -> None:
        """Wait until all are gone."""
        while tasks := self._lives | self._requests:
            await asyncio.wait(tasks)

    async def let_go(self) -> None:
        """Leave all as they are, once what was asked of them is passed on; nothing is observed any more."""
        if self._requests:
            await asyncio.wait(self._requests, timeout=REQUEST_S)
        while tasks := self._lives | self._requests:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # --- one engine ----------------------------------------------------------------------------------
    async def _live(self, key: RankKey, engine: Engine, starting: asyncio.Task[None] | None) -> None:
        """Its whole life, from its start (None for one that was adopted) to its end."""
        try:
            if starting is not None:
                await starting
            end = await self._watch(key, engine)
        except EngineError as error:
            end = End(str(error), error.refusal)
        except Exception as error:
            log.warning("%s failed", key, exc_info=error)
            self._ask(key, engine.stop)
            end = End(f"{type(error).__name__}: {error}")
        del self._engines[key]
        self._tell(Gone(key, end.reason, end.refusal))

    async def _watch(self, key: RankKey, engine: Engine) -> End:
        """Tell that it is up, if it ever is, and return once it is gone."""
        ready, gone = asyncio.create_task(engine.ready()), asyncio.create_task(engine.gone())
        try:
            await asyncio.wait({ready, gone}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                up = ready.result()
                self._tell(Ready(key, up.endpoint, up.verified, up.start_s, up.pull_s))
            return await gone
        finally:
            ready.cancel()
            gone.cancel()

    def _tell(self, event: Observation) -> None:
        if self.broken is None:
            try:
                self._observe(event)
            except Exception as error:
                log.exception("%s could not be taken in", event)
                self.broken = error

    def _ask(self, key: RankKey, request: Callable[[], Coroutine[None, None, None]]) -> None:
        """Have a request done: what fails, on a full disk say, is asked again for as long as it may help."""

        async def asked() -> None:
            while True:
                try:
                    return await request()
                except Exception:
                    log.exception("%s did not take a request", key)
                await asyncio.sleep(AGAIN_S)
                if key not in self._engines:
                    return None

        _into(self._requests, asked())


def _into(tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Run `work` as a task that is among `tasks` until it is done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
