"""The reference check: does an instance compute what its weights say?

Ranks that disagree about the partition are healthy, answer 200, and are wrong. So before an instance is
admitted, the log-probabilities that it gives the tokens of fixed prompts are compared to those of an
unpartitioned run, which `coral reference make` did once and kept with the weights, one file per
(revision, precision).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from agents.vllm import VllmNode
from schemas.base import Frozen
from schemas.catalog import Positive, Revision

Prompts = Sequence[Sequence[int]]
"""Token ids."""
Answers = Sequence[Sequence[float]]
"""Per prompt the natural log-probability of each of its tokens but the first, given those before it."""


class Reference(Frozen):
    """What an unpartitioned run answered, and how far an answer may be from it."""

    revision: Revision
    precision: str
    engine: str
    """Version of the engine that answered."""
    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[float, ...], ...]
    tolerance: Positive
    """The greatest absolute difference of a log-probability that is still right."""
    calibration: str
    """How the tolerance was found, in words."""


def precision(vllm_args: Mapping[str, str]) -> str:
    """What of a template's arguments changes its numbers, as a word: `auto`, `float32`, `auto-kv-fp8`."""
    raise NotImplementedError


def load(folder: Path, revision: str, precision: str) -> Reference:
    """The reference kept with the weights in `folder`.

    Raises:
        EngineError: there is none that fits, and why (refusal `no_reference`).
    """
    raise NotImplementedError


def compare(reference: Reference, answers: Answers) -> str | None:
    """What is wrong with the answers to the reference's prompts; None if nothing. Pure."""
    raise NotImplementedError


async def ask(base_url: str, model: str, prompts: Prompts, *, timeout_s: float) -> Answers:
    """The answers of the OpenAI-compatible server at `base_url` (such as `http://127.0.0.1:8000`).

    Raises:
        EngineError: it does not answer in time, or not as vLLM does; the text says what.
    """
    raise NotImplementedError


async def make(folder: Path, node: VllmNode, vllm_args: Mapping[str, str], *, logs: Path) -> Path:
    """Run one unpartitioned vLLM over the weights in `folder`, ask it, and write the file beside them.

    Raises:
        EngineError: vLLM did not start or answer; the text names its log.
    """
    raise NotImplementedError
