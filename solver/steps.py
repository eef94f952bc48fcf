"""What one step of a pipeline stage costs: its layers, and what comes once.

Every figure is linear in the layers held, so a stage's seconds never fall when it holds more.
"""

from dataclasses import dataclass
from typing import NamedTuple

from solver.kernels import Cost, Values
from solver.shapes import Floats


@dataclass(frozen=True)
class Step:
    """A step on some GPUs, wherever in the chain they are; arrays over batches have shape (batches, 1)."""

    layer: Cost
    """One layer, of as many as the stage holds."""
    embedding: Cost
    """On the first stage."""
    head: Cost
    """Final norm and LM head of the tokens that are sampled, on the last stage."""
    overhead: Cost
    """Scheduling and launching, whatever is in the step."""
    tokens: Values
    """Tokens whose activations go to the next stage, on all but the last."""
    passes: Values = 1.0
    """How often they go: 1, unless this stands for several steps in a row."""

    def __add__(self, other: "Step") -> "Step":
        """One after the other."""
        return Step(
            self.layer + other.layer,
            self.embedding + other.embedding,
            self.head + other.head,
            self.overhead + other.overhead,
            self.tokens + other.tokens,
            self.passes + other.passes,
        )

    def __mul__(self, times: Values) -> "Step":
        return Step(
            self.layer * times,
            self.embedding * times,
            self.head * times,
            self.overhead * times,
            self.tokens * times,
            self.passes * times,
        )


class Own(NamedTuple):
    """A request's own prompt does not delay its tokens: of the S mean steps it waits for, a share of one is
    as if no prompt were taken along."""

    plain: Step
    share: Floats
    """1/b: of b prompts that the others and it brought, one is its own."""


class Wait(NamedTuple):
    """A promise: what a request waits for in this stage, and how long it may over all stages.

    Over S stages it waits for `server_s` + S x `step`, less what is its `own`.
    """

    promise: str
    """`TTFT` or `TPOT`."""
    step: Step
    """It waits for one in each of S stages."""
    budget_s: float
    own: Own | None = None
    server_s: float = 0.0
    """Once a request, whatever the stages: its way through the server."""


@dataclass(frozen=True)
class Round:
    """What a stage does over and over, for each batch."""

    step: Step
    """The mean step."""
    done: Floats
    """What it gets done: requests of phase `both`, else tokens."""
    waits: tuple[Wait, ...]
    tokens: Floats
    """Tokens that a step must take."""
    most_tokens: float
    """Those that the engine takes in a step."""
