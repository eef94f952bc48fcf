"""Cut the public measurements down to what ships: schemas/data/measured/*.csv.gz.

    python scripts/measured_data.py SHARED_DATA

SHARED_DATA holds the folders perf_aiconfigurator, perf_vidur, perf_helix and perf_splitwise, as described in
schemas/data/measured/README.md, which also says what was left out and why. Deterministic: the same input
gives the same bytes. Times become microseconds (kernels) or milliseconds (layers, steps, serving points).
"""

import csv
import gzip
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

OUT = Path(__file__).parents[1] / "schemas" / "data" / "measured"
Row = dict[str, str]

GPUS = {
    "a100_sxm": "A100",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000",
    "b200_sxm": "B200",
}
L2_BYTES = {"A100": 40e6, "H100": 50e6, "H200": 50e6, "L40S": 96e6, "RTX-PRO-6000": 128e6, "B200": 126e6}
"""Of NVIDIA's architecture white papers. Weights that stay in it look faster than memory is."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384)
HEADS = (8, 16, 32, 40, 64)
KV_HEADS = (1, 2, 4, 8)


def rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", newline="") as file:
            yield from csv.DictReader(file)
    else:
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def write(name: str, columns: Iterable[str], content: Iterable[Iterable[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in sorted([str(x) for x in line] for line in content):
        writer.writerow(row)
        count += 1
    path = OUT / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))
    sys.stdout.write(f"{path.name}: {count} rows, {path.stat().st_size / 1000:.0f} kB\n")


def us(latency_ms: str) -> str:
    return f"{float(latency_ms) * 1000:.4g}"


def whole(number: str) -> int:
    return int(float(number))


def gemm(source: Path) -> Iterator[tuple[object, ...]]:
    """Weights beyond the second-level cache, sides of at least 512."""
    for r in rows(source / "gemm.csv.gz"):
        gpu, bits = GPUS.get(r["gpu"]), 8 if r["gemm_dtype"] == "fp8" else 16
        m, n, k = whole(r["m"]), whole(r["n"]), whole(r["k"])
        if gpu and min(n, k) >= 512 and m in TOKENS and n * k * bits / 8 > L2_BYTES[gpu]:
            yield gpu, bits, m, n, k, us(r["latency_ms"])


def attention(source: Path) -> Iterator[tuple[object, ...]]:
    """Prefill with at least 2,048 rows of heads; decode whose cache is beyond L2, or next to nothing."""
    for head_dim, suffix in ((128, ""), (64, "_hd64")):
        for phase, name, length in (("prefill", "context", "isl"), ("decode", "generation", "ctx")):
            for r in rows(source / f"{name}_attention{suffix}.csv.gz"):
                gpu, tokens, batch = GPUS.get(r["gpu"]), whole(r[length]), whole(r["batch_size"])
                heads, kv = whole(r["num_heads"]), whole(r["num_key_value_heads"])
                if not (gpu and tokens in CONTEXTS and heads in HEADS and kv in KV_HEADS and batch <= 512):
                    continue
                window = whole(r.get("window_size") or "0")
                cache = 4 * kv * head_dim * batch * min(tokens, window or tokens)
                beyond = cache > L2_BYTES[gpu] or cache < L2_BYTES[gpu] / 40
                if beyond if phase == "decode" else batch * tokens * heads >= 2048 and batch <= 32:
                    yield gpu, phase, head_dim, window, batch, tokens, heads, kv, us(r["latency_ms"])


def experts(source: Path) -> Iterator[tuple[object, ...]]:
    """One rank of tensor parallelism up to 8, no expert parallelism, tokens mildly skewed over experts.

    fp8 in blocks where it was measured (H100, H200), as the checkpoints of Qwen3 and MiniMax are.
    """
    for name in ("moe.csv.gz", "moe_gpt_oss_mxfp4.csv.gz"):
        for r in rows(source / name):
            gpu, tp, tokens = GPUS.get(r["gpu"]), whole(r["moe_tp_size"]), whole(r["num_tokens"])
            if not (gpu and tp <= 8 and r["moe_ep_size"] in ("1", "1.0") and tokens <= 16384):
                continue
            kind = r.get("moe_dtype", "mxfp4")
            block = "fp8" if gpu in ("A100", "L40S") else "fp8_block"  # the others have it
            bits = {"bfloat16": 16, block: 8, "mxfp4": 4.25}.get(kind)
            if bits and r["distribution"] == "power_law_1.01":
                hidden, ffn = whole(r.get("hidden_size", "2880")), whole(r.get("inter_size", "2880"))
                shape = (hidden, ffn, whole(r["num_experts"]), whole(r["topk"]))
                yield gpu, bits, tokens, *shape, tp, us(r["latency_ms"])


def collectives(source: Path) -> Iterator[tuple[object, ...]]:
    """What vLLM would use: its own up to 8 MB with NVLink or two GPUs, in CUDA graphs; else NCCL."""
    for r in rows(source / "comm.csv.gz"):
        gpu, count, size = GPUS.get(r["gpu"]), whole(r["num_gpus"]), 2 * whole(r["message_size"])
        own = r["op"] == "custom_all_reduce" and r["backend"] == "vllm_graph"
        nccl = r["op"] == "all_reduce" and r["backend"].startswith("nccl")
        bridged = gpu not in ("L40S", "RTX-PRO-6000") or count == 2
        if gpu and size <= 2**28 and (own if bridged and size <= 2**23 else nccl):
            yield gpu, count, size, us(r["latency_ms"])


def operations(source: Path) -> Iterator[tuple[object, ...]]:
    """Vidur's linear and element-wise operations of one layer; not phi-2's, whose block is parallel."""
    names = {"a40": "A40", "a100": "A100", "h100": "H100"}
    for r in rows(source / "layer_linear_ops_median_ms.csv"):
        ops = [r[name] for name in OPERATIONS]
        if all(ops):
            yield names[r["gpu"]], r["model"].split("/")[-1], whole(r["tp"]), whole(r["num_tokens"]), *ops


OPERATIONS = (
    "attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act", "mlp_down_proj",
    "input_layernorm", "post_attention_layernorm", "add",
)  # fmt: skip


def network(source: Path) -> Iterator[tuple[object, ...]]:
    """Vidur's collectives and sends within and between nodes, every second size."""
    seen: dict[tuple[str, ...], int] = {}
    for r in rows(source / "network_median_ms.csv"):
        key = (r["fabric"], r["collective"], r["num_workers"], r["devices_per_node"])
        seen[key] = seen.get(key, -1) + 1
        if seen[key] % 2 == 0:
            yield *key, whole(r["size"]), us(r["median_ms"])


def layers(source: Path) -> Iterator[tuple[object, ...]]:
    """Helix's layer times, as they are; the machine as GPU kind and count."""
    kinds = {"A100": "A100-40GB", "V100": "V100-16GB"}
    for r in rows(source / "layer_time.csv"):
        kind, _, count = r["machine"].partition("x")
        gpu = kinds.get(kind, kind)
        yield r["model"], gpu, count or 1, r["phase"], r["batch_tokens"], r["ms_per_layer"]


def kv_blocks(source: Path) -> Iterator[tuple[object, ...]]:
    kinds = {"A100": "A100-40GB", "V100": "V100-16GB"}
    for r in rows(source / "kv_blocks.csv"):
        kind, _, count = r["machine"].partition("x")
        yield r["model"], kinds.get(kind, kind), count or 1, r["layers_held"], r["vllm_kv_blocks_16tok"]


def steps(source: Path) -> Iterator[tuple[object, ...]]:
    """Splitwise's prompt and token times; not power-capped ones, nor batch 64 (inconsistent, it says)."""
    names = {"a100-80gb": "A100", "h100-80gb": "H100"}
    for r in rows(source / "perf_model_median.csv"):
        gpu, batch = names.get(r["hardware"]), whole(r["batch_size"])
        if gpu and batch < 64:
            lengths = whole(r["prompt_size"]), batch, whole(r["token_size"])
            yield r["model"], gpu, whole(r["tensor_parallel"]), *lengths, r["prompt_ms"], r["token_ms"]


def serving(source: Path) -> Iterator[tuple[object, ...]]:
    """vLLM's points on H100 and H200, prefill and decode on the same GPUs, each once.

    Not Kimi-K2.5 in 4-bit integers, whose kernels were not measured.
    """
    points = set()
    for r in rows(source / "e2e_measured.csv.gz"):
        gpu = GPUS.get(r["system"])
        ours = r["backend"] == "vllm" and r["mode"] == "agg" and r["precision"] != "int4"
        if not (gpu in ("H100", "H200") and ours and r["concurrency"]):
            continue
        precision = r["precision"] or "bf16"
        lengths = whole(r["isl"]), whole(r["osl"]), whole(r["concurrency"])
        width = whole(r["tp_size"]), whole(r["attention_dp_size"] or "1"), whole(r["moe_ep_size"] or "1")
        version = r["backend_version"] or "?"
        model = r["model_path"].split("/")[-1]
        times = r["ttft_ms"], r["tpot_ms"]
        points.add((model, gpu, precision, version, *width, *lengths, *times, r["measured"] or "?"))
    yield from points


def main(shared: Path) -> None:
    OUT.mkdir(exist_ok=True)
    aic, vidur, helix = shared / "perf_aiconfigurator", shared / "perf_vidur", shared / "perf_helix"
    write("gemm", ("gpu", "weight_bits", "rows", "columns", "inner", "us"), gemm(aic))
    shape = ("head_dim", "window", "sequences", "tokens", "heads", "kv_heads")
    write("attention", ("gpu", "phase", *shape, "us"), attention(aic))
    shape = ("hidden", "ffn", "experts", "top_k")
    write("experts", ("gpu", "weight_bits", "tokens", *shape, "tp", "us"), experts(aic))
    write("collectives", ("gpu", "gpus", "bytes", "us"), collectives(aic))
    columns = ("model", "gpu", "precision", "vllm", "tp", "attention_dp", "expert_parallel")
    lengths = ("input_tokens", "output_tokens", "concurrency")
    write("serving", (*columns, *lengths, "ttft_ms", "tpot_ms", "measured"), serving(aic))
    write("operations", ("gpu", "model", "tp", "tokens", *(f"{o}_ms" for o in OPERATIONS)), operations(vidur))
    fabric = ("fabric", "collective", "workers", "workers_per_node")
    write("network", (*fabric, "bytes", "us"), network(vidur))
    write("layers", ("model", "gpu", "tp", "phase", "tokens", "ms"), layers(helix))
    write("kv_blocks", ("model", "gpu", "tp", "layers", "blocks_of_16"), kv_blocks(helix))
    lengths = ("prompt_tokens", "sequences", "output_tokens")
    write(
        "steps", ("model", "gpu", "tp", *lengths, "prompt_ms", "token_ms"), steps(shared / "perf_splitwise")
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
