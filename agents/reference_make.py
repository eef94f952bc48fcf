"""Makes a reference (`agents.reference`): one unpartitioned vLLM, asked in several ways.

The ways differ only in what else is computed beside a prompt, so their answers differ by rounding alone; the
tolerance is a multiple of that.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from itertools import combinations
from pathlib import Path

from agents.engine import EngineError, EngineSpec
from agents.files import write_atomically
from agents.guard_engine import EngineProcesses
from agents.guard_keys import free_port
from agents.ledger import RankKey
from agents.lifespan import interrupted, within
from agents.probe import Probe
from agents.reference import Answers, Prompts, Reference, ask, deviation, file_of, post, precision
from agents.revisions import revision_of
from agents.vllm import VllmNode, launch
from schemas.plans import Instance, Rank, Stage
from schemas.problems import LatencyTable, Pool, Rating, Service, Template, TemplateRank, TemplateStage

_TEXTS = (
    "The tide comes in twice a day, and each time it leaves something behind on the sand.",
    "In 1687 Newton wrote that every body attracts every other with a force that falls with the square",
    "def mean(values):\n    total = sum(values)\n    return total / len(values) if values else 0.0\n",
    "Question: which of the planets has the most moons? Answer:",
    "Die Rechnung wurde am 3. Mai bezahlt, und am 4. Mai kam die Lieferung in zwei Kisten an.",
    '{"name": "reef", "layers": 4, "ready": true, "stages": [1, 3]}',
)
_TOKENS = 64
"""The most that is used of a text; all texts fit the shortest context that anybody serves."""
_TIMES_SPREAD = 5.0
_LEAST_TOLERANCE = 0.1
"""Nats. What rounding does to low precisions where one machine's runs agree to the last bit."""
_NAME = "reference"
_ADDRESS = "127.0.0.1"
_ASK_S = 120.0
_END_S = 30.0
_POLL_S = 0.5


async def make(
    folder: Path,
    node: VllmNode,
    vllm_args: Mapping[str, str],
    *,
    log: Path,
    tp: int = 1,
    start_within_s: float = 1800.0,
) -> Path:
    """Run one unpartitioned vLLM over the weights in `folder`, ask it, and write the file beside them.

    It runs as a task of the main thread, since a signal that ends this process must end vLLM first.

    Args:
        vllm_args: the variant's.
        log: where vLLM's output goes.
        tp: over how many devices of this machine, from the first on.

    Raises:
        EngineError: vLLM did not start or answer; the text names its log.
        KeyboardInterrupt: told to end by a signal, and vLLM has ended.
        OSError: the weights cannot be read, or the file not be written.
    """
    with interrupted():
        return await _make(folder, node, vllm_args, log=log, tp=tp, start_within_s=start_within_s)


async def _make(
    folder: Path,
    node: VllmNode,
    vllm_args: Mapping[str, str],
    *,
    log: Path,
    tp: int,
    start_within_s: float,
) -> Path:
    revision = await asyncio.to_thread(revision_of, folder)
    async with served(folder, node, vllm_args, log=log, tp=tp, start_within_s=start_within_s) as base_url:
        prompts = [await _tokens(base_url, text) for text in _TEXTS]
        answers, spread = await calibrate(base_url, prompts)
    tolerance = max(_LEAST_TOLERANCE, _TIMES_SPREAD * spread)
    path = file_of(folder, precision(vllm_args))
    reference = Reference(
        revision=revision,
        precision=precision(vllm_args),
        engine=node.version,
        prompts=tuple(tuple(prompt) for prompt in prompts),
        answers=tuple(tuple(answer) for answer in answers),
        tolerance=tolerance,
        calibration=(
            f"the prompts batched, again, in other order and alone differ by {spread:.3g} at most; "
            f"{_TIMES_SPREAD:g} times that, at least {_LEAST_TOLERANCE:g}"
        ),
    )
    write_atomically(path, reference.model_dump_json(indent=1) + "\n")
    return path


async def calibrate(base_url: str, prompts: Prompts) -> tuple[Answers, float]:
    """The answers, and the greatest difference between several ways of asking for them."""

    async def asked(some: Prompts) -> Answers:
        return await ask(base_url, _NAME, some, timeout_s=_ASK_S)

    alone = [(await asked([prompt]))[0] for prompt in prompts]
    together = await asked(prompts)
    again = await asked(prompts)
    backwards = list(reversed(await asked(list(reversed(prompts)))))
    ways = (alone, together, again, backwards)
    return alone, max(deviation(one, other) for one, other in combinations(ways, 2))


async def _tokens(base_url: str, text: str) -> list[int]:
    told = await post(base_url, "/tokenize", {"model": _NAME, "prompt": text}, timeout_s=_ASK_S)
    try:
        return [int(token) for token in told["tokens"][:_TOKENS]]
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{base_url}/tokenize gave no tokens: {error!r}") from error


# --- one vLLM for a while --------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def served(
    folder: Path,
    node: VllmNode,
    vllm_args: Mapping[str, str],
    *,
    log: Path,
    tp: int = 1,
    start_within_s: float = 1800.0,
) -> AsyncIterator[str]:
    """One unpartitioned vLLM on loopback, healthy, for as long as the context lasts: its base URL.

    It ends with this process, however that ends.
    """
    port = free_port(_ADDRESS)
    command = launch(node, _whole(node, vllm_args, tp), folder, http_port=port, master_port=0, kv_port=0)
    engine = await EngineProcesses.start(command, _begin(log), log)
    base_url = f"http://{_ADDRESS}:{port}"
    try:
        await _healthy(base_url, engine, log, start_within_s)
        yield base_url
        engine.terminate()
        await within(_END_S, engine.exited())
    finally:
        await engine.end()


def _begin(log: Path) -> str:
    """Have an empty log; returns the tag of this process's engine."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    return f"{log.resolve()}.{os.getpid()}"


async def _healthy(base_url: str, engine: EngineProcesses, log: Path, within_s: float) -> None:
    """Wait until it is. Raises EngineError: it ended before, or took too long."""
    lost = asyncio.create_task(engine.lost())
    try:
        async with asyncio.timeout(within_s), Probe(base_url) as probe:
            while await probe.health() != "well":
                if lost.done():
                    raise EngineError(f"{lost.result()}; see {log}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise EngineError(f"vLLM was not healthy within {within_s:g} s; see {log}") from error
    finally:
        lost.cancel()


def _whole(node: VllmNode, vllm_args: Mapping[str, str], tp: int) -> EngineSpec:
    """One rank with all layers, on this machine's first `tp` devices."""
    devices, memory_gb = tuple(range(tp)), node.device_memory_gb * tp
    stages = (
        TemplateStage(layers=1, ranks=(TemplateRank(node=0, device_ids=devices, memory_gb=memory_gb),)),
    )
    template = Template(
        id=Template.identity(_NAME, _NAME, dict(vllm_args), "both", "vllm", (_NAME,), stages),
        model=_NAME,
        variant=_NAME,
        checkpoint=_NAME,
        vllm_args=dict(vllm_args),
        phase="both",
        runtime="vllm",
        nodes=(_NAME,),
        stages=stages,
        latency=LatencyTable(batch=(1,), step_ms=(1.0,), prefill_ms_per_token=1.0, startup_s=1.0),
    )
    rank = Rank(claim=_NAME, device_ids=devices, tp=tp, memory_gb=memory_gb)
    instance = Instance(
        id=_NAME,
        attempt=1,
        role="starting",
        template_id=template.id,
        rating=Rating(slo_class=_NAME, throughput=1.0, workload=_NAME, engine=node.version),
        service=Service(model=_NAME, slo_class=_NAME),
        pool=Pool(cloud=_NAME, region=_NAME, market="on-demand"),
        stages=(Stage(index=0, first_layer=0, layers=1, ranks=(rank,)),),
    )
    key = RankKey(_NAME, 1, 0, 0)
    return EngineSpec(instance=instance, template=template, key=key, address=_ADDRESS)
