"""A language model of a few hundred kilobytes, made on the spot: for tests, the demo and `coral doctor`.

A Llama of four layers with random weights, a tokenizer of some 450 tokens and a chat template, as a folder
that vLLM serves like any other. The same call writes the same bytes, and so the same revision. Its weights
are drawn wide, so that each layer changes the answer visibly, and it never ends an answer by itself: only
printable tokens have a logit other than zero. Run as a script: `tiny_model.py FOLDER`.
"""

import array
import itertools
import json
import random
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LAYERS = 4
_HIDDEN, _FFN, _HEADS, _VOCAB, _POSITIONS = 64, 128, 2, 512, 8192
"""Two heads: a head's width of 32 is the least that attention on the CPU takes."""
_SPECIAL = ("<unk>", "<s>", "</s>")

_CORPUS = """The reef is built by many small things that each do one thing and hold on to their neighbours.
A stage holds some of the layers and hands what it has computed to the next one, and the last one says which
word comes next. When the tide turns there are fewer requests, and the fleet gives back what it does not need;
when it comes in again, new nodes start, load their weights, find each other and say that they are ready. What
is in flight is finished before anything ends, and nothing that was promised is forgotten on the way."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def make(folder: Path, seed: int = 0) -> None:
    """Write the model into `folder`, which is created.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, merges = _tokens()
    _write(folder / "config.json", _config())
    _write(folder / "tokenizer.json", _tokenizer(vocabulary, merges))
    _write(folder / "tokenizer_config.json", _tokenizer_config())
    _write(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    (folder / "model.safetensors").write_bytes(_safetensors(seed, vocabulary))


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _FFN,
        "max_position_embeddings": _POSITIONS,
        "num_attention_heads": _HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": _HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": _VOCAB,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


# --- tokenizer: byte-level BPE ---------------------------------------------------------------------
def _byte_letters() -> list[str]:
    """The letter that stands for each byte, as in GPT-2: printable bytes for themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _tokens() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Token -> id, and the merges, learnt from the corpus: the most frequent pair first."""
    letters = _byte_letters()
    names = [*_SPECIAL, *letters]
    merges: list[tuple[str, str]] = []
    words = Counter(
        tuple(letters[byte] for byte in word.encode()) for word in re.findall(r" ?\w+|\W", _CORPUS)
    )
    while len(names) < _VOCAB:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        names.append("".join(best))
        words = Counter({tuple(_merged(word, best)): times for word, times in words.items()})
    return {name: index for index, name in enumerate(names)}, merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> Iterator[str]:
    at = 0
    while at < len(word):
        both = word[at : at + 2] == pair
        yield "".join(pair) if both else word[at]
        at += 2 if both else 1


def _tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[name], "content": name, **flags} for name in _SPECIAL],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": _POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }


# --- weights ---------------------------------------------------------------------------------------
def _safetensors(seed: int, vocabulary: dict[str, int]) -> bytes:
    """Header length (8 bytes), header (JSON), tensors (bfloat16, little-endian)."""
    chance = random.Random(seed)
    header: dict[str, object] = {}
    data = bytearray()
    for name, shape, std in _shapes():
        rows = shape[0]
        width = shape[1] if len(shape) > 1 else 1
        silent = _silent(vocabulary) if name == "lm_head.weight" else frozenset()
        start = len(data)
        for row in range(rows):
            scale = 0.0 if row in silent else std
            values = (chance.gauss(0.0, scale) if std else 1.0 for _ in range(width))
            data += _bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(data)]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + bytes(data)


def _shapes() -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Tensor, shape, standard deviation; 0 stands for all ones."""
    narrow, wide = _HIDDEN**-0.5, _FFN**-0.5
    yield "model.embed_tokens.weight", (_VOCAB, _HIDDEN), 1.0
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for part in ("q", "k", "v", "o"):
            yield f"{at}.self_attn.{part}_proj.weight", (_HIDDEN, _HIDDEN), 1.5 * narrow
        for part in ("gate", "up"):
            yield f"{at}.mlp.{part}_proj.weight", (_FFN, _HIDDEN), 1.5 * narrow
        yield f"{at}.mlp.down_proj.weight", (_HIDDEN, _FFN), 1.5 * wide
        yield f"{at}.input_layernorm.weight", (_HIDDEN,), 0.0
        yield f"{at}.post_attention_layernorm.weight", (_HIDDEN,), 0.0
    yield "model.norm.weight", (_HIDDEN,), 0.0
    yield "lm_head.weight", (_VOCAB, _HIDDEN), 4 * narrow


def _silent(vocabulary: dict[str, int]) -> frozenset[int]:
    """Rows of the head that stay zero: whatever is not plain text, the end of the answer included."""
    plain = re.compile("[a-zA-Z,.;Ġ]+")  # Ġ stands for the space
    spoken = {index for name, index in vocabulary.items() if plain.fullmatch(name)}
    return frozenset(range(_VOCAB)) - spoken


def _bfloat16(values: Iterator[float]) -> bytes:
    """The upper halves of float32, rounded to nearest."""
    words = array.array("I", array.array("f", values).tobytes())
    return array.array("H", ((word + 0x8000) >> 16 for word in words)).tobytes()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
