"""The topic table as an AsyncAPI 3.0 document, for monitors and tools in any language.

`docs/asyncapi.yaml` is this, written down by `coral topics asyncapi`; a test keeps the two equal.
"""

from typing import Any

import yaml
from pydantic.json_schema import models_json_schema

from schemas.base import Frozen
from schemas.codec import MAJOR, MINOR
from schemas.topics import TOPICS, Topic

Json = dict[str, Any]

_DESCRIPTION = (
    "Every message is JSON with CloudEvents 1.0 binary headers. Within a major version of `ce_dataschema` "
    "fields are only ever added: ignore those you do not know, and leave a later major version alone. "
    "Addresses begin with `coral` unless the setting `topic_prefix` says otherwise."
)
_HEADERS: Json = {
    "type": "object",
    "required": ["ce_specversion", "ce_type", "ce_dataschema", "ce_id", "ce_source", "ce_time"],
    "properties": {
        "ce_specversion": {"const": "1.0"},
        "ce_type": {"type": "string", "description": "`coral.` and the name of the message."},
        "ce_dataschema": {"type": "string", "description": "`urn:coral:NAME:MAJOR.MINOR`."},
        "ce_id": {"type": "string", "description": "The same event sent again has the same one."},
        "ce_source": {"type": "string", "description": "Which process says it, such as `node/gcp-a-1`."},
        "ce_time": {"type": "string", "format": "date-time", "description": "By the sender's clock."},
        "content-type": {"const": "application/json"},
        "traceparent": {"type": "string", "description": "W3C trace context, from cause to effect."},
    },
}


def document(prefix: str = "coral") -> Json:
    """The whole document, as plain data."""
    types = {kind.__name__: kind for topic in TOPICS for kind in topic.types}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Coral's topics", "version": f"{MAJOR}.{MINOR}", "description": _DESCRIPTION},
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic, prefix) for topic in TOPICS},
        "operations": {f"read-{topic.name}": _reading(topic) for topic in TOPICS},
        "components": {
            "messages": {name: _message(kind) for name, kind in types.items()},
            "schemas": {"Headers": _HEADERS, **_schemas(list(types.values()))},
        },
    }


def text() -> str:
    """The document as YAML."""
    return yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)


def _channel(topic: Topic, prefix: str) -> Json:
    return {
        "address": f"{prefix}.{topic.name}",
        "description": f"{topic.flow}; kept for {topic.retention_ms / 86_400_000:g} days.",
        "messages": {kind.__name__: _ref("messages", kind.__name__) for kind in topic.types},
        "bindings": {
            "kafka": {
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": ["delete"],
                    "retention.ms": topic.retention_ms,
                    "max.message.bytes": topic.max_message_bytes,
                },
            }
        },
        "x-key": topic.key,
    }


def _reading(topic: Topic) -> Json:
    return {"action": "receive", "channel": {"$ref": f"#/channels/{topic.name}"}, "summary": topic.flow}


def _message(kind: type[Frozen]) -> Json:
    return {
        "headers": _ref("schemas", "Headers"),
        "payload": _ref("schemas", kind.__name__),
        "summary": (kind.__doc__ or kind.__name__).partition("\n")[0],
    }


def _schemas(kinds: list[type[Frozen]]) -> Json:
    """JSON Schema of the messages and all they are made of."""
    asked = [(kind, "validation") for kind in kinds]
    _, made = models_json_schema(asked, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    schemas: Json = made["$defs"]
    for schema in schemas.values():
        schema.pop("additionalProperties", None)  # closed in files; on topics unknown fields are ignored
    return schemas


def _ref(kind: str, name: str) -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}
