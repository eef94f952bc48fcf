"""Every kind of mistake in a catalog, told with its file, its line and its key, and all of them at once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.catalog import PAPER_CATALOG, SHIPPED_CATALOG, CatalogError, draft_catalog, load_catalog
from schemas.faults import Fault
from solver.catalog_check import implausible

WHOLE = """\
gpus:
  - { name: G, memory_gb: 24, bandwidth_gb_s: 300, bf16_tflops: 121, link: pcie, link_gb_s: 32,
      compute_capability: "7.5", source: s }
configurations:
  - { name: 4xG, gpu: G, gpus: 4, network_gbps: 40, network_gbps_by_cloud: { c: 40, d: 50 }, source: s }
models:
  - name: m
    architecture: { layers: 40, hidden: 5120, heads: 40, kv_heads: 10, head_dim: 128, ffn_dim: 17920,
                    full_attention_layers: 40, vocab: 100352 }
    variants:
      - { name: v, checkpoint: c, weight_bits: 16, gpus: [G], vllm_args: { dtype: float16 } }
    levels:
      - slo_class: i
        ttft: [{ percentile: 95, ms: 1200 }]
        tpot: [{ percentile: 95, ms: 60 }]
        workload: w
    source: s
workloads:
  - { name: w, mean_input_tokens: 30, mean_output_tokens: 211, input_tokens: { p50: 9, p99: 42 }, source: s }
regions:
  - { cloud: c, name: r, within_zone: { rtt_ms: 0.2, usd_per_gb: 0 },
      between_zones: { rtt_ms: 1, usd_per_gb: 0.01 }, source: s }
prices:
  - {cloud: c, region: r, market: on-demand, configuration: 4xG, instance_type: t, usd_per_hour: 4, source: s}
  - { cloud: c, region: r, market: spot, configuration: 4xG, instance_type: t, usd_per_hour: 2.0, source: s }
"""

BURST = "{{ interval_s: {}, dispersion: 3, requests_per_s: 1 }}"
MISTAKES = {
    "unknown key": ("source: s }\nconf", "sauce: s }\nconf", "gpus.G.sauce", 3, "unknown key"),
    "unknown section": ("regions:", "regoins:", "regoins", 20, "unknown key"),
    "missing": ("weight_bits: 16, ", "", "models.m.variants.v.weight_bits", 11, "missing"),
    "memory negative": ("memory_gb: 24", "memory_gb: -24", "gpus.G.memory_gb", 2, "greater than 0"),
    "memory not a number": ("memory_gb: 24", "memory_gb: .nan", "gpus.G.memory_gb", 2, "finite number"),
    "wire in us": ("rtt_ms: 1,", "rtt_ms: 10000,", "regions.r.between_zones.rtt_ms", 22, "given in us?"),
    "wire per TB": (
        "usd_per_gb: 0.01",
        "usd_per_gb: 20",
        "regions.r.between_zones.usd_per_gb",
        22,
        "given per TB?",
    ),
    "no percentile at all": (
        "ttft: [{ percentile: 95, ms: 1200 }]",
        "ttft: []",
        "models.m.levels.i.ttft",
        14,
        "none, expected at least one",
    ),
    "levels apart that are none": (
        "regions:",
        "levels: [3]\nregions:",
        "levels.0",
        20,
        "'3', expected a level",
    ),
    "levels apart that are no list": (
        "regions:",
        "levels: { model: m }\nregions:",
        "levels",
        20,
        "expected a list of levels",
    ),
    "two documents": ("regions:", "---\nregions:", "body", 20, "expected a single document"),
    "memory as text": ("memory_gb: 24", "memory_gb: '24'", "gpus.G.memory_gb", 2, "no quotes"),
    "memory in bytes": (
        "memory_gb: 24",
        "memory_gb: 24000000000",
        "gpus.G.memory_gb",
        2,
        "expected 1 to 2000",
    ),
    "bandwidth in TB/s": ("bandwidth_gb_s: 300", "bandwidth_gb_s: 0.3", "gpus.G.bandwidth_gb_s", 2, "TB/s?"),
    "below a layer": (
        "memory_gb: 24",
        "memory_gb: 0.15",
        "models.m.variants.v.gpus",
        11,
        "at least one layer",
    ),
    "no bfloat16": ("dtype: float16", "dtype: bfloat16", "models.m.variants.v.gpus", 11, "expected 8.0"),
    "no fp8": ("weight_bits: 16", "weight_bits: 8", "models.m.variants.v.gpus", 11, "weights of 8 bits"),
    "odd heads": (
        "heads: 40, kv_heads: 10",
        "heads: 41, kv_heads: 41",
        "models.m.architecture.heads",
        8,
        "41 heads",
    ),
    "heads not shared": (
        "kv_heads: 10",
        "kv_heads: 7",
        "models.m.architecture",
        8,
        "a multiple of kv_heads, 7",
    ),
    "no promise": ("ms: 1200", "ms: 0", "models.m.levels.i.ttft.0.ms", 14, "greater than 0"),
    "TTFT in s": ("ms: 1200", "ms: 1.2", "models.m.levels.i.ttft.0.ms", 14, "given in s?"),
    "TPOT in s": ("ms: 60", "ms: 0.06", "models.m.levels.i.tpot.0.ms", 15, "given in s?"),
    "percentile": (
        "{ percentile: 95, ms: 60 }",
        "{ percentile: 100, ms: 60 }",
        "models.m.levels.i.tpot.0.percentile",
        15,
        "less than 100",
    ),
    "unknown workload": ("workload: w", "workload: x", "models.m.levels.i.workload", 16, "one of w"),
    "falling quantiles": ("p50: 9,", "p50: 99,", "workloads.w.input_tokens", 19, "none below a lower one"),
    "unknown GPU": ("gpu: G,", "gpu: H,", "configurations.4xG.gpu", 5, "one of G"),
    "unknown GPU of a checkpoint": ("gpus: [G]", "gpus: [G, H]", "models.m.variants.v.gpus", 11, "one of G"),
    "not the slowest network": (
        "network_gbps: 40",
        "network_gbps: 50",
        "configurations.4xG",
        5,
        "expected the least",
    ),
    "free of charge": ("usd_per_hour: 4,", "usd_per_hour: 0,", "prices.0.usd_per_hour", 24, "greater than 0"),
    "price of a year": (
        "usd_per_hour: 4,",
        "usd_per_hour: 35000,",
        "prices.0.usd_per_hour",
        24,
        "expected 0.01 to 200",
    ),
    "spot above list": (
        "usd_per_hour: 2.0",
        "usd_per_hour: 5.0",
        "prices.1.usd_per_hour",
        25,
        "on demand, 4",
    ),
    "price of nothing": (
        "4xG, instance_type: t, usd_per_hour: 4,",
        "2xG, instance_type: t, usd_per_hour: 4,",
        "prices.0.configuration",
        24,
        "one of 4xG",
    ),
    "price twice": ("market: spot", "market: on-demand", "prices.1", 25, "given twice"),
    "price of nowhere": (
        "region: r, market: spot",
        "region: q, market: spot",
        "prices.1.region",
        25,
        "not among the regions",
    ),
    "pro rata": (
        "usd_per_hour: 2.0",
        "usd_per_hour: 2.0, basis: pro-rata",
        "prices.1.basis",
        25,
        "paper mode only",
    ),
    "key twice": ("link: pcie, ", "link: pcie, link: pcie, ", "gpus.0.link", 2, "given twice"),
    "share of memory": (
        "{ dtype: float16 }",
        '{ gpu-memory-utilization: "90%" }',
        "models.m.variants.v.vllm_args",
        11,
        "gpu-memory-utilization: '90%', expected a share above 0",
    ),
    "no length": (
        "{ dtype: float16 }",
        "{ max-num-seqs: many }",
        "models.m.variants.v.vllm_args",
        11,
        "max-num-seqs: 'many', expected a whole number",
    ),
    "no argument": (
        "{ dtype: float16 }",
        "{ port: many }",
        "models.m.variants.v.vllm_args",
        11,
        "'port' is not allowed; expected one of",
    ),
    "bits of all": (
        "weight_bits: 16",
        "weight_bits: 16000",
        "models.m.variants.v.weight_bits",
        11,
        "1 to 64",
    ),
    "runs nowhere": ("gpus: [G]", "gpus: []", "models.m.variants.v.gpus", 11, "at least one"),
    "runs twice": ("gpus: [G]", "gpus: [G, G]", "models.m.variants.v.gpus", 11, "each once"),
    "no checkpoint": (
        "checkpoint: c",
        'checkpoint: ""',
        "models.m.variants.v.checkpoint",
        11,
        "expected a repo",
    ),
    "a hall of GPUs": ("gpus: 4,", "gpus: 40000,", "configurations.4xG.gpus", 5, "expected 1 to 1024"),
    "words without end": (
        "vocab: 100352",
        "vocab: 100352000000",
        "models.m.architecture.vocab",
        9,
        "expected 1 to 1e+08",
    ),
    "no source": ("    source: s\n", '    source: ""\n', "models.m.source", 17, "expected where"),
    "percentile as a share": (
        "percentile: 95, ms: 1200",
        "percentile: 0.95, ms: 1200",
        "models.m.levels.i.ttft.0.percentile",
        14,
        "given as a share?",
    ),
    "two promises of one": (
        "{ percentile: 95, ms: 60 }",
        "{ percentile: 95, ms: 60 }, { percentile: 50, ms: 40 }",
        "models.m.levels.i.tpot",
        15,
        "one objective for each",
    ),
    "mean below its quantiles": (
        "mean_input_tokens: 30",
        "mean_input_tokens: 3",
        "workloads.w.mean_input_tokens",
        19,
        "by its own quantiles",
    ),
    "mean above its quantiles": (
        "mean_input_tokens: 30",
        "mean_input_tokens: 3000",
        "workloads.w.mean_input_tokens",
        19,
        "by its own quantiles",
    ),
    "bursts out of order": (
        "p99: 42 }, source: s }",
        f"p99: 42 }}, source: s, burstiness: [{BURST.format(60)}, {BURST.format(1)}] }}",
        "workloads.w.burstiness",
        19,
        "shortest first",
    ),
    "bursts in ms": (
        "p99: 42 }, source: s }",
        "p99: 42 }, source: s, burstiness: [{ interval_s: 60000000, dispersion: 3, requests_per_s: 1 }] }",
        "workloads.w.burstiness.0.interval_s",
        19,
        "given in ms?",
    ),
    "levels are no list": ("    levels:\n", "    lvls: 3\n    levels:\n", "models.m.lvls", 12, "unknown key"),
    "no YAML": ("configurations:", "configurations: [", "body", 4, "expected"),
}


def faults_of(path: Path) -> list[Fault]:
    return draft_catalog(path, implausible)[1]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "catalog.yaml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("path", [SHIPPED_CATALOG, PAPER_CATALOG], ids=["shipped", "paper"])
def test_what_ships_is_right(path: Path) -> None:
    assert faults_of(path) == []


def test_the_whole_is_right(written: Callable[[str], Path]) -> None:
    assert faults_of(written(WHOLE)) == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_file_line_and_key(mistake: str, written: Callable[[str], Path]) -> None:
    right, wrong, key, line, expected = MISTAKES[mistake]
    assert WHOLE.count(right) == 1, "the test changes one place"
    path = written(WHOLE.replace(right, wrong))
    faults = faults_of(path)
    assert [fault for fault in faults if fault.key == key and expected in fault.text], faults
    (fault, *_) = [fault for fault in faults if fault.key == key]
    if mistake != "no YAML":  # libyaml and PyYAML's own parser differ in where they give up
        assert str(fault).startswith(f"{path}:{line}: {key}: ")


def test_all_are_told_at_once_in_the_order_of_lines(written: Callable[[str], Path]) -> None:
    text = WHOLE
    changed = ("memory negative", "missing", "TPOT in s", "falling quantiles", "spot above list", "pro rata")
    for mistake in changed[:-1]:
        right, wrong, *_ = MISTAKES[mistake]
        text = text.replace(right, wrong)
    told = faults_of(written(text))
    assert {MISTAKES[mistake][2] for mistake in changed[:-1]} - {fault.key for fault in told} == {
        "models.m.levels.i.tpot.0.ms"  # the model has no valid checkpoint yet; told once it has
    }
    assert [fault.place.line for fault in told] == sorted(fault.place.line for fault in told)


def test_names_given_twice_are_told_in_every_section(written: Callable[[str], Path]) -> None:
    gpu = WHOLE.split("configurations:", maxsplit=1)[0].removeprefix("gpus:\n")
    region = WHOLE.split("regions:\n")[1].split("prices:", maxsplit=1)[0]
    text = WHOLE.replace("configurations:", f"{gpu}configurations:").replace("prices:", f"{region}prices:")
    told = {fault.key: fault.place.line for fault in faults_of(written(text))}
    assert told == {"gpus.G": 4, "regions.r": 25}


def test_loading_refuses_with_all_that_is_wrong(written: Callable[[str], Path]) -> None:
    path = written(WHOLE.replace("memory_gb: 24", "memory_gb: 0").replace("ms: 60", "ms: -1"))
    with pytest.raises(CatalogError, match=r"gpus\.G\.memory_gb.*\n.*tpot\.0\.ms") as refusal:
        load_catalog(path)
    assert len(refusal.value.faults) == 2, "and what follows from them is not told"


def test_a_hundred_faults_are_said_and_the_rest_counted(written: Callable[[str], Path]) -> None:
    price = WHOLE.splitlines()[-1].replace("2.0", "0")
    path = written(WHOLE + "\n".join([price] * 250))
    with pytest.raises(CatalogError) as refusal:
        load_catalog(path)
    assert len(refusal.value.faults) == 250
    assert str(refusal.value).splitlines()[100:] == ["and 150 more faults"]


def test_folders_are_one_catalog_and_mistakes_name_their_file(tmp_path: Path) -> None:
    folder = tmp_path / "catalog"
    shutil.copytree(SHIPPED_CATALOG, folder)
    assert load_catalog(folder).digest == load_catalog().digest
    prices = folder / "prices-gcp.yaml"
    prices.write_text(prices.read_text().replace("configuration: 1xL4,", "configuration: 3xL4,", 1))
    (fault,) = faults_of(folder)
    (line,) = (i for i, text in enumerate(prices.read_text().splitlines(), 1) if "3xL4" in text)
    assert (fault.place.file, fault.place.line) == (prices, line)


def test_a_folder_without_files_is_no_catalog(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected"):
        load_catalog(tmp_path)


def test_a_catalog_in_one_file_with_all_spelt_out_still_loads(written: Callable[[str], Path]) -> None:
    spelt = "workload: { mean_input_tokens: 1155, mean_output_tokens: 211, source: s }"
    text = WHOLE.replace("workload: w", spelt).replace("workloads:", "#").split("regions:")[0]
    text = "\n".join(line for line in text.splitlines() if "name: w," not in line)
    catalog = load_catalog(written(text))
    (level,) = catalog.model("m").levels
    assert (level.workload.mean_input_tokens, level.workload.name) == (1155, None)


def test_levels_may_stand_apart(written: Callable[[str], Path]) -> None:
    apart = """\
levels:
  - { model: m, slo_class: j, ttft: [{ percentile: 95, ms: 900 }], tpot: [{ percentile: 95, ms: 30 }],
      workload: w }
  - { model: n, slo_class: j, ttft: [{ percentile: 95, ms: 900 }], tpot: [{ percentile: 95, ms: 30 }],
      workload: w }
"""
    catalog, (fault,) = draft_catalog(written(apart + WHOLE), implausible)
    assert [level.slo_class for level in catalog.model("m").levels] == ["i", "j"]
    assert (fault.key, fault.place.line) == ("levels.j.model", 4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "gpus: 3",
        "gpus: [3]",
        "gpus: [{ name: [a] }]",
        "1: 2",
        "levels: [{ model: m }]\nmodels: [{ name: m, levels: 3 }]",
        "levels: [{ model: [m] }]\nmodels: [{ name: m, levels: 3 }, { name: [], levels: [{ workload: w }] }]",
        "include: nowhere.yaml",
        "gpus: \x07",
        "gpus: &a [*a]",
    ],
)
def test_nonsense_is_told_and_never_a_crash(text: str, written: Callable[[str], Path]) -> None:
    path = written(text)
    with pytest.raises(ValueError, match=r"expected|missing|[Cc]ircular"):
        load_catalog(path)
