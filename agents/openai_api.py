"""The part of the OpenAI API that the simulated engine speaks: requests in, bodies out. No timing, no server.

Shapes: the OpenAI API reference ("Chat", "Completions (legacy)", "Models"). Unknown fields are ignored, as
clients send many; what cannot be honoured is refused with the field's name.
"""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

CHARACTERS_PER_TOKEN = 4
"""A simulated tokenizer: OpenAI's rule of thumb for English text."""
DEFAULT_MAX_TOKENS = 16
"""Of the completions API; a simulated chat, which never ends by itself, takes the same."""

Tokens = Annotated[int, Field(ge=1, le=1_000_000)]
JsonObject = dict[str, Any]


class ApiError(Exception):
    """An answer that is an error, in the API's shape."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "service_unavailable"
        self.body: JsonObject = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class _Open(BaseModel):
    """A client's JSON: strict in the fields that matter, deaf to all others."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _StreamOptions(_Open):
    include_usage: bool = False


class _Common(_Open):
    model: str
    max_tokens: Tokens | None = None
    n: Literal[1] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Part(_Open):
    type: Literal["text"]
    text: str


class _Message(_Open):
    role: str
    content: str | list[_Part] | None = None

    @property
    def characters(self) -> int:
        if self.content is None:
            return 0
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return sum(map(len, parts))


class _Chat(_Common):
    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: Tokens | None = None


class _Completion(_Common):
    prompt: str | list[int]
    """Text or token ids; the API's lists of several prompts are not served."""


@dataclass(frozen=True)
class Ask:
    """What a client asks for."""

    chat: bool
    model: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool


def parse(body: bytes, *, chat: bool) -> Ask:
    """Read a request of `/v1/chat/completions` or `/v1/completions`.

    Raises:
        ApiError: 400, naming the first field that is wrong.
    """
    try:
        given = (_Chat if chat else _Completion).model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(str(step) for step in first["loc"]) or None
        raise ApiError(400, f"{param or 'body'}: {first['msg']}", param=param) from error
    if isinstance(given, _Chat):
        prompt_tokens = _tokens(sum(message.characters for message in given.messages))
        limit = given.max_completion_tokens or given.max_tokens
    else:
        prompt_tokens = _tokens(len(given.prompt)) if isinstance(given.prompt, str) else len(given.prompt)
        limit = given.max_tokens
    options = given.stream_options
    return Ask(
        chat=chat,
        model=given.model,
        prompt_tokens=max(1, prompt_tokens),
        max_tokens=limit or DEFAULT_MAX_TOKENS,
        stream=bool(given.stream),
        include_usage=options is not None and options.include_usage,
    )


def _tokens(characters: int) -> int:
    return math.ceil(characters / CHARACTERS_PER_TOKEN)


@dataclass(frozen=True)
class Voice:
    """Words an answer: everything about it but its tokens."""

    ask: Ask
    id: str
    created_s: int

    def first(self) -> list[bytes]:
        """What a stream opens with."""
        if not self.ask.chat:
            return []
        return [
            self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        ]

    def token(self, text: str, *, last: bool) -> bytes:
        finish = "length" if last else None
        said = {"delta": {"content": text}} if self.ask.chat else {"text": text}
        return self._event([{"index": 0, **said, "finish_reason": finish}])

    def close(self, tokens: int) -> list[bytes]:
        """What a stream ends with: the usage where it was asked for, then `[DONE]`."""
        usage = [self._event([], self._usage(tokens))] if self.ask.include_usage else []
        return [*usage, b"data: [DONE]\n\n"]

    def whole(self, texts: list[str]) -> JsonObject:
        """The answer without streaming."""
        text = "".join(texts)
        said = {"message": {"role": "assistant", "content": text}} if self.ask.chat else {"text": text}
        choices = [{"index": 0, **said, "finish_reason": "length"}]
        kind = "chat.completion" if self.ask.chat else "text_completion"
        return self._body(kind, choices, self._usage(len(texts)))

    def _event(self, choices: list[JsonObject], usage: JsonObject | None = None) -> bytes:
        kind = "chat.completion.chunk" if self.ask.chat else "text_completion"
        return b"data: " + json.dumps(self._body(kind, choices, usage)).encode() + b"\n\n"

    def _body(self, kind: str, choices: list[JsonObject], usage: JsonObject | None) -> JsonObject:
        body: JsonObject = {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.ask.model,
            "choices": choices,
        }
        return body if usage is None else {**body, "usage": usage}

    def _usage(self, tokens: int) -> JsonObject:
        prompt = self.ask.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def models(name: str, created_s: int) -> JsonObject:
    """The body of `/v1/models`."""
    model = {"id": name, "object": "model", "created": created_s, "owned_by": "coral"}
    return cast("JsonObject", {"object": "list", "data": [model]})
