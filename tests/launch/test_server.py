"""What the server does with bytes that are not HTTP."""

import asyncio

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from launch.server import HttpProtocol


class Written(asyncio.Transport):
    """A connection whose other end reads everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.data = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@pytest.mark.asyncio
async def test_what_follows_the_answer_to_broken_http_ends_quietly() -> None:
    config = uvicorn.Config(FastAPI(), http=HttpProtocol, log_config=None)
    config.load()
    protocol = HttpProtocol(config, ServerState(), {})
    transport = Written()
    protocol.connection_made(transport)
    protocol.data_received(b"not HTTP\r\n\r\n")
    answered = transport.data
    assert answered.startswith(b"HTTP/1.1 400 ")
    assert transport.closed
    protocol.data_received(b"nor this\r\n\r\n")
    assert transport.data == answered
    protocol.connection_lost(None)
