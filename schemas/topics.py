"""One table: topic, key, partitions, retention, size, and what may be on it."""

from dataclasses import dataclass, field

from schemas import events, telemetry
from schemas.base import Frozen
from schemas.plans import Plan

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
AUDIT_MS = 90 * DAY_MS
"""How long the control log, its snapshots and the plans are kept unless settings say otherwise."""

MIB = 1024 * 1024


@dataclass(frozen=True)
class Topic:
    """One topic; `name` has no prefix (settings add it, `coral.` by default)."""

    name: str
    key: str
    partitions: int
    retention_ms: int
    flow: str
    types: tuple[type[Frozen], ...]
    max_message_bytes: int = MIB
    log_append_time: bool = True
    """The broker's clock stamps each record; for `control` it is the core's only clock."""
    config: dict[str, str] = field(default_factory=dict, hash=False)

    def settings(self) -> dict[str, str]:
        """Topic configuration for the broker."""
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(self.retention_ms),
            "max.message.bytes": str(self.max_message_bytes),
            "message.timestamp.type": "LogAppendTime" if self.log_append_time else "CreateTime",
            **self.config,
        }


TELEMETRY = Topic(
    "telemetry", "model", 8, 6 * HOUR_MS, "routers, scrapers -> fold", (telemetry.TelemetrySample,)
)
AVAILABILITY = Topic(
    "availability",
    "offer",
    2,
    7 * DAY_MS,
    "feeds, provisioner -> fold",
    (events.AvailabilityOffered,),
)
PRICES = Topic("prices", "offer", 2, 7 * DAY_MS, "feeds -> fold", (events.PriceOffered,))
FLEET = Topic("fleet", "node", 4, 2 * DAY_MS, "node agents -> fold", (events.Heartbeat,))
CONTROL = Topic(
    "control",
    "-",
    1,
    AUDIT_MS,
    "fold, control, provisioner, operator -> control",
    events.ControlEvent.__args__,
    max_message_bytes=8 * MIB,
)
SNAPSHOTS = Topic(
    "snapshots",
    "offset/n",
    1,
    AUDIT_MS,
    "control -> control, replay",
    (events.SnapshotChunk, events.SnapshotManifest),
)
PLANS = Topic(
    "plans",
    "-",
    1,
    AUDIT_MS,
    "control -> node agents, routers, provisioner, external monitors",
    (Plan,),
    max_message_bytes=8 * MIB,
)
DEADLETTER = Topic(
    "deadletter",
    "origin",
    1,
    14 * DAY_MS,
    "every reader -> people",
    (events.DeadLetter,),
    max_message_bytes=12 * MIB,
)

TOPICS = (TELEMETRY, AVAILABILITY, PRICES, FLEET, CONTROL, SNAPSHOTS, PLANS, DEADLETTER)
