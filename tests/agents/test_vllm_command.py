"""Command lines and environments of vLLM processes, as text; tests/vllm shows that vLLM takes them."""

import itertools
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.engine import EngineError, EngineSpec
from agents.vllm import Launch, VllmNode, engine_version, facts, interface_of, launch, partition
from schemas.problems import Template
from tests.agents.shapes import Place, shaped, spec_at, specs

CPU = VllmNode(
    command=Path("/opt/vllm/bin/vllm"),
    version="vllm-0.32.0+cpu",
    platform="cpu",
    device_memory_gb=8.0,
    kv_cache_bytes=64 << 20,
    stuck_after_s=10.5,
)
CUDA = CPU.model_copy(update={"platform": "cuda", "device_memory_gb": 24.0, "kv_cache_bytes": None})
TWO: list[Place] = [("c1", (0,)), ("c2", (2,))]


def started(spec: EngineSpec, node: VllmNode = CPU) -> Launch:
    return launch(node, spec, Path("/models/tiny"), http_port=8001, master_port=29001, kv_port=5601)


def value(started: Launch, flag: str) -> str | None:
    """What follows `flag`; None where it is not given."""
    return next((after for name, after in itertools.pairwise(started.argv) if name == flag), None)


def test_one_stage_needs_no_other_machine() -> None:
    one = started(specs([4], [("c1", (1,))])[0])
    assert one.argv[:3] == ("/opt/vllm/bin/vllm", "serve", "/models/tiny")
    assert value(one, "--served-model-name") == "tiny"
    assert value(one, "--device-ids") == "1"
    assert (value(one, "--host"), value(one, "--port")) == ("127.0.0.1", "8001")
    assert value(one, "--shutdown-timeout") == "600"
    assert not {"--nnodes", "--master-addr", "--headless", "--distributed-executor-backend"} & {*one.argv}
    assert "VLLM_PP_LAYER_PARTITION" not in one.environment


def test_an_uneven_pipeline_over_two_nodes() -> None:
    instance, template = shaped([1, 3], TWO)
    addresses = {"c1": "10.0.0.1", "c2": "10.0.0.2"}
    head, tail = (started(spec_at(instance, template, stage, addresses)) for stage in (0, 1))
    for rank in (head, tail):
        assert rank.environment["VLLM_PP_LAYER_PARTITION"] == "1,3"
        assert value(rank, "--pipeline-parallel-size") == value(rank, "--nnodes") == "2"
        assert (value(rank, "--master-addr"), value(rank, "--master-port")) == ("10.0.0.1", "29001")
    assert (value(head, "--node-rank"), value(tail, "--node-rank")) == ("0", "1")
    assert (value(head, "--device-ids"), value(tail, "--device-ids")) == ("0", "2")
    assert value(head, "--port") == "8001"
    assert "--headless" not in head.argv
    assert tail.argv[-1] == "--headless"
    assert "--port" not in tail.argv
    assert head.environment["VLLM_HOST_IP"] == "10.0.0.1"
    assert tail.environment["VLLM_HOST_IP"] == "10.0.0.2"


def test_only_the_head_answers_any_rpc() -> None:
    """Dev mode allows everything, so it is where HTTP is, on loopback."""
    head, tail = (started(spec) for spec in specs([1, 3], TWO))
    assert head.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in tail.environment
    assert value(head, "--host") == "127.0.0.1"


def test_stages_on_one_node_are_ranks_of_their_own() -> None:
    ranks = [started(spec) for spec in specs([1, 2, 1], [("c1", (0, 1)), ("c1", (2, 3)), ("c2", (0, 1))])]
    assert [value(rank, "--device-ids") for rank in ranks] == ["0,1", "2,3", "0,1"]
    assert [value(rank, "--node-rank") for rank in ranks] == ["0", "1", "2"]
    assert {value(rank, "--nnodes") for rank in ranks} == {"3"}
    assert {value(rank, "--tensor-parallel-size") for rank in ranks} == {"2"}


def test_facts_are_the_same_at_all_ranks_and_tell_a_shift() -> None:
    places: list[Place] = [("c1", (0,)), ("c2", (1,)), ("c2", (2,))]
    head, *others = specs([1, 2, 1], places)
    assert all(facts(CPU, other) == facts(CPU, head) for other in others)
    shifted = specs([2, 1, 1], places)[1]
    assert facts(CPU, shifted)["partition"] == "2,1,1"
    assert partition(head.instance) == "1,2,1"


def test_the_variants_arguments() -> None:
    args = {"dtype": "bfloat16", "max-model-len": "2048", "enable-prefix-caching": "false"}
    one = started(specs([4], [("c1", (0,))], vllm_args=args)[0])
    assert (value(one, "--dtype"), value(one, "--max-model-len")) == ("bfloat16", "2048")
    assert "--no-enable-prefix-caching" in one.argv
    assert "--enable-prefix-caching" not in one.argv


def test_a_switch_is_true_or_false() -> None:
    spec = specs([4], [("c1", (0,))], vllm_args={"enable-prefix-caching": "yes"})[0]
    with pytest.raises(EngineError, match=r"enable-prefix-caching: 'yes', expected true or false") as told:
        started(spec)
    assert told.value.refusal == "not_deployable"


def test_gpu_memory_is_what_the_rank_was_rated_with() -> None:
    """10 GB on one device, and 2 GB beside them, of 24; half of that on each of two devices."""
    one = started(specs([4], [("c1", (0,))])[0], CUDA)
    two = started(specs([4], [("c1", (0, 1))])[0], CUDA)
    assert value(one, "--gpu-memory-utilization") == "0.500"
    assert value(two, "--gpu-memory-utilization") == "0.292"


def test_gpu_memory_stays_below_the_whole_device() -> None:
    full = CUDA.model_copy(update={"device_memory_gb": 10.0})
    assert value(started(specs([4], [("c1", (0,))])[0], full), "--gpu-memory-utilization") == "0.950"


def test_the_variant_may_say_how_much_gpu_memory() -> None:
    spec = specs([4], [("c1", (0,))], vllm_args={"gpu-memory-utilization": "0.9"})[0]
    assert started(spec, CUDA).argv.count("--gpu-memory-utilization") == 1
    assert value(started(spec, CUDA), "--gpu-memory-utilization") == "0.9"


def test_the_cpu_takes_what_it_is_given() -> None:
    one = started(specs([4], [("c1", (0,))])[0])
    assert value(one, "--kv-cache-memory-bytes") == str(64 << 20)
    assert "--gpu-memory-utilization" not in one.argv
    assert one.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "--enforce-eager" not in one.argv  # pipelines on the CPU die of it


def test_gpus_compile_and_thread_as_they_like() -> None:
    one = started(specs([4], [("c1", (0,))])[0], CUDA)
    assert not [argument for argument in one.argv if argument.startswith("-cc")]
    assert "OMP_NUM_THREADS" not in one.environment


def test_gpus_are_numbered_as_nvml_does() -> None:
    assert started(specs([4], [("c1", (0,))])[0], CUDA).environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_stuck_step_ends_in_whole_seconds() -> None:
    assert started(specs([4], [("c1", (0,))])[0]).environment["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "11"


@pytest.mark.parametrize(("phase", "role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
def test_disaggregated_phases_hand_kv_caches_over(phase: Any, role: str) -> None:
    one = started(specs([4], [("c1", (0,))], phase=phase)[0])
    assert json.loads(value(one, "--kv-transfer-config") or "") == {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_buffer_device": "cpu",
    }
    assert one.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5601"
    assert one.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"


def test_nothing_is_fetched_and_nothing_reported() -> None:
    environment = started(specs([4], [("c1", (0,))])[0]).environment
    assert environment["HF_HUB_OFFLINE"] == environment["VLLM_NO_USAGE_STATS"] == "1"


def test_the_template_travels_with_its_id() -> None:
    """The shapes of these tests are templates that a plan could carry."""
    _, template = shaped([1, 3], TWO, vllm_args={"dtype": "float32"})
    assert Template.model_validate_json(template.model_dump_json()) == template


# --- asked of the machine --------------------------------------------------------------------------
def environment_with(folder: Path, script: str) -> Path:
    """Something like a virtual environment: a `vllm` command beside a python that runs `script`."""
    for name, text in {"vllm": "", "python": f"#!/bin/sh\n{script}\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod((folder / name).stat().st_mode | stat.S_IXUSR)
    return folder / "vllm"


def test_the_version_is_read_not_run(tmp_path: Path) -> None:
    assert engine_version(environment_with(tmp_path, "echo 0.32.0+cpu")) == "vllm-0.32.0+cpu"


def test_no_command(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not exist, expected the vllm command") as told:
        engine_version(tmp_path / "vllm")
    assert told.value.refusal == "engine_missing"


def test_an_environment_without_vllm(tmp_path: Path) -> None:
    command = environment_with(tmp_path, f'exec {sys.executable} "$@"')  # ours has none
    with pytest.raises(EngineError, match="No package metadata was found for vllm") as told:
        engine_version(command)
    assert told.value.refusal == "engine_missing"


def test_the_interface_of_loopback() -> None:
    assert interface_of("127.0.0.1").startswith("lo")


def test_an_address_of_another_machine() -> None:
    with pytest.raises(EngineError, match=r"192\.0\.2\.1: no network interface"):
        interface_of("192.0.2.1")
