"""Which node this is: what it registers with, and its first heartbeat says."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from schemas.base import Name
from schemas.plans import Contact
from schemas.problems import Pool

NodeName = Annotated[Name, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that is a folder's too, and never `.` or `..`."""


@dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class NodeIdentity:
    """What a node says about itself (`schemas.events.Heartbeat`); `agents.inventory.identity` makes one.

    Raises:
        pydantic.ValidationError: a field is impossible: it comes from a person, or from another process.
    """

    name: NodeName
    pool: Pool
    configuration: Name
    devices: int
    memory_gb: float
    """Of all devices together, in 10^9 bytes."""
    address: str = "127.0.0.1"
    claim: Name | None = None
    """What its provisioner started it for; None if static."""
    engine: str | None = None
    contact: Contact | None = None
    gpu: str | None = None
    driver: str | None = None
