"""What a request's body says to the router."""

import json

import pytest

from agents.router_ask import parse


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": None}, 1),
        ({"n": -1}, 1),
        ({"prompt": "a"}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt": []}, 1),
    ],
)
def test_how_many_answers_a_request_asks_for(fields: dict[str, object], answers: int) -> None:
    assert parse(json.dumps({"model": "m", **fields}).encode()).answers == answers
