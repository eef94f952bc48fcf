"""What a person gets wrong at the command line: one line that names it, exit code 2. No Kafka here."""

import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, nullcontext
from errno import ENOSPC
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agents.kafka_probe import free_ports
from agents.state_dir import owned
from schemas.catalog import load_catalog
from schemas.settings import load_settings
from streams.cli import app
from streams.control import policy_of
from streams.core.state import State
from streams.interrupts import INTERRUPTED
from tests.e2e.rig import HANG_S, REPO, ask

BAD_INPUT = 2


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("CORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "streams.commands.shared.trace", lambda: None
    )  # it is for a whole process, here of other tests


def coral(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, arguments, env=env)


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """The one line with which a command is refused."""
    result = coral(*arguments, env=env)
    assert result.exit_code == BAD_INPUT, result.output
    assert result.stderr.startswith("coral: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


# --- settings --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- 1\n", "'[1]', expected `name: value` lines"),
        (b"just words\n", "'just words', expected `name: value` lines"),
        (b"1: 2\n", "1: a int, expected a word for a key"),
        (b"fleet: a\nkafka: [1\n", "expected ',' or ']'"),
        (b"fleet: a\0\n", "characters are not allowed"),
        (b"fleet: \xff\n", "byte 7 is not UTF-8"),
    ],
)
def test_a_file_that_is_no_settings_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    line = refused("--config", str(file), "topics", "list")
    assert str(file) in line
    assert said in line


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# all defaults\n")
    assert load_settings(file).model_dump() == load_settings().model_dump()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CORAL_NOSUCH", "1", "CORAL_NOSUCH: no such setting, expected one of CORAL_FLEET"),
        ("CORAL_KAFKA_BOOTSTRAP_SERVERS", "a:1", "CORAL_KAFKA_BOOTSTRAP_SERVERS: no such setting"),
        ("CORAL_KAFKA__NOSUCH", "1", "kafka.nosuch: unknown key"),
        ("CORAL_CONTROL__POLICY", "{bad", "CORAL_CONTROL__POLICY: '{bad', expected JSON"),
        ("CORAL_FOLD", "x", "CORAL_FOLD: 'x', expected JSON"),
        ("CORAL_KAFKA__BOOTSTRAP_SERVERS", "", "kafka.bootstrap_servers: expected host:port"),
    ],
)
def test_a_variable_that_sets_nothing_is_named(name: str, value: str, said: str) -> None:
    assert said in refused("topics", "list", env={name: value})


def test_variables_of_the_tests_and_of_the_parts_are_no_settings() -> None:
    assert coral("topics", "list", env={"CORAL_REQUIRE": "kafka", "CORAL_LOCAL_NODE": "x"}).exit_code == 0


def test_what_kubernetes_says_of_a_service_named_coral_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("CORAL_PORT_9092_TCP", "tcp://10.0.0.1:9092")
    assert load_settings() == load_settings()


@pytest.mark.parametrize("servers", ["", "nonsense", "h:99999", "h:0", "h:1,", ":9092", "h:-1"])
def test_an_impossible_address_is_refused(servers: str) -> None:
    assert "kafka.bootstrap_servers: expected host:port" in refused("--bootstrap-servers", servers, "plans")


def test_an_error_in_the_policy_is_said_once() -> None:
    line = refused("topics", "list", env={"CORAL_CONTROL__POLICY": '{"headroom": "x"}'})
    assert line.count("control.policy.headroom") == 1


def test_the_policy_takes_whole_numbers_and_shares() -> None:
    given = {"headroom": 1, "price_change": 0.5, "solve_interval_ms": 15_000}
    settings = load_settings(control={"policy": given})
    policy = policy_of(settings, load_catalog(settings.catalog))
    assert (policy.headroom, policy.price_change, policy.solve_interval_ms) == (1.0, 0.5, 15_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CORAL_ROUTER__API_KEYS", '{"sk-very-secret": ""}'),
        ("CORAL_ROUTER__API_KEYS", '{"sk-very-secret"'),
        ("CORAL_ROUTER__API_KEYS", '"sk-very-secret"'),
        ("CORAL_ROUTER__API_KEYS", '{"sk-very-secret with a space": "a"}'),
        ("CORAL_ROUTER__API_KEY", '{"sk-very-secret": "a"}'),
        ("CORAL_ROUTER", '{"api_keys": {"sk-very-secret": 1'),
        ("CORAL_ROUTER", '[{"api_keys": {"sk-very-secret": "a"}}]'),
        ("CORAL_KAFKA", '{"sasl_password": "sk-very-secret"'),
        ("CORAL_KAFKA__SASL_PASSWRD", "sk-very-secret"),
    ],
)
def test_no_refusal_shows_a_secret(name: str, value: str) -> None:
    line = refused("topics", "list", env={name: value})
    assert "sk-very" not in line
    assert "a secret" in line
    assert line.startswith(("coral: router", "coral: kafka", f"coral: {name}"))


def test_an_empty_key_lets_nobody_in() -> None:
    line = refused("topics", "list", env={"CORAL_ROUTER__API_KEYS": '{"": "a"}'})
    assert line.startswith("coral: router.api_keys: ")


# --- what cannot be written --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "command",
    [
        ("node", "--name", "a", "--cloud", "gcp", "--region", "r", "--configuration", "1xL4"),
        ("router", "--port", "0"),
        ("scrape",),
    ],
)
def test_a_state_dir_that_cannot_be_made_is_named(command: tuple[str, ...]) -> None:
    line = refused(*command, env={"CORAL_STATE_DIR": "/proc/foo"})
    assert line.startswith("coral: state_dir: /proc/foo/")


def test_a_node_whose_disk_fails_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "No space left on device", "ledger.draft")

    monkeypatch.setattr("agents.node.run", fail)
    assert "No space left on device: 'ledger.draft'" in refused(*NODE)


def test_an_export_that_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> AsyncIterator[object]:
        nobody: tuple[object, ...] = ()
        for entry in nobody:
            yield entry

    monkeypatch.setattr("streams.commands.shared.need_topics", lambda _: None)
    monkeypatch.setattr("streams.log.read", nothing)
    assert "'/proc/x'" in refused("log", "export", "-o", "/proc/x")


# --- files and names ---------------------------------------------------------------------------------
def test_a_file_of_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.commands.shared.need_topics", lambda _: None)
    assert "/etc/passwd:1: body: " in refused("provision", "--static", "/etc/passwd")


def test_a_drain_of_a_fleet_without_nodes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def empty(_: object) -> State:
        return State()

    monkeypatch.setattr("streams.commands.shared.need_topics", lambda _: None)
    monkeypatch.setattr("streams.operating.Bus", lambda *_: nullcontext())
    monkeypatch.setattr("streams.operating._fold", empty)
    assert refused("drain", "x") == "coral: NODE: 'x' is no node of this fleet, which has none yet\n"


def test_a_line_is_shown_as_it_is() -> None:
    assert "':smile:'" in refused("node", "--name", ":smile:", *PLACE, "--configuration", "1xL4")


# --- options ---------------------------------------------------------------------------------------
PLACE = ("--cloud", "gcp", "--region", "r")


@pytest.mark.parametrize("name", ["a b", "", "..", ".", "-a", "a/b", "../a", "ä"])
def test_a_node_needs_a_name_that_is_no_path(name: str) -> None:
    line = refused("node", f"--name={name}", *PLACE, "--configuration", "1xL4")
    assert line.startswith("coral: name: ")
    assert repr(name) in line


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--configuration", "9xB9", "--configuration: '9xB9' is not in the catalog"),
        ("--market", "bazaar", "market: "),
        ("--claim", "", "claim: "),
        ("--time-scale", "nan", "--time-scale: nan, expected a finite number of at least 0"),
        ("--time-scale", "-3", "--time-scale: -3.0"),
        ("--time-scale", "inf", "--time-scale: inf"),
    ],
)
def test_an_impossible_node_is_refused(option: str, value: str, said: str) -> None:
    given = {"--name": "a", "--configuration": "1xL4", option: value}
    assert said in refused("node", *PLACE, *(text for pair in given.items() for text in pair))


@pytest.mark.parametrize("seconds", ["nan", "-5", "0", "inf"])
def test_a_demo_takes_some_time(seconds: str) -> None:
    assert "--seconds: " in refused("demo", "--seconds", seconds)


# --- Kafka -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "command",
    [
        ("control",),
        ("fold",),
        ("plans",),
        ("replay",),
        ("log", "export"),
        ("topics", "create"),
    ],
)
def test_a_broker_that_is_away_is_named(command: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    line = refused("--bootstrap-servers", nobody, *command)
    assert line == f"coral: kafka.bootstrap_servers: no broker answers at {nobody}\n"
    assert not caplog.records


# --- the demo's folder -----------------------------------------------------------------------------
def test_a_second_demo_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "demo" / "control.jsonl"
    kept.parent.mkdir()
    kept.touch()
    lock = tmp_path / "demo.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = ask("demo", "--seconds", "1", env={"CORAL_STATE_DIR": str(tmp_path)})
    assert second.returncode == BAD_INPUT
    assert second.stderr.startswith(f"coral: {lock}: held by another demo")
    assert second.stderr.count("\n") == 1
    assert kept.exists()


# --- Ctrl-C ----------------------------------------------------------------------------------------
def test_a_ctrl_c_while_importing_leaves_no_traceback() -> None:
    """Sent by the first import of the command line itself, wherever the machine's speed would put it."""
    script = (
        "import signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from streams.entry import run\n"
        "run()\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (ended.returncode, ended.stderr) == (INTERRUPTED, "")


def test_the_console_script_is_the_one_that_answers_it() -> None:
    (script,) = entry_points(group="console_scripts", name="coral")
    assert script.value == "streams.entry:run"


# --- engines -----------------------------------------------------------------------------------------
NODE = ("node", "--name", "a", *PLACE, "--configuration", "1xL4")
CPU = {"CORAL_NODE__PLATFORM": "cpu", "CORAL_NODE__KV_CACHE_BYTES": "1000000"}


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({**CPU}, "node.vllm: missing, expected the path of the `vllm` command"),
        (
            {"CORAL_NODE__PLATFORM": "cpu", "CORAL_NODE__VLLM": "/nowhere/vllm"},
            "node.kv_cache_bytes: missing, expected with platform cpu",
        ),
        (
            {**CPU, "CORAL_NODE__VLLM": "/nowhere/vllm", "CORAL_NODE__ADDRESS": "192.0.2.1"},
            "node.address: '192.0.2.1', expected one of this machine's",
        ),
        ({"CORAL_NODE__VLLM": "/nowhere/vllm"}, "--configuration: '1xL4' is not this machine: "),
    ],
)
def test_a_node_of_real_engines_names_the_setting_that_it_lacks(env: dict[str, str], said: str) -> None:
    assert said in refused(*NODE, "--engine", "vllm", env=env)
    assert said in refused(*NODE, env={**env, "CORAL_NODE__ENGINE": "vllm"})


@pytest.mark.parametrize("command", [NODE, ("demo",)])
def test_there_are_two_kinds_of_engines(command: tuple[str, ...]) -> None:
    line = refused(*command, "--engine", "sglang")
    assert line == "coral: --engine: 'sglang', expected simulated or vllm\n"


def test_a_demo_on_vllm_says_how_to_get_it() -> None:
    line = refused("demo", "--engine", "vllm", env={"CORAL_NODE__VLLM": "/nowhere/vllm"})
    assert line == (
        "coral: --engine vllm: /nowhere/vllm is not there; `make vllm` installs vLLM and a model\n"
    )


# --- checkpoints ---------------------------------------------------------------------------------------
def test_the_revision_of_a_folder_is_printed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    said = coral("model", "revision", str(tmp_path))
    assert said.exit_code == 0, said.output
    assert len(said.stdout.strip()) == 64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "node.vllm: missing"),
        (("--variant", "nosuch/bf16"), "--variant: 'nosuch/bf16' is not in the catalog, expected one of"),
    ],
)
def test_a_reference_needs_vllm_and_a_known_variant(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in refused("reference", "make", str(tmp_path), *options, env=CPU)


# --- vLLM's doctor -------------------------------------------------------------------------------------
def test_the_doctor_names_what_is_missing_and_says_so_by_its_exit_code() -> None:
    said = coral("doctor", "vllm", env={"CORAL_NODE__PLATFORM": "cpu"})
    assert said.exit_code == 1
    lines = said.stdout.splitlines()
    assert any(line.startswith("bad   vllm ") and "node.vllm is not set" in line for line in lines)
    assert any(line.startswith("ok    address ") for line in lines)


# --- routers -------------------------------------------------------------------------------------------
PHI = ("--model", "phi-4-14b")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("router", "--name", "a/b"), "--name: 'a/b', expected letters, digits"),
        (("router", "--name", "../x"), "--name: '../x', expected letters, digits"),
        (("router", "--name", ""), "--name: '', expected letters, digits"),
        (("router", "--model", "m"), "--model: 'm', expected none without --sync-to"),
        (("router", "--slo-class", "c"), "--slo-class: 'c', expected none without --sync-to"),
        (("router", "--sync-to", "f", "--port", "1"), "--port: 1, expected none with --sync-to"),
        (("router", "--sync-to", "f", "--prefer-region", "r"), "--prefer-region: 'r', expected none with"),
        (("router", "--sync-to", "f"), "--model: missing, expected one of gpt-oss-120b, "),
        (("router", "--sync-to", "f", "--model", "m"), "--model: 'm' is not served, expected one of"),
        (
            ("router", "--sync-to", "f", "--model", "phi-4-14b", "--slo-class", "x"),
            "--slo-class: 'x' is no class of phi-4-14b",
        ),
        (("scrape", "h:1"), "--slo-class: None, expected with URLs and only with them"),
        (("scrape", "--slo-class", "c"), "--slo-class: 'c', expected with URLs and only with them"),
        (("router", "--sync-to", "ftp://x", *PHI), "--sync-to: 'ftp://x', expected an http or https URL"),
        (("router", "--sync-to", "http://", *PHI), "--sync-to: 'http://', expected an http or https URL"),
        (("router", "--sync-to", "/proc/x", *PHI), "--sync-to: /proc/x cannot be written"),
        (("router", "--sync-to", "/proc", *PHI), "--sync-to: /proc cannot be written"),
        (("scrape", "--name", ".."), "--name: '..', expected letters, digits"),
        (("scrape", "ftp://x", "--slo-class", "a"), "URL: 'ftp://x', expected an http or https URL"),
        (("scrape", "h:99999", "--slo-class", "a"), "URL: 'h:99999', expected an http or https URL"),
        (("scrape", "h:1", "--slo-class", "a/b"), "--slo-class: 'a/b', expected a name without white space"),
    ],
)
def test_a_router_that_cannot_be_is_refused(command: tuple[str, ...], said: str) -> None:
    assert said in refused(*command)


@pytest.mark.parametrize("host", ["192.0.2.1", "nosuchhost.invalid"])
def test_a_router_needs_an_address_of_this_machine(host: str) -> None:
    line = refused("router", "--port", "0", env={"CORAL_ROUTER__HOST": host})
    assert line.startswith(f"coral: router.host, router.port: {host}:0: ")


@pytest.mark.parametrize("command", [("router",), ("router", "--sync-to", "f", *PHI), ("scrape",)])
def test_one_process_of_a_name_runs_on_a_machine(tmp_path: Path, command: tuple[str, ...]) -> None:
    for folder in ("routers", "syncs", "scrapers"):
        (tmp_path / ".coral" / folder / "a").mkdir(parents=True)
    with ExitStack() as held:
        for folder in ("routers", "syncs", "scrapers"):
            held.enter_context(owned(tmp_path / ".coral" / folder / "a", "process"))
        line = refused(*command, "--name", "a", env={"CORAL_ROUTER__PORT": "0"})
    assert line.endswith(f"/a/lock: another {command[0]} runs on this state\n")


def test_a_router_serves_what_the_catalog_has() -> None:
    line = refused("router", env={"CORAL_CONTROL__SERVE": '{"nosuch": ["interactive"]}'})
    assert line == "coral: control.serve: nosuch/interactive is not in the catalog\n"
