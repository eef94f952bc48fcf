"""What the core decides by, as it travels."""

import pytest
from pydantic import ValidationError

from schemas.policy import HeadroomCurve, ServedClass

CURVE = HeadroomCurve(phase="both", requests_per_s=(1.0, 10.0, 100.0), factor=(3.0, 1.5, 1.25))


@pytest.mark.parametrize(
    ("rate", "factor"),
    [(0.0, 3.0), (0.5, 3.0), (1.0, 3.0), (4.0, 2.5), (10.0, 1.5), (55.0, 1.375), (100.0, 1.25), (1e6, 1.25)],
)
def test_a_curve_is_read_by_lines_and_level_beyond_its_ends(rate: float, factor: float) -> None:
    assert CURVE.at(rate) == factor


@pytest.mark.parametrize(
    ("rates", "factors", "what"),
    [
        ((1.0, 2.0), (1.5,), "differ in length"),
        ((2.0, 1.0), (1.5, 1.2), "rise strictly"),
        ((1.0, 1.0), (1.5, 1.2), "rise strictly"),
        ((1.0, 2.0), (1.2, 1.5), "never rise"),
        ((1.0,), (0.9,), "greater than or equal to 1"),
        ((), (), "at least 1 item"),
    ],
)
def test_an_impossible_curve_is_refused(
    rates: tuple[float, ...], factors: tuple[float, ...], what: str
) -> None:
    with pytest.raises(ValidationError, match=what):
        HeadroomCurve(phase="both", requests_per_s=rates, factor=factors)


def test_a_class_of_a_log_from_before_headroom_has_none() -> None:
    said = '{"model": "m", "slo_class": "c", "mean_input_tokens": 9.0, "mean_output_tokens": 9.0}'
    served = ServedClass.model_validate_json(said)
    assert served.headroom == ()
    assert served.headroom_at("both", 5.0) == 1.0


def test_each_phase_has_its_own() -> None:
    served = ServedClass(
        model="m", slo_class="c", mean_input_tokens=9.0, mean_output_tokens=9.0, headroom=(CURVE,)
    )
    assert served.headroom_at("both", 10.0) == 1.5
    assert served.headroom_at("decode", 10.0) == 1.0
