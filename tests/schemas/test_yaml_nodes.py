"""YAML that is meant to hurt: refused in an instant, with its file and line."""

import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.faults import FileError
from schemas.performance import Efficiencies
from schemas.settings import load_settings
from schemas.yaml_nodes import DEEPEST
from schemas.yamlfile import load_yaml

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
MERGED = "a: &a { x: 1 }\n" + "".join(
    f"{b}: &{b} {{ <<: [{', '.join([f'*{a}'] * 9)}] }}\n"
    for a, b in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
LONG = f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 1000)}]\n"

BAD = {
    "laughs": (LAUGHS, 7, "aliases add"),
    "laughs by merging": (MERGED, 7, "aliases add"),
    "a long word again and again": (LONG, 2, "aliases add"),
    "a circle": ("a: 1\ngpus: &a [*a]\n", 2, "expected no circle"),
    "a circle of mappings": ("a: 1\ngpus: &a { b: { c: *a } }\n", 2, "expected no circle"),
    "an abyss": ("a: 1\nb: " + "[" * 500 + "]" * 500, 2, f"expected at most {DEEPEST} levels"),
    "an abyss of mappings": ("a: 1\nb: " + "{ c: " * 500 + "1" + "}" * 500, 2, "expected at most"),
    "an abyss that aliases dig": (
        "".join(f"k{i}: &k{i} [[[[[[[[[[*k{i - 1}]]]]]]]]]]\n" if i else "k0: &k0 1\n" for i in range(30)),
        11,
        "too deep once aliases are spelt out",
    ),
    "a day that is none": (
        "a: 1\nb: 2026-13-45\n",
        2,
        "'2026-13-45' is no timestamp (month must be in 1..12)",
    ),
    "a number that is none": ("a: 1\nb: !!int x\n", 2, "'x' is no int, expected one"),
    "a truth that is none": ("a: 1\nb: !!bool x\n", 2, "'x' is no bool, expected one"),
    "an hour that is none": ("a: 1\nb: !!timestamp x\n", 2, "'x' is no timestamp, expected one"),
    "code": ("a: 1\nb: !!python/object/apply:os.abort []\n", 2, "expected a plain list"),
    "bytes": ("a: 1\nb: \x07\n", 2, "not allowed"),
    "merging nothing": ("a: 1\nb: { <<: 3 }\n", 2, "expected a mapping"),
    "a key twice": ("a: 1\na: 2\n", 2, "given twice"),
}


@pytest.mark.parametrize("case", BAD)
def test_it_is_refused_at_once_with_file_and_line(case: str, tmp_path: Path) -> None:
    text, line, said = BAD[case]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(FileError) as refused:
        load_yaml(Efficiencies, path)
    assert f"{path}:{line}: " in str(refused.value)
    assert said in str(refused.value)
    with pytest.raises(ValueError, match="--config"):
        load_settings(path)
    assert time.process_time() - began < 1


def test_what_is_merged_may_be_given_again(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("node: &n { engine: vllm }\nfold: {}\nnode2: { <<: *n, engine: simulated }\n")
    with pytest.raises(ValidationError) as refused:
        load_settings(path)
    assert "given twice" not in str(refused.value)


def test_what_is_no_such_model_has_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("gpus:\n  - gpu: A\n    matmul: 3\n")
    with pytest.raises(ValidationError) as refused:
        load_yaml(Efficiencies, path)
    assert refused.value.__notes__ == [f"{path}:2,3"]


def test_a_secret_does_not_show(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("kafka: { sasl_password: 2026-13-45 }\nrouter: { api_keys: { 2026-13-44: 1, 7: a } }\n")
    with pytest.raises(ValueError, match="--config") as refused:
        load_settings(path)
    assert "kafka.sasl_password: a secret is no timestamp" in str(refused.value)
    assert "2026-13" not in str(refused.value)
    assert ": 7" not in str(refused.value)
