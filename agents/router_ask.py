"""What a client asks of the router, and the bodies that go to engines for it. Pure.

A body is read once: for its model, whether it streams, and how its prompt begins. Engines check the rest.
"""

import json
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from agents.affinity import Beginnings, beginnings, texts_of

_USAGE = b'"stream_options":{"include_usage":true},'
_REMOTE_DECODE: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Asks a prefill instance to keep what it computed for another instance (vLLM's NIXL connector)."""


class BadRequest(ValueError):
    """The client's fault; `param` is the field, as OpenAI's errors name it."""

    def __init__(self, text: str, param: str | None = None) -> None:
        super().__init__(text)
        self.param = param


@dataclass(frozen=True)
class Ask:
    """A request of `/v1/chat/completions` or `/v1/completions`."""

    model: str
    stream: bool
    wants_usage: bool
    """Whether the client wants a stream to end with its usage."""
    fields: dict[str, Any]
    raw: bytes

    @property
    def answers(self) -> int:
        """How many it asks for: `n` to each of its prompts. What engines will not take counts as one."""
        prompts = self.fields.get("prompt")
        each = self.fields.get("n")
        several = len(prompts) if isinstance(prompts, list) and prompts and _is_text(prompts[0]) else 1
        return several * (each if isinstance(each, int) and each > 0 else 1)

    def beginnings(self, slo_class: str) -> Beginnings:
        """How its prompt begins, for the instances of this class."""
        conversation = self.fields.get("prompt_cache_key")
        return beginnings(
            f"{self.model}/{slo_class}",
            texts_of(self.fields),
            conversation if isinstance(conversation, str) else None,
        )

    def whole(self, kv_transfer_params: dict[str, Any] | None = None) -> bytes:
        """The body for an instance that answers it; a stream always tells its usage.

        Args:
            kv_transfer_params: what the prefill instance gave, for a decode instance.
        """
        if kv_transfer_params is None and (not self.stream or self.wants_usage):
            return self.raw
        if kv_transfer_params is None and "stream_options" not in self.fields:
            brace = self.raw.index(b"{") + 1
            return self.raw[:brace] + _USAGE + self.raw[brace:]  # much cheaper than writing it anew
        fields = dict(self.fields)
        if kv_transfer_params is not None:
            fields["kv_transfer_params"] = kv_transfer_params
        if self.stream:
            fields["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
        return json.dumps(fields).encode()

    def prefill(self) -> bytes:
        """The body for a prefill instance: one token, whose KV cache stays for the decode instance."""
        fields = {**self.fields, "max_tokens": 1, "stream": False, "kv_transfer_params": _REMOTE_DECODE}
        if "max_completion_tokens" in fields:
            fields["max_completion_tokens"] = 1
        for name in ("stream_options", "min_tokens"):
            fields.pop(name, None)
        return json.dumps(fields).encode()


def parse(raw: bytes) -> Ask:
    """Read a request's body.

    Raises:
        BadRequest: it is no JSON object, or a field that the router needs is of another type.
    """
    try:
        fields = from_json(raw)
    except ValueError as error:
        raise BadRequest(f"body: {error}, expected a JSON object") from error
    if not isinstance(fields, dict):
        raise BadRequest(f"body: {str(fields)[:80]!r}, expected a JSON object")
    options = fields.get("stream_options")
    _expect(fields, "model", str)
    _expect(fields, "stream", bool | None)
    _expect(fields, "stream_options", dict | None)
    return Ask(
        model=fields["model"],
        stream=bool(fields.get("stream")),
        wants_usage=bool(options and options.get("include_usage")),
        fields=fields,
        raw=raw,
    )


def _is_text(prompt: object) -> bool:
    """Whether it is a prompt and not the first token of one."""
    return isinstance(prompt, str | list)


def _expect(fields: dict[str, Any], name: str, kind: Any) -> None:
    value = fields.get(name)
    if not isinstance(value, kind):
        wanted = getattr(kind, "__name__", str(kind))
        raise BadRequest(f"{name}: {str(value)[:80]!r}, expected {wanted}", name)
