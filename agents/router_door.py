"""The router's HTTP side: who may ask, for what, and by which instances that is answered.

An OpenAI-compatible server on aiohttp. Errors have OpenAI's shape; `agents.router_exchange` has the way of a
request that was let in.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from agents.elsewhere import InFlight
from agents.proxy import SlowUpload, new_session, whole_body
from agents.router_ask import Ask, BadRequest, parse
from agents.router_exchange import STARTING_S, Desk, Exchange, Refused
from agents.router_metrics import Promises, RouterMetrics
from agents.router_telemetry import Counting, Outbox
from agents.routing import Kind, Routes
from schemas.catalog import ServiceLevel
from schemas.plans import Plan
from schemas.settings import RouterSettings

log = logging.getLogger(__name__)

SLO_CLASS = "x-slo-class"
"""Header that names the SLO class; without it a request is of its model's first class in the plan."""


class RouterDoor:
    """A router without its process: serve `app`, give it plans, and `close_second` every second.

    Args:
        name: this router's, as the source of its telemetry.
        levels: what the fleet serves and promises, by (model, SLO class); attainment is told for these, and
            demand for them also while no plan has them.
    """

    def __init__(
        self, settings: RouterSettings, name: str, levels: Mapping[Kind, ServiceLevel] | None = None
    ) -> None:
        self.routes = Routes(settings.prefer_region, levels or ())
        self.outbox = Outbox()
        self.in_flight = InFlight()
        self.stopping = False
        self._tenants = Tenants(settings.api_keys)
        self._counting = Counting(name, now_ms())
        self._promises = Promises(levels or {})
        self.metrics = RouterMetrics(self.routes, self.outbox, self._promises)
        self._desk: Desk | None = None
        self.app = web.Application(client_max_size=settings.max_body_bytes)
        self.app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/chat/completions", self._complete),
                web.post("/v1/completions", self._complete),
                web.route("*", "/{path:.*}", self._nowhere),
            ]
        )
        self.app.cleanup_ctx.append(self._with_session)

    async def _with_session(self, app: web.Application) -> AsyncIterator[None]:  # noqa: ARG002  the signature is aiohttp's
        async with new_session() as upstreams:
            self._desk = Desk(upstreams, self._counting, self.metrics, self._promises)
            yield

    def take(self, plan: Plan) -> None:
        if self.routes.follow(plan):
            log.info("plan %s: %d instances", plan.id, len(plan.instances))

    def close_second(self) -> None:
        """Turn what was counted until now into samples and metrics."""
        at_ms = now_ms()
        tallies, samples = self._counting.close(at_ms, self.routes.kinds)
        self.outbox.put(samples, at_ms)
        self.metrics.count(tallies)
        self._promises.count(tallies, at_ms)

    # --- requests ----------------------------------------------------------------------------------
    async def _health(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Whether requests should come here; also before the first plan, which waits to be asked for."""
        well = bool(self.routes.classes) and not self.stopping
        return web.Response(status=200 if well else 503)

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _nowhere(self, request: web.Request) -> web.Response:
        return Refused(404, f"there is no {request.method} {request.path} here").response

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._tenants.of(request)
        except Refused as refused:
            return refused.response
        plan = self.routes.plan
        made_s = 0 if plan is None else plan.at_ms // 1000
        models = [
            {"id": model, "object": "model", "created": made_s, "owned_by": "coral", "slo_classes": classes}
            for model, classes in self.routes.classes.items()
        ]
        return web.json_response({"object": "list", "data": models})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        began_s = time.monotonic()
        with self.in_flight.one():
            try:
                return await self._admit(request, began_s)
            except Refused as refused:
                return refused.response

    async def _admit(self, request: web.Request, began_s: float) -> web.StreamResponse:
        if self.stopping:
            raise Refused(503, "this router is stopping", code="unavailable", retry_after_s=1)
        tenant = self._tenants.of(request)
        ask = await self._ask(request)
        kind = self._kind(ask, request.headers.get(SLO_CLASS))
        tally = self._counting.of(tenant, kind)
        tally.offered += 1
        way = self.routes.way(*kind)
        if way is None:
            tally.refused += 1
            message = f"{kind[0]}: no instance serves SLO class {kind[1]} now"
            raise Refused(503, message, code="unavailable", retry_after_s=STARTING_S)
        assert self._desk is not None, "requests come while the session is open"  # noqa: S101
        exchange = Exchange(self._desk, request, ask, kind, way, tenant=tenant, began_s=began_s)
        return await exchange.run()

    async def _ask(self, request: web.Request) -> Ask:
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise Refused(415, f"Content-Encoding: {encoding!r}, expected none")
        try:
            return parse(await whole_body(request))
        except SlowUpload as error:
            raise Refused(408, str(error)) from error
        except web.HTTPRequestEntityTooLarge as error:
            limit = self.app._client_max_size
            message = f"body: larger than {limit} bytes, the most that is taken here"
            raise Refused(413, message, code="request_too_large") from error
        except BadRequest as error:
            raise Refused(400, str(error), param=error.param) from error

    def _kind(self, ask: Ask, slo_class: str | None) -> Kind:
        classes = self.routes.classes.get(ask.model)
        if classes is None:
            if self.routes.plan is None:
                raise Refused(
                    503, "this router has no plan yet", code="unavailable", retry_after_s=STARTING_S
                )
            message = (
                f"model: {ask.model!r} is not served here, expected one of {sorted(self.routes.classes)}"
            )
            raise Refused(404, message, param="model", code="model_not_found")
        if slo_class is not None and slo_class not in classes:
            message = f"{SLO_CLASS}: {slo_class!r} is no SLO class of {ask.model}, expected one of {classes}"
            raise Refused(400, message, param=SLO_CLASS)
        return ask.model, slo_class or classes[0]


class Tenants:
    """Whose key it is. Without any keys everybody is let in as tenant `default`."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        # Looked up by a digest that nobody outside can compute: the time it takes tells nothing of the keys.
        self._salt = secrets.token_bytes(32)
        self._tenants = {self._digest(key): tenant for key, tenant in keys.items()}

    def of(self, request: web.Request) -> str:
        """Raises Refused for a key that is missing or unknown."""
        if not self._tenants:
            return "default"
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        tenant = self._tenants.get(self._digest(key.strip())) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise Refused(401, "Authorization: expected `Bearer` and an API key", code="invalid_api_key")
        return tenant

    def _digest(self, key: str) -> bytes:
        return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), key=self._salt).digest()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
