"""The reference check on real vLLM finds out ranks that disagree; right ones pass it in test_door.py."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest

from agents.kafka_probe import free_ports
from agents.reference import ask, compare, deviation, load
from agents.revisions import revision_of
from agents.vllm import Launch, VllmNode, launch
from tests.agents.shapes import specs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

HANG_S = 500.0
MARGIN = 5.0
"""A shift must be found with so many times the tolerance to spare."""


@contextlib.asynccontextmanager
async def running(launches: Sequence[Launch], port: int, logs: Path) -> AsyncIterator[str]:
    """The processes of one instance, healthy: the base URL of its head."""
    with contextlib.ExitStack() as stack:
        ranks = [
            subprocess.Popen(  # noqa: ASYNC220  forks and returns
                each.argv,
                env=os.environ | each.environment,
                stdout=stack.enter_context((logs / f"rank-{index}.log").open("wb")),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for index, each in enumerate(launches)
        ]
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                async with asyncio.timeout(HANG_S):
                    while not await healthy(client):
                        assert [rank.poll() for rank in ranks] == [None] * len(ranks), f"ended; see {logs}"
                        await asyncio.sleep(0.5)
            yield f"http://127.0.0.1:{port}"
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()


async def healthy(client: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (await client.get("/health")).status_code == httpx.codes.OK
    return False


async def test_a_shifted_partition_is_found_out(cpu_node: VllmNode, tiny_model: Path, tmp_path: Path) -> None:
    """Rank 1 is told `2,2` where rank 0 is told `1,3`: layer 1 is computed by nobody."""
    reference = load(tiny_model, revision_of(tiny_model), "auto")
    http, master, kv = free_ports(3)
    ranks = []
    for spec, told in zip(specs([1, 3], [("c1", (0,)), ("c1", (1,))]), ("1,3", "2,2"), strict=True):
        made = launch(cpu_node, spec, tiny_model, http_port=http, master_port=master, kv_port=kv)
        environment = made.environment | {"VLLM_PP_LAYER_PARTITION": told}
        ranks.append(made.model_copy(update={"environment": environment}))
    async with running(ranks, http, tmp_path) as base_url:
        answers = await ask(base_url, "tiny", reference.prompts, timeout_s=HANG_S)
    worst = deviation(reference.answers, answers)
    print(
        f"log-probabilities off the unpartitioned run's: 1,3 beside 2,2 {worst:.3g}; "
        f"tolerance {reference.tolerance:.3g} ({reference.calibration})"
    )
    assert compare(reference, answers) is not None
    assert worst > MARGIN * reference.tolerance
