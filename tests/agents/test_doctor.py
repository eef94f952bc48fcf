"""What the doctor says about environments that stand for vLLM's, good and bad."""

import stat
from pathlib import Path

import pytest

from agents.doctor import Finding, check
from agents.inventory import Device, FixedMachine, Inventory
from agents.revisions import revision_of
from agents.tiny_model import make

TOLD = '{"torch": "2.13.0", "platform": "cpu", "nixl": "works"}'


def vllm(folder: Path, told: str = TOLD, status: int = 0) -> Path:
    """A `vllm` command whose interpreter tells a version, and then `told`."""
    folder.mkdir(exist_ok=True)
    script = f"""#!/bin/sh
case "$2" in
  *version*vllm*) [ "$(echo "$2" | wc -l)" -eq 1 ] && echo 0.32.0 && exit 0 ;;
esac
echo 'vLLM logs to its standard output, too'
echo '{told}'
echo 'ImportError: libgomp.so.1' >&2
exit {status}
"""
    for name, text in {"vllm": "", "python": script}.items():
        (folder / name).write_text(text)
        (folder / name).chmod((folder / name).stat().st_mode | stat.S_IXUSR)
    return folder / "vllm"


def told(findings: list[Finding], what: str) -> tuple[str, str]:
    return next((finding.level, finding.text) for finding in findings if finding.what == what)


def test_all_is_well(tmp_path: Path) -> None:
    make(tmp_path / "tiny")
    (tmp_path / "tiny" / "coral-reference-auto.json").write_text("{}")
    revision = revision_of(tmp_path / "tiny")
    findings = check(
        vllm(tmp_path / "bin"), platform="cpu", models={"tiny": tmp_path / "tiny"}, address="127.0.0.1"
    )
    assert told(findings, "vllm") == ("ok", f"vllm-0.32.0 at {tmp_path / 'bin' / 'vllm'}")
    assert told(findings, "import") == ("ok", "its parser works, with torch 2.13.0")
    assert told(findings, "model tiny") == ("ok", f"revision {revision}; references: auto")
    assert told(findings, "nixl")[0] == told(findings, "address")[0] == "ok"


@pytest.mark.parametrize(
    ("command", "why"),
    [(None, "node.vllm is not set"), (Path("/nowhere/vllm"), "does not exist, expected the vllm command")],
)
def test_no_vllm(command: Path | None, why: str) -> None:
    level, text = told(check(command, platform="cpu", models={}, address="127.0.0.1"), "vllm")
    assert level == "bad"
    assert why in text


def test_a_vllm_that_does_not_import(tmp_path: Path) -> None:
    findings = check(vllm(tmp_path, status=1), platform="cpu", models={}, address="127.0.0.1")
    assert told(findings, "import") == ("bad", "vLLM does not import: ImportError: libgomp.so.1")


def test_a_vllm_for_something_else(tmp_path: Path) -> None:
    findings = check(vllm(tmp_path), platform="cuda", models={}, address="127.0.0.1")
    assert told(findings, "platform")[0] == "bad"


def test_no_nixl_is_worth_a_note(tmp_path: Path) -> None:
    findings = check(
        vllm(tmp_path, TOLD.replace("works", "none")), platform="cpu", models={}, address="127.0.0.1"
    )
    assert told(findings, "nixl") == ("note", "not installed: no instances of phase prefill or decode here")


@pytest.mark.parametrize(
    ("files", "level", "why"),
    [
        ((), "bad", "has no files"),
        (("a.bin",), "bad", "has no config.json"),
        (("config.json",), "note", "no reference"),
    ],
)
def test_models_that_are_none(tmp_path: Path, files: tuple[str, ...], level: str, why: str) -> None:
    for file in files:
        (tmp_path / file).write_text("{}")
    found = told(check(None, platform="cpu", models={"m": tmp_path}, address="127.0.0.1"), "model m")
    assert found[0] == level
    assert why in found[1]


def test_a_store_that_is_not_mounted(tmp_path: Path) -> None:
    findings = check(None, platform="cpu", models={}, address="127.0.0.1", store=tmp_path / "store")
    assert told(findings, "store") == ("bad", f"{tmp_path / 'store'} is no folder")


def test_an_address_of_another_machine() -> None:
    assert told(check(None, platform="cpu", models={}, address="192.0.2.1"), "address")[0] == "bad"


def test_gpus_and_who_holds_them() -> None:
    device = Device(index=0, name="L4", memory_gb=24.0, used_gb=20.0, pids=(17,))
    machine = FixedMachine(Inventory(devices=(device,), faults=("device 1: fell off the bus",)))
    findings = check(None, platform="cuda", models={}, address="127.0.0.1", machine=machine)
    assert told(findings, "gpu 0") == ("note", "L4, 4.0 of 24.0 GB free, held by processes [17]")
    assert told(findings, "gpus") == ("bad", "device 1: fell off the bus")


def test_no_gpus_where_some_were_promised() -> None:
    findings = check(None, platform="cuda", models={}, address="127.0.0.1", machine=FixedMachine(Inventory()))
    assert told(findings, "gpus")[0] == "bad"
