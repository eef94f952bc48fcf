"""The catalogs that ship: valid, quick to load, sourced, and free of what nobody sells."""

import csv
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.catalog import PAPER_CATALOG, SHIPPED_CATALOG, Catalog, load_catalog

README = SHIPPED_CATALOG.parent / "README.md"
SHARED = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
PAPERS_GPUS = ("L4", "A10G", "L40S", "A100", "H100")
PAPERS = {f"{count}x{gpu}" for gpu in PAPERS_GPUS for count in (1, 2, 4, 8)}
LAYERS = {
    "phi-4-14b": 40,
    "gpt-oss-20b": 24,
    "qwen3-32b": 64,
    "llama-3-70b": 80,
    "gpt-oss-120b": 36,
    "qwen3-235b-a22b": 94,
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(scope="module")
def paper() -> Catalog:
    return load_catalog(PAPER_CATALOG)


def shared_rows(name: str) -> Iterator[dict[str, str]]:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    with path.open() as file:
        yield from csv.DictReader(file)


def test_it_loads_in_half_a_second_of_processor_time() -> None:
    start = time.process_time()
    load_catalog()
    assert time.process_time() - start < 0.5


def test_it_has_the_papers_gpus_configurations_and_models(catalog: Catalog) -> None:
    assert set(PAPERS_GPUS) <= {g.name for g in catalog.gpus}
    assert {c.name for c in catalog.configurations} >= PAPERS
    assert all(c.name == f"{c.gpus}x{c.gpu}" for c in catalog.configurations)
    served = {m.name: m.architecture.layers for m in catalog.models if m.levels}
    assert served == LAYERS


def test_a100_is_the_80_gb_kind(catalog: Catalog) -> None:
    assert {g.name: g.memory_gb for g in catalog.gpus if "A100" in g.name} == {
        "A100-40GB": 40,
        "A100": 80,
        "A100-PCIe": 80,
    }


def test_gpus_are_those_of_the_data_sheets(catalog: Catalog) -> None:
    rows = list(shared_rows("gpu_specs/gpus.csv"))
    assert len(rows) == len(catalog.gpus) == 25
    for row, gpu in zip(rows, catalog.gpus, strict=True):
        assert row["gpu"].startswith(gpu.name.removesuffix("-16GB").removesuffix("-32GB").split("-")[0])
        assert gpu.memory_gb == float(row["mem_gb"])
        assert gpu.bandwidth_gb_s == float(row["mem_bw_gb_s"])
        assert gpu.bf16_tflops == float(row["bf16_dense_tflops"] or row["fp16_dense_tflops"])
        assert gpu.fp8_tflops == (float(row["fp8_dense_tflops"]) if row["fp8_dense_tflops"] else None)
        assert gpu.link_gb_s == float(row["link_gb_s_per_dir"])
        assert gpu.has_bf16 == bool(row["bf16_dense_tflops"])


def test_network_is_the_slowest_clouds_and_each_clouds_own_is_kept(catalog: Catalog) -> None:
    both = catalog.configuration("8xH100")
    assert both.network_gbps == 1000
    assert both.network_gbps_by_cloud == {"aws": 3200, "gcp": 1000, "azure": 3200}


def test_names_of_models_may_be_host_names(catalog: Catalog) -> None:
    for model in catalog.models:
        for label in model.name.split("."):
            assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label)
        assert {level.slo_class for level in model.levels} <= {"interactive"}


def test_prices_are_of_what_is_sold(catalog: Catalog) -> None:
    pools = {(p.cloud, p.region, p.market) for p in catalog.prices}
    assert pools == {
        ("aws", "us-east-1", "on-demand"),
        ("aws", "us-east-2", "on-demand"),
        ("aws", "ap-northeast-2", "on-demand"),
        ("gcp", "us-central1", "on-demand"),
        ("gcp", "us-central1", "spot"),
    }
    sold: dict[str, set[str]] = {}
    for price in catalog.prices:
        sold.setdefault(price.cloud, set()).add(price.configuration)
    assert not sold["aws"] & {"2xL4", "2xL40S", "2xA10G", "1xA100", "2xA100", "4xA100", "2xH100", "4xH100"}
    assert not {c for c in sold["gcp"] if c.endswith(("L40S", "A10G"))}
    assert not [p for p in catalog.prices if p.basis == "pro-rata"]


def test_prices_read_are_those_of_the_lists(catalog: Catalog) -> None:
    listed = {
        r["instance_type"]: r["on_demand_usd_h"]
        for r in shared_rows("prices_aws/aws_us_east_1_on_demand.csv")
    }
    ours = {p.instance_type: p.usd_per_hour for p in catalog.prices if p.region == "us-east-1"}
    assert ours == {name: float(listed[name]) for name in ours}
    google = [r for r in shared_rows("prices_gcp/gcp_gpu_instances.csv") if r["region"] == "us-central1"]
    for market, column in (("on-demand", "on_demand_usd_h"), ("spot", "spot_usd_h")):
        known = {r["machine_type"]: float(r[column]) for r in google}
        for price in catalog.prices:
            if (price.cloud, price.market) == ("gcp", market):
                assert price.usd_per_hour == known[price.instance_type]


def test_spot_is_below_on_demand_and_all_prices_are_plausible(catalog: Catalog, paper: Catalog) -> None:
    price = {(p.cloud, p.region, p.market, p.configuration): p.usd_per_hour for p in catalog.prices}
    for (cloud, region, market, name), usd in price.items():
        per_gpu = usd / catalog.configuration(name).gpus
        assert 0.3 < per_gpu < 18, name
        if market == "spot":
            assert usd < price[cloud, region, "on-demand", name]
    assert all(0.3 < p.usd_per_hour / paper.configuration(p.configuration).gpus < 12 for p in paper.prices)


def test_every_source_of_prices_is_attributed(catalog: Catalog, paper: Catalog) -> None:
    text = README.read_text()
    for source in {s for p in (*catalog.prices, *paper.prices) for s in p.source.split(", ")}:
        repository, _, commit = source.partition("@")
        assert repository in text
        assert commit in text


def test_workloads_rise_and_say_what_is_assumed(catalog: Catalog) -> None:
    for workload in catalog.workloads:
        for mean, quantiles in (
            (workload.mean_input_tokens, workload.input_tokens),
            (workload.mean_output_tokens, workload.output_tokens),
        ):
            if quantiles is not None:
                assert min(quantiles.known.values()) < mean < max(quantiles.known.values())
    by_name = {w.name: w for w in catalog.workloads}
    burst = by_name["burstgpt"]
    assert burst.assumed is not None
    assert burst.mean_input_tokens + burst.mean_output_tokens == 734
    for level in (level for m in catalog.models for level in m.levels):
        assert level.workload == by_name[level.workload.name]
        assert level.workload.assumed is None


# --------------------------------------------------------------------------------------------- paper mode


def test_the_papers_set_ups(paper: Catalog) -> None:
    core, extended = paper.setups
    assert (core.requests_per_s, extended.requests_per_s) == (10, 25)
    assert set(core.configurations) == {c for c in PAPERS if c.endswith(("L40S", "L4", "A10G"))}
    assert set(extended.configurations) == PAPERS
    assert set(extended.models) == set(LAYERS)
    for row in shared_rows("coral_setup/models_slo.csv"):
        model = paper.model(row["model"].lower())
        (level,) = model.levels
        assert model.architecture.layers == int(row["layers"])
        assert [o.ms for o in level.ttft] == [float(row["prefill_slo_ms"])]
        assert [o.ms for o in level.tpot] == [float(row["decode_slo_ms"])]
        assert level.workload.name == row["trace"].replace("azure_", "azure-2024-")


def test_the_papers_prices_and_their_basis(paper: Catalog) -> None:
    prices = {(p.region, p.configuration): p for p in paper.prices}
    seen = 0
    for row in shared_rows("coral_setup/gpu_configs_priced.csv"):
        if (row["cloud"], row["gpu"]) == ("gcp", "A100-40GB"):
            continue  # the 80 GB kind is sold there
        gpu, stands_in = row["gpu"].removesuffix("-80GB").removesuffix("-40GB"), row["gpu"] == "A100-40GB"
        price = prices[row["region"], f"{row['gpus_per_node']}x{gpu}"]
        assert price.usd_per_hour == pytest.approx(float(row["on_demand_usd_h"]), abs=1e-4)
        assert (price.basis == "pro-rata") == (stands_in or row["price_basis"].startswith("pro rata"))
        assert ("40 GB" in (price.note or "")) == stands_in
        seen += 1
    assert seen == len(paper.prices) == 52


def test_paper_mode_prices_every_configuration_somewhere(paper: Catalog) -> None:
    assert {p.configuration for p in paper.prices} == PAPERS
