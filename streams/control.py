"""Faust app `control`: one leader folds the control log, decides, and has it done (house.md, laws 1 to 5).

Faust reads the log and elects, leadership.py decides who leads, the core what is to be done, term.py
does it.
"""

import contextlib
from importlib.metadata import version
from typing import Any

import faust
from faust.types import TP, StreamT
from faust.types.tuples import Message
from mode import Service

from agents.bus import Bus
from schemas import topics
from schemas.catalog import Catalog, load_catalog
from schemas.performance import load_efficiencies
from schemas.policy import CorePolicy, ServedClass
from schemas.settings import Settings
from solver.profiles import load_profile
from streams.allowances import allow
from streams.faust_app import commit, make_faust_app, run_worker, source_topic
from streams.leadership import Leadership, Terms
from streams.live_policy import asked_live, variants_of
from streams.log import Entry
from streams.served import levels_of
from streams.solving import Solver
from streams.term import MAY_PASS

COMMIT_EVERY = 500
"""Records between two commits of the group's offset; they only spare Faust from reading all again."""


def run(settings: Settings) -> None:
    """Run one control worker in this process until told to end (`agents.lifespan`); blocks.

    Raises:
        OSError: a file that the settings name cannot be read.
        ValueError: settings or profiles name what the catalog does not have, or a file is none of its kind.
        SystemExit: the worker crashed; the code is not 0.
    """
    catalog = load_catalog(settings.catalog)
    load_profile(settings.profiles, catalog)  # refused here, where a person sees it
    terms = Terms(
        fleet=settings.fleet,
        policy=policy_of(settings, catalog),
        version=version("coral"),
        snapshot_every=settings.control.snapshot_every,
    )
    solver = Solver(
        "streams.solve_bench:open_bench",
        {
            "catalog": str(settings.catalog.resolve()),
            "efficiencies": str(settings.efficiencies.resolve()),
            "profiles": [str(path.resolve()) for path in settings.profiles],
            "levels": [(served.model, served.slo_class) for served in terms.policy.served],
            "configurations": _configurations(settings, catalog),
            "cache": str(settings.state_dir.resolve() / "libraries"),
            "variants": variants_of(terms.policy),
        },
        settings.control.solve_fuse_s,
    )
    bus = Bus(settings.kafka, settings.topic_prefix, "control")
    run_worker(make_app(f"{settings.topic_prefix}-control", bus, solver, terms))


def policy_of(settings: Settings, catalog: Catalog) -> CorePolicy:
    """The core's policy: every (model, class) served with the catalog's workload, the overrides, what plans
    are asked for, head-room.

    Raises:
        OSError: the file of what plans are asked for cannot be read.
        ValueError: the settings or that file name what does not exist, or ask for what is not live.
    """
    levels = levels_of(settings, catalog)
    served = tuple(
        ServedClass(
            model=model,
            slo_class=slo_class,
            mean_input_tokens=level.workload.mean_input_tokens,
            mean_output_tokens=level.workload.mean_output_tokens,
            drain_deadline_ms=None if (s := level.drain_deadline_s) is None else round(1000 * s),
        )
        for (model, slo_class), level in levels.items()
    )
    asked = asked_live(settings, catalog)
    policy = CorePolicy.model_validate({"served": served, **settings.control.policy, **asked})
    return allow(policy, levels, settings)


def _configurations(settings: Settings, catalog: Catalog) -> list[str]:
    if catalog.paper:
        raise ValueError("catalog: in paper mode, with prices of what nobody sells; expected one to plan by")
    known = [configuration.name for configuration in catalog.configurations]
    sold = {price.configuration for price in catalog.prices}
    wanted = settings.control.configurations or [name for name in known if name in sold]
    if unknown := sorted(set(wanted) - set(known)):
        raise ValueError(f"control.configurations: {unknown} are not in the catalog")
    efficiencies = load_efficiencies(settings.efficiencies)
    for name in wanted:
        efficiencies.of(catalog.configuration(name).gpu)  # refused here, where a person sees it
    return wanted


def make_app(app_id: str, bus: Bus, solver: Solver, terms: Terms) -> faust.App:
    """The Faust app around `Leadership`: assignment, one agent, and the task that serves.

    Args:
        app_id: consumer group; all control workers of a fleet share it.
        bus: not opened yet, as the solver; the app opens and closes both.
    """
    app = make_faust_app(app_id, bus.kafka)
    control = Leadership(bus, solver, terms)
    app.add_dependency(_Serving(bus, solver, control))
    here = TP(bus.name(topics.CONTROL), 0)

    async def read_log(stream: StreamT[bytes]) -> None:
        async for event in stream.events():
            message = event.message
            try:
                await control.take(_entry(message))
            except Exception as error:
                # Faust would skip the record and go on; nothing may be decided on a hole.
                await app.crash(error)
                raise
            if message.offset % COMMIT_EVERY == 0:
                with contextlib.suppress(*MAY_PASS):
                    await commit(app, {here: message.offset + 1})

    async def on_assigned(_app: Any, assigned: set[TP], **_: Any) -> None:
        if here in assigned:
            control.assigned()

    async def on_revoked(_app: Any, _revoked: set[TP], **_: Any) -> None:
        control.revoked()

    app.agent(source_topic(app, here.topic), name="control")(read_log)
    # mode types its handlers as taking any arguments.
    app.on_partitions_assigned.connect(on_assigned, weak=False)  # type: ignore[arg-type]
    app.on_partitions_revoked.connect(on_revoked, weak=False)  # type: ignore[arg-type]
    return app


class _Serving(Service):
    """First of the app's services to start, so that nobody joins the group before the solver is warm, and
    the last to stop: the leader's tasks first, then solver and bus."""

    def __init__(self, bus: Bus, solver: Solver, control: Leadership) -> None:
        super().__init__()
        self._bus = bus
        self._solver = solver
        self._control = control

    async def on_start(self) -> None:
        await self.add_async_context(self._bus)
        await self.add_async_context(self._solver)
        await self._solver.library()
        self.add_future(self._control.serve())


def _entry(message: Message) -> Entry:
    return Entry.carried(message.offset, message.timestamp, message.value, message.headers)
