"""How close each GPU comes to its datasheet: the fitted constants of the performance model.

One `Roof` a kind of kernel (`solver.kernels` has the formula), one `Link` a kind of transfer. Each says
where it is from: the data it was fitted on with its error on the part held out, or what was assumed and why.
The file that ships is `schemas/data/efficiencies.yaml`; `coral profile fit` writes it.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import Field, model_validator

from schemas.base import Count, Frozen, Name
from schemas.yamlfile import load_yaml

Share = Annotated[float, Field(gt=0, le=1.5)]
"""Of a peak rate. Above 1 a cache or a clock above the datasheet's is at work; above 1.5, a mistake."""
Seconds = Annotated[float, Field(ge=0, le=10)]


class Evidence(Frozen):
    """Where constants are from: measured points, or an assumption in words. Exactly one of the two."""

    fitted_on: str | None = None
    points: Count = 0
    held_out_points: Count = 0
    median_error: Annotated[float, Field(ge=0)] | None = None
    """Median absolute relative error on the held-out points."""
    p90_error: Annotated[float, Field(ge=0)] | None = None
    bias: float | None = None
    """Median of modelled over measured, less 1; negative is optimistic."""
    assumed: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.fitted_on is None) == (self.assumed is None):
            raise ValueError("exactly one of fitted_on and assumed is expected")
        if self.fitted_on is not None and self.points == 0:
            raise ValueError("points: 0, expected at least 1 beside fitted_on")
        return self


class Roof(Frozen):
    """seconds = launch + (compute^overlap + memory^overlap)^(1/overlap), each alone at its share of peak."""

    compute: Share
    bandwidth: Share
    launch_s: Seconds
    overlap: Annotated[float, Field(ge=1, le=100)] = 4.0
    """1: one after the other; large: the longer of the two."""
    quantising: Share | None = None
    """Of the bandwidth, for a pass of its own that narrows the activations first; None: there is none."""
    evidence: Evidence


class Link(Frozen):
    """seconds = latency + bytes / (rate x share)."""

    share: Share
    latency_s: Seconds
    evidence: Evidence


class Collective(Link):
    """The same among a number of GPUs: more of them may have to share what links there are."""

    gpus: Annotated[int, Field(ge=2)]
    ramp_bytes: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Of b bytes as many as sqrt(b (b + 2 ramp)) count: messages about as small do not fill the links."""


class Overhead(Frozen):
    """What the engine's own work adds to a step: scheduling, launching, sampling, answering."""

    step_s: Seconds
    sequence_s: Seconds
    """More for each sequence that gains a token."""
    evidence: Evidence


class FirstToken(Frozen):
    """seconds to a request's first token = server + own x its way through the steps that take its prompt.

    What many clients add by coming together is in neither: that is a matter of arrivals (`solver.headroom`).
    """

    server_s: Seconds
    """Before the engine and after it: HTTP, tokens from text, the way to the engine's process and back."""
    own: Annotated[float, Field(ge=1, le=10)]
    """Above 1 by what is left of the step that runs when the prompt comes, and what its kernels lack."""
    evidence: Evidence


class Efficiency(Frozen):
    """All constants of one GPU kind."""

    gpu: Name
    matmul: Roof
    """Dense matrix products in 16 bits, and in narrower weights where the GPU cannot compute in them."""
    matmul_fp8: Roof | None = None
    experts: Roof
    """Grouped products over experts, 16-bit weights."""
    experts_fp8: Roof | None = None
    experts_4bit: Roof
    """The same with weights below 8 bits (mxfp4)."""
    prefill_attention: Roof
    decode_attention: Roof
    elementwise: Roof
    """Norms, rotary embedding, activation, residual: `compute` does not count."""
    all_reduce: tuple[Collective, ...] = Field(min_length=1)
    """By number of GPUs; between two, the larger counts, beyond the largest, that."""
    network: Link
    """Activations to the next stage."""
    overhead: Overhead
    first_token: FirstToken

    def all_reduce_over(self, gpus: int) -> Collective:
        """The constants of an all-reduce over this many GPUs."""
        by_size = sorted(self.all_reduce, key=lambda c: c.gpus)
        return next((c for c in by_size if c.gpus >= gpus), by_size[-1])


class Efficiencies(Frozen):
    """A file of them."""

    gpus: tuple[Efficiency, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _once(self) -> Self:
        names = [e.gpu for e in self.gpus]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"gpus: {twice} given twice")
        return self

    def of(self, gpu: str) -> Efficiency:
        """The constants of a GPU kind.

        Raises:
            ValueError: there are none; the known ones are named.
        """
        for efficiency in self.gpus:
            if efficiency.gpu == gpu:
                return efficiency
        known = ", ".join(sorted(e.gpu for e in self.gpus))
        raise ValueError(f"efficiencies: no GPU {gpu!r}, expected one of {known}")

    def yaml(self) -> str:
        """As a file, a line for each kind of kernel."""
        lines = ["# Written by `coral profile fit`: see docs/performance-model.md.", "", "gpus:"]
        for efficiency in self.gpus:
            parts = efficiency.model_dump(mode="json", exclude_defaults=True)
            lines.append(f"  - gpu: {parts.pop('gpu')}")
            for name, part in parts.items():
                several = part if isinstance(part, list) else [part]
                flat = [
                    yaml.safe_dump(p, default_flow_style=True, sort_keys=False, width=1e9) for p in several
                ]
                if isinstance(part, list):
                    lines += [f"    {name}:", *(f"      - {text.strip()}" for text in flat)]
                else:
                    lines.append(f"    {name}: {flat[0].strip()}")
        return "\n".join(lines) + "\n"


SHIPPED_EFFICIENCIES = Path(__file__).parent / "data" / "efficiencies.yaml"


@cache
def load_efficiencies(path: Path = SHIPPED_EFFICIENCIES) -> Efficiencies:
    """Read a file of efficiencies; read once per process.

    Raises:
        OSError: the file cannot be read.
        yaml.YAMLError: it is no YAML.
        pydantic.ValidationError: a field is missing, unknown or impossible; the error names it.
    """
    return load_yaml(Efficiencies, path)
