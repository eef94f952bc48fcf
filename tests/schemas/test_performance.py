"""Efficiencies: where each is from, and their file."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.catalog import load_catalog
from schemas.performance import Efficiencies, Evidence, load_efficiencies
from schemas.yamlfile import load_yaml


def test_every_gpu_of_the_catalog_has_efficiencies() -> None:
    known = {e.gpu for e in load_efficiencies().gpus}
    assert {gpu.name for gpu in load_catalog().gpus} <= known


def test_a_file_reads_back_as_it_was(tmp_path: Path) -> None:
    shipped = load_efficiencies()
    path = tmp_path / "efficiencies.yaml"
    path.write_text(shipped.yaml())
    assert load_yaml(Efficiencies, path) == shipped


def test_an_unknown_gpu_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no GPU 'H1000', expected one of .*H100"):
        load_efficiencies().of("H1000")


@pytest.mark.parametrize(
    "given", [{}, {"fitted_on": "x", "points": 1, "assumed": "y"}, {"fitted_on": "x", "points": 0}]
)
def test_constants_are_either_fitted_on_points_or_assumed(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="expected"):
        Evidence.model_validate(given)


@pytest.mark.parametrize(("gpus", "used"), [(2, 2), (3, 4), (4, 4), (8, 8), (16, 8)])
def test_an_all_reduce_between_two_measured_sizes_is_the_larger_one(gpus: int, used: int) -> None:
    assert load_efficiencies().of("L40S").all_reduce_over(gpus).gpus == used
