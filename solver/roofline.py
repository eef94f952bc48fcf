"""Throughput and memory of a pipeline stage on a slice of a node: That[j] of coral.md.

A stage holds j consecutive layers on `tp` GPUs of one kind. What a step takes comes from `solver.layers`,
with constants fitted on measurements (`schemas.performance`); here it becomes saturated throughput within
the promised latencies (b = sequences of one micro-batch, I and O = mean input and output tokens, S = stages):

- `decode`: every step gives each of b sequences a token, d seconds. T = b / d tokens/s; d <= TPOT / S.
- `prefill`: b whole prompts a pass, P seconds; a pass holds at most the engine's tokens a step (C), a longer
  prompt takes several. T = b I / P tokens/s; r + S a P <= TTFT.
- `both`, with chunked prefill: b sequences need b/O new requests a step to stay b, so b I/O prompt tokens a
  step in the mean. Prompts come whole: a share f of the steps carries a chunk of k tokens beside the decodes
  (k = the prompt, or what they need where that is more, at most C - b; f = b I/(O k)), the others none. With
  m seconds for a step with a chunk, the mean step takes D = f m + (1 - f) d. T = (b/O) / D requests/s.
  A prompt's way through its chunks is max(1, I/k) m: r + S a max(1, I/k) m <= TTFT. A token comes every S
  mean steps, less what the request's own prompt, over before its first token, adds to them:
  S D - (D - d)/b <= TPOT.
- r is the way through the server, a >= 1 what a prompt waits for beyond its own steps (`FirstToken`); where
  a profile has the first token's time, both are in its correction.
- S micro-batches are in flight, so a stage's memory holds the cache of S b whole requests: no pre-emption.

Promises are judged at the mean request, as the paper does; waiting for other clients is head-room on the
demand. `solver.serving_points` holds these very waits against measured ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from schemas.catalog import Gpu, Model, Objective, Phase, ServiceLevel, Variant
from schemas.performance import Efficiencies
from solver.kernels import Cost, Kernels, Values
from solver.layers import Layers
from solver.profiles import NONE, Correction
from solver.shapes import Floats, Shape
from solver.steps import Own, Round, Step, Wait

ENGINE = "roofline-3"
"""Version of these figures; a rating names it, so that a change here makes old ratings visible."""

BATCHES: Floats = np.geomspace(1, 256, 73)
"""Micro-batch sizes that are tried, 8% apart. Means over time, so they need not be whole."""


@dataclass(frozen=True)
class Assumptions:
    """What no measurement at hand covers, each with its reason."""

    memory_share: float = 0.9
    """vLLM's default of gpu-memory-utilization, where a variant does not set it."""
    reserved_gb: float = 2.0
    """Of each GPU's share: activations of a full step, CUDA graphs, communication buffers. vLLM measures it
    at start; 1 to 3 GB are usual for these models at 2048 tokens a step."""
    batched_tokens: int = 2048
    """vLLM's default of max-num-batched-tokens for servers on GPUs below 70 GB and on A100. Larger ones have
    8192, which makes steps with a chunk rarer and longer, and the mean step hardly different."""
    sequences: int = 256
    """vLLM's default of max-num-seqs for the same GPUs."""
    load_gb_s: float = 1.0
    """Weights from storage to one node: a network disk or object store at 8 Gbit/s."""
    startup_s: float = 60.0
    """Process start, compilation and graph capture, without loading; the fleet measures the real one."""


DEFAULT = Assumptions()


class Slot(NamedTuple):
    """Where a stage lies: what its time and memory depend on beside its layers."""

    gpu: str
    tp: int
    first: bool
    last: bool
    send_gb_s: float
    """Line rate to the next stage, 10^9 bytes/s: the link within a node, else the network. Unused if last."""


@dataclass(frozen=True)
class Roofline:
    """The roofline of one variant of a model at one service level; layers j run from 1 to the model's.

    Batches are arrays of shape (batches, 1) and layers of shape (layers,), so that they broadcast.
    """

    model: Model
    variant: Variant
    level: ServiceLevel
    gpus: dict[str, Gpu] = field(repr=False)
    efficiencies: Efficiencies = field(repr=False)
    phase: Phase = "both"
    correction: Correction = NONE
    """What measurements say of the layers' time (`solver.profiles`)."""
    assume: Assumptions = DEFAULT
    shape: Shape = field(init=False)
    _tables: dict[tuple[Slot, int], Floats] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    _built: dict[tuple[str, int], Layers] = field(init=False, default_factory=dict, repr=False, compare=False)
    _rounds: dict[tuple[str, int], Round] = field(init=False, default_factory=dict, repr=False, compare=False)
    _prompts: dict[tuple[str, int], Step] = field(init=False, default_factory=dict, repr=False, compare=False)
    _rooms: dict[Slot, Floats] = field(init=False, default_factory=dict, repr=False, compare=False)
    _deepest: dict[Slot, Floats] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", Shape(self.model.architecture, self.variant))

    # ------------------------------------------------------------------------------------------ seconds

    def decode_s(self, slot: Slot, layers: Values, batch: Values) -> Values:
        """Seconds of one decode step of `batch` sequences, each half-way through its output."""
        return self.seconds(slot, layers, self.decode_step(slot.gpu, slot.tp, batch))

    def prefill_s(self, slot: Slot, layers: Values, prompts: Values = 1.0) -> Values:
        """Seconds of prefilling `prompts` mean prompts at once, in as many passes as they need."""
        return self.seconds(slot, layers, self.prefill_step(slot.gpu, slot.tp, prompts))

    def prompt_s(self, slot: Slot, layers: Values) -> Values:
        """Those of one prompt, of which every template asks."""
        key = slot.gpu, slot.tp
        if key not in self._prompts:
            self._prompts[key] = self.prefill_step(*key, 1.0)
        return self.seconds(slot, layers, self._prompts[key])

    def seconds(self, slot: Slot, layers: Values, step: Step) -> Values:
        """What a step takes in a slot that holds `layers`."""
        return step.layer.total_s * layers + self.once_s(slot, step)

    def once_s(self, slot: Slot, step: Step) -> Values:
        """Seconds of a step in a slot beside its layers."""
        total = step.overhead.total_s + (step.head if slot.last else self.send(slot, step)).total_s
        return total + step.embedding.total_s if slot.first else total

    def send(self, slot: Slot, step: Step) -> Cost:
        """Activations to the next stage."""
        return self._layers(slot.gpu, slot.tp).send(step.tokens / step.passes, slot.send_gb_s) * step.passes

    def decode_step(self, gpu: str, tp: int, batch: Values) -> Step:
        layer = self._layers(gpu, tp).decode(batch, self._context) * self.correction.decode(gpu, tp, batch)
        return self._step(gpu, tp, layer, batch, batch)

    def prefill_step(self, gpu: str, tp: int, prompts: Values) -> Step:
        """All passes over `prompts` mean prompts."""
        tokens = prompts * self.level.workload.mean_input_tokens
        passes = np.maximum(1.0, tokens / self._step_tokens)
        layer = self._layers(gpu, tp).prefill(tokens / passes, self._prompt_context)
        layer = layer * self.correction.prefill(gpu, tp, tokens)
        return self._step(gpu, tp, layer, tokens / passes, prompts) * passes

    def mixed_step(self, gpu: str, tp: int, batch: Values, chunk: Values) -> Step:
        """A step that decodes `batch` sequences and takes `chunk` prompt tokens along.

        Its decodes are corrected as they would be alone, and what the chunk adds to them as a prefill.
        """
        layers = self._layers(gpu, tp)
        layer = layers.mixed(batch, self._context, chunk, self._prompt_context)
        if self.correction != NONE:
            decode = layers.decode(batch, self._context)
            added = (layer + decode * -1.0) * self.correction.prefill(gpu, tp, chunk)
            layer = decode * self.correction.decode(gpu, tp, batch) + added
        prompts = chunk / self.level.workload.mean_input_tokens
        return self._step(gpu, tp, layer, batch + chunk, batch + prompts)

    def _no_faster_than_alone(self, gpu: str, tp: int, mixed: Step, chunk: Values) -> Step:
        """As it is, unless measured prefill takes longer: a mixed step reads weights once for both."""
        if self.correction == NONE:
            return mixed
        alone = self._layers(gpu, tp).prefill(chunk, self._prompt_context)
        measured_s = alone.total_s * self.correction.prefill(gpu, tp, chunk)
        lack = Cost(total_s=np.maximum(0.0, measured_s - mixed.layer.total_s))
        return replace(mixed, layer=mixed.layer + lack)

    def _step(self, gpu: str, tp: int, layer: Cost, tokens: Values, sampled: Values) -> Step:
        layers = self._layers(gpu, tp)
        overhead = Cost(fixed_s=layers.step_s, total_s=layers.step_s)
        return Step(layer, layers.embedding(tokens), layers.head(sampled), overhead, tokens)

    def _layers(self, gpu: str, tp: int) -> Layers:
        if (gpu, tp) not in self._built:
            kernels = Kernels(self.gpus[gpu], self.efficiencies.of(gpu))
            self._built[gpu, tp] = Layers(self.shape, kernels, tp)
        return self._built[gpu, tp]

    @property
    def _context(self) -> float:
        """Tokens that a sequence half-way through its output looks at."""
        return self.level.workload.mean_input_tokens + self.level.workload.mean_output_tokens / 2

    @property
    def _prompt_context(self) -> float:
        """Tokens that a prompt's token looks at in the mean: attention is causal."""
        return self.level.workload.mean_input_tokens / 2

    @property
    def _step_tokens(self) -> float:
        """Most tokens that the engine takes in one step."""
        return float(self.variant.vllm_args.get("max-num-batched-tokens", self.assume.batched_tokens))

    # -------------------------------------------------------------------------------------------- rounds

    def round(self, gpu: str, tp: int, batch: Floats) -> Round:
        """What the phase does over and over at each batch (formulas: top of this file)."""
        w, most = self.level.workload, self._step_tokens
        prompt, output = w.mean_input_tokens, w.mean_output_tokens
        tpot = objective_s(self.level.tpot, prompt)
        if self.phase == "decode":
            step = self.decode_step(gpu, tp, batch)
            return Round(step, batch, (Wait("TPOT", step, tpot),), batch, most)
        if self.phase == "prefill":
            step, tokens = self.prefill_step(gpu, tp, batch), batch * prompt
            return Round(step, tokens, (self._ttft(gpu, tp, step),), tokens, max(most, prompt))
        needed = batch * prompt / output
        chunk = np.clip(most - batch, 1.0, np.maximum(prompt, needed))
        carries = np.minimum(1.0, needed / chunk)  # more has no room
        step, full = self.decode_step(gpu, tp, batch), self.mixed_step(gpu, tp, batch, chunk)
        mean = full * carries + step * (1 - carries)
        waits = (
            Wait("TPOT", mean, tpot, Own(step, 1 / batch)),
            self._ttft(
                gpu, tp, self._no_faster_than_alone(gpu, tp, full, chunk), np.maximum(1.0, prompt / chunk)
            ),
        )
        return Round(mean, batch / output, waits, batch + needed, most)

    def _ttft(self, gpu: str, tp: int, step: Step, times: Values = 1.0) -> Wait:
        """What a request waits for whose prompt takes a step so many times."""
        first = self.efficiencies.of(gpu).first_token
        measured = self.correction.knows_first_token(gpu, tp)
        own, server_s = (1.0, 0.0) if measured else (first.own, first.server_s)
        budget_s = objective_s(self.level.ttft, self.level.workload.mean_input_tokens)
        return Wait("TTFT", step * (times * own), budget_s, server_s=server_s)

    def known_round(self, gpu: str, tp: int) -> Round:
        """That on the grid of batches, which every slot on the same GPUs asks for."""
        if (gpu, tp) not in self._rounds:
            self._rounds[gpu, tp] = self.round(gpu, tp, BATCHES[:, None])
        return self._rounds[gpu, tp]

    # ------------------------------------------------------------------------------------------- memory

    def weight_bytes(self, slot: Slot, layers: Values) -> Values:
        """Weights of a stage over all its GPUs; tied embeddings are one table only within one stage."""
        once = self.model.architecture.tied_embeddings and slot.first and slot.last
        tables = 1 if once else slot.first + slot.last
        return layers * self.shape.layer_bytes + tables * self.shape.head_bytes

    def memory_bytes(self, slot: Slot) -> float:
        """What a stage may use over all its GPUs, at least 0."""
        share = float(self.variant.vllm_args.get("gpu-memory-utilization", self.assume.memory_share))
        gpu = self.gpus[slot.gpu]
        return slot.tp * max(0.0, gpu.memory_gb * share - self.assume.reserved_gb) * 1e9

    def cache_bytes(self, slot: Slot, layers: Values, sequences: Values) -> Values:
        """KV cache of `sequences` whole requests; at least one of `max-model-len`, or vLLM won't start."""
        longest = self.shape.cache_bytes(float(self.variant.vllm_args.get("max-model-len", 0)))
        least = layers * longest * self.shape.cache_copies(slot.tp)
        return np.maximum(self._request_bytes(slot, layers, sequences), least)

    def _request_bytes(self, slot: Slot, layers: Values, sequences: Values) -> Values:
        """KV cache of whole requests; after prefill alone it goes elsewhere before the output comes."""
        w = self.level.workload
        tokens = w.mean_input_tokens + (0.0 if self.phase == "prefill" else w.mean_output_tokens)
        return layers * sequences * self.shape.cache_bytes(tokens) * self.shape.cache_copies(slot.tp)

    def most_layers(self, slot: Slot, stages: int) -> int:
        """Layers that a stage's memory holds at the smallest batch, whatever time they take."""
        if slot not in self._deepest:
            self._deepest[slot] = self.memory_depth(slot, self.layer_counts, float(BATCHES[0]))
        return int((self._deepest[slot] >= stages).sum())

    def memory_depth(self, slot: Slot, layers: Floats, batch: Values) -> Floats:
        """The largest S for which a stage's memory holds `layers` and the cache of S `batch` requests.

        Below 1 where it holds not even those of a lone stage.
        """
        free = self.memory_bytes(slot) - self.weight_bytes(slot, layers)
        starts = self.cache_bytes(slot, layers, 0.0) <= free
        return np.where(starts, free / self._request_bytes(slot, layers, batch), 0.0)

    # --------------------------------------------------------------------------------------- throughput

    @property
    def layer_counts(self) -> Floats:
        return np.arange(1.0, self.model.architecture.layers + 1)

    def table(self, slot: Slot, stages: int) -> Floats:
        """That[b, j-1]: throughput of a stage, one of `stages`; 0 where memory or an objective forbids it.

        Shape (len(BATCHES), layers); requests/s for `both`, else tokens/s. Never rises with j.
        """
        key = (slot, stages)
        if key not in self._tables:
            self._tables[key] = self.rates(slot, np.array([float(stages)]))[0]
        return self._tables[key]

    def rates(self, slot: Slot, stages: Floats) -> Floats:
        """`table` for several numbers of stages: shape (stages, batches, layers)."""
        rate, depth = self.pace_and_depth(slot)
        found = np.zeros((len(stages), len(BATCHES), self.model.architecture.layers))
        np.copyto(found[..., : rate.shape[1]], rate, where=stages[:, None, None] <= depth)
        return found

    def peaks(self, slot: Slot, stages: Sequence[int]) -> Floats:
        """The best batch's throughput for several numbers of stages: shape (stages, layers)."""
        rate, depth = self.pace_and_depth(slot)
        found = np.zeros((len(stages), self.model.architecture.layers))
        for s, count in enumerate(stages):
            np.where(depth >= count, rate, 0.0).max(axis=0, out=found[s, : rate.shape[1]])
        return found

    def pace_and_depth(self, slot: Slot) -> tuple[Floats, Floats]:
        """Throughput, and the largest S for which nothing forbids it; of as many layers as memory holds.

        Both of shape (len(BATCHES), layers).
        """
        room = self._known_room(slot)
        held = self.layer_counts[: room.shape[1]]
        rate, patience = self.pace(slot, held, self.known_round(slot.gpu, slot.tp))
        return rate, np.minimum(patience, room, out=patience)

    def pace(self, slot: Slot, layers: Floats, work: Round) -> tuple[Floats, Floats]:
        """Throughput, and the largest S for which S such stages keep the promises."""
        mean = self.seconds(slot, layers, work.step)
        patience = []
        for wait in work.waits:
            spent = mean if wait.step is work.step else self.seconds(slot, layers, wait.step)
            most = (wait.budget_s - wait.server_s) / spent
            if wait.own is not None:
                plain, share = self.seconds(slot, layers, wait.own.plain), wait.own.share
                most = most + share * (1 - plain / spent)
            patience.append(most)
        return np.asarray(work.done / mean), reduce(np.minimum, map(np.asarray, patience))

    def waited_s(self, slot: Slot, layers: Values, stages: int, wait: Wait) -> Values:
        """What a request waits for, over `stages` stages such as this one."""
        spent = self.seconds(slot, layers, wait.step)
        total = wait.server_s + stages * spent
        if wait.own is None:
            return total
        return total - wait.own.share * (spent - self.seconds(slot, layers, wait.own.plain))

    def room(self, slot: Slot, layers: Floats, batch: Floats, work: Round) -> Floats:
        """The largest S for which S micro-batches have room in memory and in the engine."""
        sequences = np.where(batch > 1, self.most_sequences / batch, np.inf)  # one a stage is always let in
        sequences = np.where(work.tokens <= work.most_tokens, sequences, 0.0)
        return np.minimum(self.memory_depth(slot, layers, 1.0) / batch, sequences)

    def _known_room(self, slot: Slot) -> Floats:
        """That on the grid of batches, of as many layers as there is any for; sending takes none."""
        key = slot._replace(send_gb_s=0.0)
        if key not in self._rooms:
            work = self.known_round(slot.gpu, slot.tp)
            room = self.room(slot, self.layer_counts, BATCHES[:, None], work)
            self._rooms[key] = room[:, : int((room[0] >= 1).sum())]  # the smallest batch takes least
        return self._rooms[key]

    @property
    def most_sequences(self) -> float:
        """How many sequences the engine takes at once, over all stages."""
        return float(self.variant.vllm_args.get("max-num-seqs", self.assume.sequences))


def objective_s(objectives: tuple[Objective, ...], prompt_tokens: float) -> float:
    """The promise for a prompt of this length, in seconds: its tightest bucket, else the one for all others.

    Without a bucket that holds the prompt, the longest one's promise stands in.
    """
    endless = float("inf")
    buckets = sorted(objectives, key=lambda o: (o.max_prompt_tokens or endless, o.ms))
    fitting = [o for o in buckets if (o.max_prompt_tokens or endless) >= prompt_tokens]
    return (fitting[0] if fitting else buckets[-1]).ms / 1000
