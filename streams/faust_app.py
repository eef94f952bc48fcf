"""Builds and runs a Faust app the way both of ours need it (design notes: kafka.md, "Faust").

Faust carries messages and elects the control leader. It keeps no state here: no tables, no web server, no
leader topic, and no offsets either, since `source_topic` declares topics with `acks=False`. An offset is
committed by who knows that the work is done (`commit`); Faust's own bookkeeping commits past unacknowledged
events (faust-streaming #606), also for events it skips around a rebalance.
"""

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Mapping
from typing import cast

import faust
from faust.transport.consumer import Consumer
from faust.types import TP, TopicT
from faust.types.auth import CredentialsT
from mode import ServiceT

from agents.kafka_client import tls_context
from agents.lifespan import ending
from schemas.settings import KafkaSettings

log = logging.getLogger(__name__)

Offsets = Mapping[TP, int]
"""Topic partition -> the next offset to read, as Kafka commits it."""


def make_faust_app(app_id: str, kafka: KafkaSettings) -> faust.App:
    """An app of consumer group `app_id`; nothing connects before it is run."""
    return faust.App(
        app_id,
        broker=[f"kafka://{server.strip()}" for server in kafka.bootstrap_servers.split(",")],
        broker_credentials=_credentials(kafka),
        key_serializer="raw",
        value_serializer="raw",
        autodiscover=False,
        # A dead worker's partitions move after 6 s, the least that brokers allow by default.
        broker_session_timeout=6.0,
        broker_heartbeat_interval=1.0,
        broker_rebalance_timeout=10.0,
        broker_commit_interval=0.5,
        producer_linger=0,
        consumer_auto_offset_reset="earliest",  # "latest" loses what comes before the first commit
        stream_wait_empty=False,  # its wait never ends when events are acknowledged later
        topic_disable_leader=True,  # the leader topic adds partitions and rebalances
        topic_allow_declare=False,  # topics are made by `coral topics create`, never by a reader
        web_enabled=False,
        worker_redirect_stdouts=False,
        datadir=tempfile.gettempdir(),  # holds nothing without tables, but must exist
    )


def source_topic(app: faust.App, name: str) -> TopicT:
    """A topic to read raw bytes from; its offsets are committed by `commit` only."""
    return app.topic(name, key_type=bytes, value_type=bytes, acks=False)


def consumer_of(app: faust.App) -> Consumer:
    """The app's consumer, with the methods that Faust's protocol of it leaves out."""
    return cast(Consumer, app.consumer)


async def commit(app: faust.App, offsets: Offsets) -> bool:
    """Commit as this member of the group; False if the group moved on without it, which commits nothing.

    Faust offers no public way to commit a given offset; `_commit` is the hook that its transports implement.
    """
    consumer = consumer_of(app)
    mine = {tp: offset for tp, offset in offsets.items() if tp in consumer.assignment()}
    return bool(mine) and await consumer._commit(mine)


def run_worker(app: faust.App, *services: ServiceT) -> None:
    """Run in this process until it is told to end (`agents.lifespan`); blocks.

    Args:
        services: started before the app, stopped after it.

    Raises:
        SystemExit: the worker crashed; the code is not 0.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = faust.Worker(app, *services, loop=loop, override_logging=False, quiet=True)
    worker.spinner = None  # it writes terminal escapes into the log
    for number in set(ending()) - {signal.SIGTERM, signal.SIGINT}:  # those, it listens to itself
        loop.add_signal_handler(number, os.kill, os.getpid(), signal.SIGTERM)
    try:
        worker.execute_from_commandline()
    except SystemExit as done:
        if done.code:
            raise
    log.info("worker stopped app=%s", app.conf.id)


def _credentials(kafka: KafkaSettings) -> CredentialsT | None:
    context = tls_context(kafka)
    if kafka.uses_sasl and kafka.sasl_password is not None:
        return faust.SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password.get_secret_value(),
            ssl_context=context,
            mechanism=kafka.sasl_mechanism,
        )
    return None if context is None else faust.SSLCredentials(context=context)
