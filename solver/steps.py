"""What one step of a pipeline stage costs: its layers, and what comes once.

Every figure is linear in the layers held, so a stage's seconds never fall when it holds more.
"""

from dataclasses import dataclass
from typing import NamedTuple

from solver.kernels import Cost, Values
from solver.shapes import Flags, Floats


@dataclass(frozen=True)
class Step:
    """One step of a stage; each cost is an array over batches, of shape (batches, 1), or one figure."""

    layer: Cost
    """One layer, of as many as the stage holds."""
    embedding: Cost
    """On the first stage."""
    head: Cost
    """Final norm and LM head of the tokens that are sampled, on the last stage."""
    send: Cost
    """Activations to the next stage, on all but the last."""
    overhead: Cost
    """Scheduling and launching, whatever is in the step."""

    @property
    def once(self) -> Cost:
        return self.embedding + self.head + self.send + self.overhead

    def cost(self, layers: Values) -> Cost:
        """All of the step on a stage of `layers`."""
        return self.layer * layers + self.once

    def seconds(self, layers: Values) -> Values:
        return self.layer.total_s * layers + self.once.total_s

    def __add__(self, other: "Step") -> "Step":
        """One after the other."""
        return Step(
            self.layer + other.layer,
            self.embedding + other.embedding,
            self.head + other.head,
            self.send + other.send,
            self.overhead + other.overhead,
        )

    def __mul__(self, times: Values) -> "Step":
        return Step(
            self.layer * times,
            self.embedding * times,
            self.head * times,
            self.send * times,
            self.overhead * times,
        )


class Wait(NamedTuple):
    """A promise: what a request waits for in this stage, and how long it may over all stages."""

    promise: str
    """`TTFT` or `TPOT`."""
    step: Step
    budget_s: float


@dataclass(frozen=True)
class Round:
    """What a stage does over and over, for each batch."""

    step: Step
    """The mean step."""
    done: Floats
    """What it gets done: requests of phase `both`, else tokens."""
    waits: tuple[Wait, ...]
    has_room: Flags
    """Whether the engine takes so many tokens in a step."""
