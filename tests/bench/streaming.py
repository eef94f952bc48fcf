"""Both ends of many streams, cheap enough to measure what lies between: run as a script, one process each.

    streaming.py serve TOKENS_A_SECOND            prints its port; every POST gets a stream without end
    streaming.py load HOST:PORT STREAMS SECONDS   prints a JSON object: chunks, p50_ms, p99_ms

An event carries when it was sent (CLOCK_MONOTONIC, which all processes of a machine share), so the reader
knows how long it was on its way. Plain asyncio protocols: HTTP is written by hand.
"""

import asyncio
import json
import sys
import time
from contextlib import suppress
from typing import cast

import uvloop

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Server: uvicorn\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\n\r\n"
)
PADDING = "x" * 150
"""An event is as long as vLLM's."""
BODY = b'{"model": "m", "prompt": "p", "stream": true}'
ASK = (
    b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class _Served(asyncio.Protocol):
    streams: set["_Served"] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST"):
            self.transport.write(HEAD)
            self.streams.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self.streams.discard(self)


async def serve(tokens_a_second: float) -> None:
    server = await asyncio.get_running_loop().create_server(_Served, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    spread = 20
    turn = 0
    while True:  # a twentieth of the streams at a time, so that tokens do not come in one burst
        await asyncio.sleep(1 / tokens_a_second / spread)
        turn += 1
        for place, stream in enumerate(tuple(_Served.streams)):
            if place % spread == turn % spread:
                event = f'data: {{"t": {time.monotonic_ns()}, "p": "{PADDING}"}}\n\n'.encode()
                stream.transport.write(b"%x\r\n%b\r\n" % (len(event), event))


class _Read(asyncio.Protocol):
    def __init__(self, took_ns: list[int]) -> None:
        self.took_ns = took_ns
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(ASK)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        *events, self.rest = (self.rest + data).split(b"\n\n")
        for event in events:
            sent = event.partition(b'"t": ')[2].partition(b",")[0]
            self.took_ns.append(now - int(sent))


async def load(endpoint: str, streams: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    host, port = endpoint.split(":")
    took_ns: list[int] = []
    for _ in range(streams):
        await loop.create_connection(lambda: _Read(took_ns), host, int(port))
    await asyncio.sleep(2.0)
    took_ns.clear()
    await asyncio.sleep(seconds)
    took = sorted(took_ns)
    shares = {"p50_ms": took[len(took) // 2] / 1e6, "p99_ms": took[len(took) * 99 // 100] / 1e6}
    print(json.dumps({"chunks": len(took), **shares}), flush=True)


def main() -> None:
    match sys.argv[1:]:
        case ["serve", rate]:
            uvloop.run(serve(float(rate)))
        case ["load", endpoint, streams, seconds]:
            uvloop.run(load(endpoint, int(streams), float(seconds)))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
