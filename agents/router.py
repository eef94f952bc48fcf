"""`coral router`: the OpenAI-compatible door of the fleet as a process, on uvloop where that is installed.

It follows `coral.plans` and needs nothing else. With Kafka away it starts and goes on by the last plan on its
disk, and keeps its telemetry for a while. Told to end, it takes nothing new and finishes what is open.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from aiohttp import web

from agents.bus import Bus
from agents.files import write_atomically
from agents.lifespan import on_signals, until, within
from agents.plan_keeping import KeptPlan, with_kafka
from agents.proxy import allow_many_connections, new_runner
from agents.router_door import RouterDoor
from agents.router_telemetry import next_second_s
from agents.routing import Kind
from schemas.catalog import ServiceLevel
from schemas.settings import KafkaSettings, RouterSettings

log = logging.getLogger(__name__)

BACKLOG = 1024
DRAIN_S = 600.0
FAREWELL_S = 2.0
"""How long a router that ends waits for its last samples to be written."""


def run(
    kafka: KafkaSettings,
    prefix: str,
    state_dir: Path,
    settings: RouterSettings,
    name: str,
    levels: Mapping[Kind, ServiceLevel] | None = None,
    drain_s: float = DRAIN_S,
) -> None:
    """`run_router`, blocking."""
    allow_many_connections()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run_router(kafka, prefix, state_dir, settings, name, levels, drain_s))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  there is none for some platforms
    except ImportError:
        return None
    return uvloop.new_event_loop


async def run_router(
    kafka: KafkaSettings,
    prefix: str,
    state_dir: Path,
    settings: RouterSettings,
    name: str,
    levels: Mapping[Kind, ServiceLevel] | None = None,
    drain_s: float = DRAIN_S,
) -> None:
    """Be a router until SIGTERM or SIGINT; a second one cuts what is still open.

    Args:
        state_dir: the router's own folder: `plan.json`, and `endpoint` (host:port) once it serves.
        name: names its telemetry; no two routers have the same.
        levels: what the fleet serves and what its catalog promises, by (model, SLO class).
        drain_s: how long open requests may take at the end before they are cut.

    Raises:
        OSError: the address or the folder cannot be used.
    """
    told, hurry = on_signals()
    door = RouterDoor(settings, name, levels)
    kept = KeptPlan(state_dir / "plan.json", door.take)
    kept.read()
    runner = new_runner(door.app)
    await runner.setup()
    tasks: list[asyncio.Task[None]] = []
    try:
        site = await _open(runner, settings, state_dir / "endpoint")
        bus = partial(Bus, kafka, prefix, f"router/{name}")
        tasks.append(asyncio.create_task(with_kafka(bus, kept.follow, door.outbox.send)))
        tasks.append(asyncio.create_task(_tick(door)))
        gc.freeze()  # what is here by now stays: walking through it would hold up every stream for a while
        await until(told, tasks)
        door.stopping = True
        await site.stop()
        await _finish(door, hurry, drain_s)
    finally:
        await _cancel(tasks)
        await runner.cleanup()


async def _open(runner: web.AppRunner, settings: RouterSettings, told: Path) -> web.TCPSite:
    """Serve, and write down where."""
    site = web.TCPSite(runner, settings.host, settings.port, backlog=BACKLOG)
    try:
        await site.start()
    except OSError as error:  # a name that is none, an address of another machine, a port in use
        said = f"{settings.host}:{settings.port}: {error.strerror or error}"
        raise OSError(f"router.host, router.port: {said}") from error
    endpoint = f"{settings.host}:{runner.addresses[0][1]}"
    write_atomically(told, endpoint)
    log.info("serving at http://%s/v1", endpoint)
    return site


async def _finish(door: RouterDoor, hurry: asyncio.Event, drain_s: float) -> None:
    """End what is open, and tell of it."""
    log.info("told to end; %d requests may take %g s more", door.in_flight.count, drain_s)
    finishing = asyncio.create_task(door.in_flight.none())
    await within(drain_s, until(hurry, [finishing]))
    finishing.cancel()
    door.close_second()
    await within(FAREWELL_S, door.outbox.emptied())


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=FAREWELL_S)


async def _tick(door: RouterDoor) -> None:
    while True:
        await asyncio.sleep(next_second_s(time.time()))
        door.close_second()
