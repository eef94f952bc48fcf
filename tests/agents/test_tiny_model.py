"""The tiny model as files; tests/vllm shows that vLLM serves it."""

import json
import struct
from pathlib import Path

from agents.revisions import revision_of
from agents.tiny_model import LAYERS, make


def test_the_same_model_each_time(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    make(tmp_path / "other", seed=1)
    assert revision_of(tmp_path / "one") == revision_of(tmp_path / "two") != revision_of(tmp_path / "other")


def test_its_files_fit_each_other(tmp_path: Path) -> None:
    make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(vocabulary) <= config["vocab_size"]
    raw = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    tensors = json.loads(raw[8 : 8 + length])
    assert max(tensor["data_offsets"][1] for tensor in tensors.values()) == len(raw) - 8 - length
    assert sum("input_layernorm" in name for name in tensors) == LAYERS == config["num_hidden_layers"]
    assert config["hidden_size"] / config["num_attention_heads"] == 32
