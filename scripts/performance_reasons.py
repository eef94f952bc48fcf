"""Why each error above a bound is there, in words for docs/performance-model.md.

`scripts/performance_report.py` does not write a page that lacks one, and a test holds them to what is above.
"""

from solver.validation import AGED, RAW

OLD_PROMPTS = (
    "on 4 and 8 GPUs that engine took 2.4 to 2.8 times as long for 4,096 tokens as for 2,048, which neither "
    "attention nor all-reduces explain; two constants cannot follow it"
)
OLD_ENGINE = (
    "an engine of 2023: no CUDA graphs, launching a layer takes it 0.4 ms and more, its kernels 1.3 to 1.5 "
    "times as long. The planner plans for engines of today and keeps no constant for that one"
)
CROWD = (
    "the planner's wait knows of no other clients: here all start at once and keep step, and wait for each "
    "other longer than for their own prompts. That is head-room on the demand; with both terms of this "
    "benchmark's clients (`serving`, above) the same waits are within the bounds"
)
REASONS = {
    ("V100-16GB", "decode", "Helix"): (
        "the curve has a fold: 80 sequences take 7.0 ms a layer, 95 take 4.6, as if by another kernel"
    ),
    ("A100", "prefill", AGED): OLD_PROMPTS,
    ("H100", "prefill", AGED): OLD_PROMPTS,
    ("A100", "prefill", RAW): OLD_ENGINE,
    ("A100", "decode", RAW): OLD_ENGINE,
    ("H100", "prefill", RAW): OLD_ENGINE,
    ("H100", "decode", RAW): OLD_ENGINE,
    ("H100", "TTFT", "vLLM"): CROWD,
    ("H200", "TTFT", "vLLM"): CROWD,
}
UNSEEN = {
    "llama1_30b": (
        "it caches 6.5 times as much a token as Llama-2-70B, the only other model: of how fast the cache is "
        "read those curves say little, so the model is too slow"
    ),
    "Llama-2-7b-hf": (
        "too slow in decode: on 4 and 8 GPUs its matrices fit the second-level cache of 40 MB, from which a "
        "benchmark that repeats them reads, but not an engine with other layers between"
    ),
}
POOLED = (
    "five models, of each kind one or two: without some, the way through the server and `own` come out quite "
    "differently (table `without`), for at these loads one can stand in for the other"
)
UNSEEN_SERVING = {
    ("gpt-oss-120b", "TPOT"): (
        "its steps are the shortest of all: without it the fit takes them to cost half a millisecond beside "
        "their kernels and sequences (table `without`). They are modelled too slow even without that, its "
        "4-bit experts most likely; that is not known"
    ),
    ("Qwen3-235B-A22B-FP8", "TPOT"): (
        "as far off with it in the fit: its kernels are slower than modelled, in vLLM 0.12 alone, most "
        "likely for want of tuned experts; that is not known"
    ),
    ("Llama-3.1-70B", "TTFT"): (
        "without it `own` comes out largest (table `without`), too large for it: with it in the fit, and 4 "
        "clients, prompts of 8,192 tokens are up to half too slow already. Why only its are is not known"
    ),
    ("Qwen3-32B", "TTFT"): (
        "not known: its prompts take longer than modelled, on 2 as on 8 GPUs, and no point has fewer than 8 "
        "clients; so it may be these rather than the prompts"
    ),
    ("gpt-oss-120b", "TTFT"): (
        "without it the way through the server comes out longest (table `without`), longer than its fastest "
        "first tokens take in all"
    ),
    ("MiniMax-M2.5", "TTFT"): (
        "at 4 clients and 1,024 prompt tokens its first tokens take 90 to 114 ms, 17 to 50 more than "
        "modelled with it in the fit, and no less on 8 GPUs than on 4. So it looks like a longer way through "
        "the server; why is not known"
    ),
    ("Qwen3-235B-A22B-FP8", "TTFT"): (
        "two points of 8,000 prompt tokens; no nearer with it in the fit, most likely by the same "
        "slow kernels as TPOT"
    ),
}
