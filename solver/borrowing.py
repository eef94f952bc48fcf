"""Whose constants a GPU takes as far as nobody measured its own: another GPU's, for a stated reason."""

from typing import NamedTuple

from schemas.catalog import Gpu
from schemas.performance import Collective, Efficiency, Evidence, FirstToken, Link, Overhead, Roof


class Loan(NamedTuple):
    of: str
    why: str


ROOT = "H100"
"""All its kernels are measured, so it borrows from nobody."""

PCIE, PCIE_WHY = "L40S", "all-reduces without NVLink were measured on it"

LOANS = {
    "A100": Loan("H100", "also HBM memory"),
    "A40": Loan("A100", "the same generation"),
    "A10G": Loan("A40", "a part of the same chip, GA102; nobody measured it"),
    "A10": Loan("A40", "a part of the same chip, GA102; nobody measured it"),
    "RTX-A6000": Loan("A40", "the same chip, GA102; nobody measured it"),
    "A30": Loan("A100", "a part of the same chip, GA100; nobody measured it"),
    "A100-PCIe": Loan("A100", "the same chip with less power; nobody measured it"),
    "A100-40GB": Loan("A100", "the same chip"),
    "L40S": Loan("A40", "also GDDR6 memory"),
    "L40": Loan("L40S", "the same chip, AD102, at half the rates; nobody measured it"),
    "RTX-6000-Ada": Loan("L40S", "the same chip, AD102; nobody measured it"),
    "L4": Loan("L40S", "the same generation, Ada"),
    "T4": Loan("A40", "also GDDR6 memory, one generation later"),
    "V100-16GB": Loan("A100", "also HBM2 memory, one generation later"),
    "V100-32GB": Loan("V100-16GB", "the same chip; nobody measured it"),
    "RTX-PRO-6000": Loan("L40S", "also GDDR memory"),
    "H100-PCIe": Loan("H100", "a part of the same chip, GH100; nobody measured it"),
    "H100-NVL": Loan("H100", "the same chip, GH100; nobody measured it"),
    "H200": Loan("H100", "the same chip, GH100"),
    "GH200": Loan("H100", "the same chip, GH100; nobody measured it"),
    "B200": Loan("H200", "also HBM3e memory"),
    "B300": Loan("B200", "the same generation, Blackwell; nobody measured it"),
    "GB200": Loan("B200", "the same chip; nobody measured it"),
    "MI300X": Loan("H100", "nothing measured of its vendor: the weakest assumption here"),
}


def depth(gpu: str) -> int:
    """Loans between a GPU and the one all go back to.

    Raises:
        ValueError: it is neither measured nor said whom it borrows from.
    """
    if gpu == ROOT:
        return 0
    if gpu not in LOANS:
        raise ValueError(f"{gpu}: no measurements, and solver/borrowing.py names no GPU it is like")
    return 1 + depth(LOANS[gpu].of)


def lent(gpu: Gpu, lender: Efficiency, pcie: tuple[Collective, ...]) -> Efficiency:
    """What a GPU starts from: all that its lender knows, marked as borrowed.

    Collectives without NVLink are those of `pcie`, if any, whatever else the lender is like. Network and
    overhead are the cloud's and the engine's more than the GPU's, so they keep their evidence.
    """
    loan = LOANS[gpu.name]
    evidence = Evidence(assumed=f"as {loan.of}: {loan.why}")
    links, via = lender.all_reduce, evidence
    if gpu.link == "pcie" and pcie:
        links, via = pcie, Evidence(assumed=f"as {PCIE}: {PCIE_WHY}")
    changes: dict[str, object] = {"gpu": gpu.name}
    for name, part in lender:
        if isinstance(part, Roof):
            changes[name] = part.model_copy(update={"evidence": evidence})
    changes["all_reduce"] = tuple(c.model_copy(update={"evidence": via}) for c in links)
    if gpu.fp8_tflops is None:
        changes |= {"matmul_fp8": None, "experts_fp8": None}
    return lender.model_copy(update=changes)


def first_guess(gpu: str) -> Efficiency:
    """Where the fit of the first GPU starts."""
    evidence = Evidence(assumed="the usual figure of a well-tuned kernel; nobody measured it")
    tcp = Evidence(assumed="TCP between cloud machines; over InfiniBand Vidur's smallest sends take 20 us")
    serving = Evidence(
        assumed="20 ms of a server in Python, half a step until the next one; nobody measured it"
    )
    roof = Roof(compute=0.5, bandwidth=0.8, launch_s=5e-6, overlap=2.0, evidence=evidence)
    return Efficiency(
        gpu=gpu,
        matmul=roof,
        experts=roof,
        experts_4bit=roof,
        prefill_attention=roof,
        decode_attention=roof,
        elementwise=roof,
        all_reduce=(Collective(gpus=2, share=0.5, latency_s=1e-5, evidence=evidence),),
        network=Link(share=0.8, latency_s=2e-4, evidence=tcp),
        overhead=Overhead(step_s=1e-3, sequence_s=2e-5, evidence=evidence),
        first_token=FirstToken(server_s=0.02, own=1.5, evidence=serving),
    )
