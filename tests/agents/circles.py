"""Specs of an instance over nodes of their own, for the tests of what guards say."""

from agents.engine import EngineSpec
from agents.ledger import RankKey
from agents.star import KeyPair, new_keys
from schemas.plans import Contact
from tests.agents.making import instance, rank, template

FACTS = {"engine": "vllm-0.32.0", "partition": "2,2,2", "revision": "r", "command": "c"}


def specs(stages: int, keys: list[KeyPair], guard_port: int = 9, *, attempt: int = 1) -> list[EngineSpec]:
    """One spec a stage, each on a node of its own, on loopback.

    Args:
        keys: one a node.
        guard_port: of every node; only the head's is listened on.
    """
    claims = [f"c{i + 1}" for i in range(stages)]
    made = instance("i1", *map(rank, claims), attempt=attempt)
    contacts = {
        claim: Contact(address="127.0.0.1", guard_port=guard_port, public_key=key.public)
        for claim, key in zip(claims, keys, strict=True)
    }
    return [
        EngineSpec(
            instance=made,
            template=template(stages),
            key=RankKey("i1", attempt, stage, 0),
            address="127.0.0.1",
            contacts=contacts,
        )
        for stage in range(stages)
    ]


def new_key_pairs(count: int) -> list[KeyPair]:
    return [new_keys() for _ in range(count)]
