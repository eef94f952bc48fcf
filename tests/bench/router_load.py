"""Both ends of the router's bench, as cheap as Python allows: what is between them shall be measured.

    python router_load.py engine PORTS TOKENS_S
    python router_load.py streams ADDRESSES STREAMS SECONDS
    python router_load.py requests ADDRESSES AT_ONCE SECONDS

The engine listens on every port of PORTS (with commas), each with a step clock of its own: in every step all
streams of a port get their token at once, as in vLLM. An event carries the time it was sent (ns of the
machine's monotonic clock), so a client knows how long it took. Clients spread over ADDRESSES (host:port, with
commas) and print one line of JSON.
"""

import asyncio
import json
import re
import sys
import time
from functools import partial
from typing import cast

SENT = re.compile(rb'"sent":(\d+)\}')
_EVENT = b'data: {"id":"chatcmpl-5f0c52a4e2b94c3f","object":"chat.completion.chunk","created":1764444444,'
EVENT = (
    _EVENT + b'"model":"tiny","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,'
    b'"finish_reason":null,"token_ids":null}],"sent":%019d}\n\n'
)
USAGE = (
    _EVENT + b'"model":"tiny","choices":[],'
    b'"usage":{"prompt_tokens":20,"completion_tokens":%d,"total_tokens":20}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
WHOLE = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1764444444,
        "model": "tiny",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21},
    }
).encode()
WHOLE_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
    len(WHOLE),
    WHOLE,
)


def chunk(data: bytes) -> bytes:
    """`data` as a chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(data), data)


# --- the engine --------------------------------------------------------------------------------------
class Served(asyncio.Protocol):
    """A connection to the engine."""

    def __init__(self, running: dict["Served", int]) -> None:
        self._running = running
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one, though not by inheritance

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
        self._running.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if not found or (length and len(body) < int(length[1])):
            return
        self._data = b""
        if not head.startswith(b"POST"):
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        elif b'"stream":true' in body.replace(b" ", b""):
            tokens = re.search(rb'"max_tokens": ?(\d+)', body)
            assert tokens
            self.transport.write(STREAM_HEAD)
            self._running[self] = int(tokens[1])
        else:
            self.transport.write(WHOLE_ANSWER)


async def engine(ports: list[int], tokens_s: float) -> None:
    loop = asyncio.get_running_loop()
    for number, port in enumerate(ports):
        running: dict[Served, int] = {}
        await loop.create_server(partial(Served, running), "127.0.0.1", port, backlog=2048)
        asyncio.ensure_future(_step(running, 1 / tokens_s, number / len(ports) / tokens_s))  # noqa: RUF006
    print("ready", flush=True)
    await asyncio.Event().wait()


async def _step(running: dict[Served, int], every_s: float, offset_s: float) -> None:
    due = time.monotonic() + offset_s
    while True:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        due += every_s
        for one, left in list(running.items()):
            if left:
                running[one] = left - 1
                one.transport.write(chunk(EVENT % time.monotonic_ns()))
            else:
                del running[one]
                one.transport.write(chunk(USAGE % 20) + chunk(DONE) + b"0\r\n\r\n")


# --- clients -----------------------------------------------------------------------------------------
class Asking(asyncio.Protocol):
    """A client's connection: one request after the other."""

    def __init__(self, request: bytes, late_ns: list[int], whole_ns: list[int], end: bytes) -> None:
        self._request = request
        self._late_ns = late_ns
        self._whole_ns = whole_ns
        self._end = end
        self._tail = b""
        self._began_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        self._began_ns = time.monotonic_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        data = self._tail + data
        last = 0
        for sent in SENT.finditer(data):
            self._late_ns.append(now_ns - int(sent[1]))
            last = sent.end()
        self._tail = data[last:][-400:]
        if data.endswith(self._end):
            assert b"HTTP/1.1 4" not in data
            assert b"HTTP/1.1 5" not in data
            self._whole_ns.append(now_ns - self._began_ns)
            self._tail = b""
            self._ask()


async def clients(addresses: list[str], at_once: int, seconds: float, *, stream: bool) -> None:
    late_ns: list[int] = []
    whole_ns: list[int] = []
    end = b"0\r\n\r\n" if stream else b"}"
    loop = asyncio.get_running_loop()
    kept = []
    for number in range(at_once):
        address = addresses[number % len(addresses)]
        host, _, port = address.partition(":")
        client = Asking(_request(address, number, stream=stream), late_ns, whole_ns, end)
        kept.append(await loop.create_connection(partial(_same, client), host, int(port)))
        await asyncio.sleep(0.002)
    await asyncio.sleep(1.0)  # warm
    late_ns.clear()
    whole_ns.clear()
    print("warm", flush=True)
    await asyncio.sleep(seconds)
    measured = sorted(late_ns if stream else whole_ns)
    at = {f"p{q:g}_ms": measured[int(len(measured) * q / 100)] / 1e6 for q in (50, 99, 99.9)}
    print(json.dumps({"count": len(measured), "seconds": seconds, **at}), flush=True)


def _same(client: Asking) -> Asking:
    return client


def _request(address: str, number: int, *, stream: bool) -> bytes:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"{number}: tell me a story of some length"}],
        "stream": stream,
        "max_tokens": 200,
    }
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def main(what: str, first: str, second: str, third: str = "") -> None:
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        if what == "engine":
            runner.run(engine([int(port) for port in first.split(",")], float(second)))
        else:
            runner.run(clients(first.split(","), int(second), float(third), stream=what == "streams"))


if __name__ == "__main__":
    main(*sys.argv[1:])
