"""The AsyncAPI document says what the topic table says, and every reference in it leads somewhere."""

from collections.abc import Iterator
from pathlib import Path

from schemas.asyncapi import document, text
from schemas.topics import TOPICS

WRITTEN = Path(__file__).parents[2] / "docs" / "asyncapi.yaml"


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref":
                yield value
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_topic_and_type_is_there() -> None:
    said = document("fleet7")
    assert {c["address"] for c in said["channels"].values()} == {f"fleet7.{t.name}" for t in TOPICS}
    for topic in TOPICS:
        channel = said["channels"][topic.name]
        assert set(channel["messages"]) == {kind.__name__ for kind in topic.types}
        assert channel["bindings"]["kafka"]["partitions"] == topic.partitions
    assert set(said["components"]["messages"]) <= set(said["components"]["schemas"])


def test_every_reference_resolves() -> None:
    said = document()
    found = list(references(said))
    assert found
    for reference in found:
        node: object = said
        for step in reference.removeprefix("#/").split("/"):
            assert isinstance(node, dict), reference
            assert step in node, reference
            node = node[step]


def test_what_is_written_down_is_up_to_date() -> None:
    assert WRITTEN.read_text() == text(), "`coral topics asyncapi > docs/asyncapi.yaml` writes it anew"
