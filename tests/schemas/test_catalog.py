"""The shipped catalog: valid, quick to load, sourced, and free of what nobody sells."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from schemas.catalog import SHIPPED_CATALOG, Catalog, load_catalog

README = SHIPPED_CATALOG.parent / "README.md"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture
def plain() -> Any:
    return yaml.safe_load(SHIPPED_CATALOG.read_text())


def written(tmp_path: Path, plain: Any) -> Path:
    path = tmp_path / "catalog.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def test_it_loads_in_half_a_second_of_processor_time() -> None:
    start = time.process_time()
    load_catalog()
    assert time.process_time() - start < 0.5


def test_it_has_the_papers_gpus_configurations_and_models(catalog: Catalog) -> None:
    assert [g.name for g in catalog.gpus] == ["L4", "A10G", "L40S", "A100", "H100"]
    expected = {f"{n}x{g.name}" for g in catalog.gpus for n in (1, 2, 4, 8)}
    assert {c.name for c in catalog.configurations} == expected
    assert all(c.name == f"{c.gpus}x{c.gpu}" for c in catalog.configurations)
    layers = {m.name: m.architecture.layers for m in catalog.models}
    assert layers == {
        "phi-4-14b": 40,
        "gpt-oss-20b": 24,
        "qwen3-32b": 64,
        "llama-3-70b": 80,
        "gpt-oss-120b": 36,
        "qwen3-235b-a22b": 94,
    }


def test_names_of_models_may_be_host_names(catalog: Catalog) -> None:
    for model in catalog.models:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", model.name)
        assert [level.slo_class for level in model.levels] == ["interactive"]


def test_prices_are_of_what_is_sold(catalog: Catalog) -> None:
    pools = {(p.cloud, p.region, p.market) for p in catalog.prices}
    assert pools == {
        ("aws", "us-east-1", "on-demand"),
        ("gcp", "us-central1", "on-demand"),
        ("gcp", "us-central1", "spot"),
    }
    sold: dict[str, set[str]] = {}
    for price in catalog.prices:
        sold.setdefault(price.cloud, set()).add(price.configuration)
    assert not sold["aws"] & {"2xL4", "2xL40S", "2xA10G", "1xA100", "2xA100", "4xA100", "2xH100", "4xH100"}
    assert not {c for c in sold["gcp"] if c.endswith(("L40S", "A10G"))}
    keys = [(p.cloud, p.region, p.market, p.configuration) for p in catalog.prices]
    assert len(keys) == len(set(keys))


def test_spot_is_below_on_demand_and_all_prices_are_plausible(catalog: Catalog) -> None:
    price = {(p.cloud, p.market, p.configuration): p.usd_per_hour for p in catalog.prices}
    for (cloud, market, name), usd in price.items():
        per_gpu = usd / catalog.configuration(name).gpus
        assert 0.3 < per_gpu < 12, name
        if market == "spot":
            assert usd < price[cloud, "on-demand", name]


def test_every_source_of_prices_is_attributed(catalog: Catalog) -> None:
    text = README.read_text()
    for source in {p.source for p in catalog.prices}:
        repository, _, commit = source.partition("@")
        assert repository in text
        assert commit in text


def test_mistakes_are_refused_by_name(tmp_path: Path, plain: Any) -> None:
    changes: dict[str, Callable[[Any], object]] = {
        "usd_per_hour": lambda p: p["prices"][0].update(usd_per_hour=0),
        "bandwidth": lambda p: p["gpus"][0].update(bandwidth=1),
        "memory_gb": lambda p: p["gpus"][0].update(memory_gb=float("nan")),
        "B300": lambda p: p["configurations"][0].update(gpu="B300"),
        "vllm_args": lambda p: p["models"][0]["variants"][0].update(vllm_args={"trust-remote-code": "1"}),
        "given twice": lambda p: p["models"].append(p["models"][0]),
    }
    for expected, change in changes.items():
        broken = yaml.safe_load(yaml.safe_dump(plain))
        change(broken)
        with pytest.raises(ValidationError, match=expected):
            load_catalog(written(tmp_path, broken))


def test_the_digest_names_the_content(tmp_path: Path, plain: Any, catalog: Catalog) -> None:
    assert load_catalog(written(tmp_path, plain)).digest == catalog.digest
    plain["prices"][0]["usd_per_hour"] += 0.01
    assert load_catalog(written(tmp_path, plain)).digest != catalog.digest
