"""Kafka that asks who one is: every part gets in with what it was given, or says what is wrong with it.

On a real broker, with real certificates. What a part does otherwise is tested on the plain one.
"""

import asyncio
import gc
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from agents.admin import create_topics
from agents.broker import BrokerUnavailable, LocalBroker, start_broker
from agents.bus import Bus, read_to_end
from agents.kafka_client import Unreachable, security_args, why_not
from agents.kafka_probe import answers
from schemas import codec, topics
from schemas.base import Frozen
from schemas.events import Leading, LineageStarted, NodeReported
from schemas.settings import KafkaSettings, Settings, load_settings
from streams.log import length
from tests.e2e.rig import HANG_S, ask, coral, end_all, until
from tests.kafka.secured import PASSWORD, USER, Keys, secured_broker

pytestmark = pytest.mark.kafka

NODE = ("node", "--name", "n1", "--cloud", "aws", "--region", "us-east-1", "--configuration", "1xL4")
BAD_INPUT = 2


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[LocalBroker]:
    try:
        with secured_broker(tmp_path_factory.mktemp("secured"), keys) as broker:
            yield broker
    except BrokerUnavailable as error:
        pytest.skip(str(error))


PLAIN, SCRAM, CERTIFICATE = "SASL_SSL PLAIN", "SASL_SSL SCRAM-SHA-512", "SSL -"
"""Protocol and mechanism."""


def access(secured: LocalBroker, keys: Keys, kind: str) -> KafkaSettings:
    """What lets one in."""
    protocol, mechanism = kind.split()
    sasl = {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": PASSWORD}
    certificate = {"ssl_certfile": keys.client, "ssl_keyfile": keys.client_key}
    return KafkaSettings.model_validate(
        {
            "bootstrap_servers": secured.secured[protocol],
            "security_protocol": protocol,
            **({"ssl_cafile": keys.ca} if "SSL" in protocol.split("_") else {}),
            **(sasl if protocol.startswith("SASL") else certificate),
        }
    )


# --- with the right credentials ----------------------------------------------------------------------
@pytest.mark.parametrize("kind", [PLAIN, SCRAM, CERTIFICATE, "SASL_PLAINTEXT SCRAM-SHA-512"])
async def test_admin_and_bus_get_in(secured: LocalBroker, keys: Keys, topic_prefix: str, kind: str) -> None:
    settings = Settings(topic_prefix=topic_prefix, kafka=access(secured, keys, kind))
    assert all((await create_topics(settings)).values())
    async with Bus(settings.kafka, topic_prefix, "test") as bus:
        written = await bus.send(topics.CONTROL, LineageStarted(lineage=7))
        assert written.offset == 1
        records = await read_to_end(settings.kafka, bus.name(topics.CONTROL))
    assert [record.offset for record in records] == [0, 1]


@contextmanager
def parts(folder: Path, environment: Mapping[str, str]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `coral` commands, each with a log named after it, and ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        started.append(coral(*command, env=environment, out=folder / f"{command[0]}.log"))
        return started[-1]

    try:
        yield start
    finally:
        end_all(folder)
        for process in started:
            process.wait(HANG_S)


def events(settings: Settings) -> list[Frozen]:
    """What the log has, read by way of the plain listener."""
    records = asyncio.run(read_to_end(settings.kafka, settings.topic(topics.CONTROL)))
    return [codec.decode(topics.CONTROL, record.value, record.headers) for record in records]


@pytest.mark.parametrize("kind", [SCRAM, CERTIFICATE])
def test_fold_control_and_a_node_work_as_processes(
    secured: LocalBroker, keys: Keys, topic_prefix: str, tmp_path: Path, kind: str
) -> None:
    """The Faust workers have clients of their own kind. That the node reports shows in what fold writes."""
    environment = {
        **access(secured, keys, kind).environment(),
        "CORAL_TOPIC_PREFIX": topic_prefix,
        "CORAL_STATE_DIR": str(tmp_path),
        "CORAL_CONTROL__SERVE": '{"gpt-oss-20b": ["interactive"]}',
        "CORAL_CONTROL__CONFIGURATIONS": '["1xL4"]',
    }
    made = ask("topics", "create", env=environment)
    assert made.returncode == 0, made.stderr
    plain = load_settings(topic_prefix=topic_prefix, kafka={"bootstrap_servers": secured.bootstrap})
    with parts(tmp_path, environment) as start:
        for command in (("fold",), ("control",), NODE):
            start(*command)
        signs = {Leading, NodeReported}
        until(lambda: signs <= {type(event) for event in events(plain)}, "a leader and a node")
    logged = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert PASSWORD not in logged


# --- with wrong ones ---------------------------------------------------------------------------------
UNTRUSTED = (
    "kafka.ssl_cafile: the certificate of {address} is not trusted: unable to get local issuer certificate"
)
HANGS_UP = (
    "kafka.security_protocol: {address} hangs up on %s; it may want TLS, SASL or a client's certificate"
)
WRONG = {
    "password": "kafka.sasl_username, kafka.sasl_password: {address} refuses them: Authentication failed "
    "during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512",
    "mechanism": "kafka.sasl_mechanism: {address} does not offer SCRAM-SHA-256",
    "ca": UNTRUSTED,
    "no ca": UNTRUSTED,
    "tls": HANGS_UP % "SASL_PLAINTEXT",
    "certificate": HANGS_UP % "SSL",
}


def spoilt(secured: LocalBroker, keys: Keys, what: str) -> KafkaSettings:
    right = access(secured, keys, SCRAM)
    spoiled: dict[str, dict[str, object]] = {
        "password": {"sasl_password": SecretStr("wrong")},
        "mechanism": {"sasl_mechanism": "SCRAM-SHA-256"},
        "ca": {"ssl_cafile": keys.other_ca},
        "no ca": {"ssl_cafile": None},
        "tls": {"security_protocol": "SASL_PLAINTEXT"},
        "certificate": {"security_protocol": "SSL", "bootstrap_servers": secured.secured["SSL"]},
    }
    return right.model_copy(update=spoiled[what])


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_wrong_is_named(secured: LocalBroker, keys: Keys, what: str) -> None:
    kafka = spoilt(secured, keys, what)
    said = WRONG[what].format(address=kafka.bootstrap_servers)
    assert await why_not(kafka) == said
    with pytest.raises(Unreachable) as error:
        async with Bus(kafka, "none", "test"):
            pass
    assert str(error.value) == said


def test_a_broker_that_is_given_is_asked_as_its_settings_say(secured: LocalBroker, keys: Keys) -> None:
    right, wrong = access(secured, keys, SCRAM), spoilt(secured, keys, "password")
    with start_broker(right.bootstrap_servers, kafka=right) as broker:
        assert broker.kind == "given"
    with (
        pytest.raises(BrokerUnavailable, match=r"kafka.sasl_password: .* refuses them"),
        start_broker(wrong.bootstrap_servers, kafka=wrong),
    ):
        pytest.fail("it was let in")


@pytest.mark.parametrize("kind", [CERTIFICATE, SCRAM, "password", "mechanism"])
def test_asking_leaves_no_socket_open(secured: LocalBroker, keys: Keys, kind: str) -> None:
    """TLS says good-bye, and the loop must not end before the broker's answer: what it leaves open is
    garbage, whose warning fails the test that is running when it is collected."""
    let_in = kind not in WRONG
    kafka = access(secured, keys, kind) if let_in else spoilt(secured, keys, kind)
    gc.collect()  # what is not ours
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(5):
            assert answers(kafka.bootstrap_servers, security=security_args(kafka)) is let_in
        gc.collect()
    assert [str(warning.message) for warning in told] == []


async def test_a_file_that_is_empty_is_named(secured: LocalBroker, keys: Keys, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    right = access(secured, keys, CERTIFICATE)
    for field in ("ssl_cafile", "ssl_certfile"):
        said = await why_not(right.model_copy(update={field: empty}))
        assert said.startswith(f"kafka.{field}: {empty}")


@pytest.mark.parametrize("what", ["password", "ca"])
def test_a_command_ends_with_one_line(secured: LocalBroker, keys: Keys, tmp_path: Path, what: str) -> None:
    kafka = spoilt(secured, keys, what)
    for command in (("topics", "create"), ("fold",)):
        told = ask(*command, env={**kafka.environment(), "CORAL_STATE_DIR": str(tmp_path)})
        assert told.returncode == BAD_INPUT
        assert told.stderr == f"coral: {WRONG[what].format(address=kafka.bootstrap_servers)}\n"


def test_a_node_agent_goes_on_trying_and_says_why(
    secured: LocalBroker, keys: Keys, topic_prefix: str, tmp_path: Path
) -> None:
    """Its certificate authority is the wrong one until somebody puts the right one in its place."""
    ca = tmp_path / "ca.pem"
    ca.write_text(keys.other_ca.read_text())
    right = access(secured, keys, PLAIN)
    asyncio.run(create_topics(Settings(topic_prefix=topic_prefix, kafka=right)))
    state = {"CORAL_TOPIC_PREFIX": topic_prefix, "CORAL_STATE_DIR": str(tmp_path)}
    environment = {**right.model_copy(update={"ssl_cafile": ca}).environment(), **state}
    out = tmp_path / "node.log"
    cause = f"kafka.ssl_cafile: the certificate of {right.bootstrap_servers} is not trusted"
    plain = load_settings(topic_prefix=topic_prefix, kafka={"bootstrap_servers": secured.bootstrap})
    with parts(tmp_path, environment) as start:
        process = start(*NODE)
        until(lambda: cause in out.read_text(), "the cause")
        time.sleep(10)  # for some tries more
        assert process.poll() is None
        # The client's complaint, and ours with each new wait until the next try; then once a minute.
        assert len(out.read_text().splitlines()) <= 10
        ca.write_text(keys.ca.read_text())
        until(lambda: asyncio.run(length(plain.kafka, plain.topic(topics.FLEET))), "a heartbeat")
