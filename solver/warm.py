"""Compiles the searches once, which keeps them for all processes (`solver.compiled`): python -m solver.warm.

`make setup` does. One small search for each runtime goes through all loops, with the types that others have.
"""

from schemas.catalog import Runtime, load_catalog
from schemas.performance import load_efficiencies
from solver.kept import ServiceInputs
from solver.roofline import Roofline
from solver.sweep import sweep

RUNTIMES: tuple[Runtime, ...] = ("coral", "vllm")


def warm() -> None:
    """Place a small model on pairs of a node, by either search."""
    catalog = load_catalog()
    model = min((m for m in catalog.models if m.levels), key=lambda m: m.architecture.layers)
    gpus, efficiencies = {gpu.name: gpu for gpu in catalog.gpus}, load_efficiencies()
    roofline = Roofline(model, model.variants[0], model.levels[0], gpus, efficiencies)
    node = next(c for c in catalog.configurations if c.gpu in model.variants[0].gpus and c.gpus == 1)
    for runtime in RUNTIMES:
        sweep([ServiceInputs(roofline, runtime)], [node], n_max=2, rho=12)


if __name__ == "__main__":
    warm()
