"""Follows Coral's plans from outside (needs aiokafka, nothing of Coral): monitor.py HOST:PORT [TOPIC]."""
# ruff: noqa: T201

import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer


async def follow(servers: str, topic: str = "coral.plans") -> None:
    reading = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": 16 * 1024 * 1024}
    newest = (0, 0, 0)
    async with AIOKafkaConsumer(topic, bootstrap_servers=servers, **reading) as consumer:
        async for record in consumer:
            try:
                # Another major version may mean something else by the same fields.
                if dict(record.headers)["ce_dataschema"].startswith(b"urn:coral:Plan:1."):
                    plan = json.loads(record.value)
                    order = plan["lineage"], plan["epoch"], plan["sequence"]
                    if order > newest:
                        roles = (instance["role"] for instance in plan["instances"])
                        print(*order, plan["target"]["reason"], *roles, flush=True)
                        newest = order
            except (KeyError, TypeError, ValueError) as error:
                print(f"offset {record.offset} is no plan: {error!r}", file=sys.stderr, flush=True)


asyncio.run(follow(*sys.argv[1:]))
