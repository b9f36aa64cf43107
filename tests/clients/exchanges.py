"""What went over the wire: an ASGI middleware that keeps the headers and status of every exchange of a server."""

from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(kw_only=True)
class Exchange:
    """One request and what it was told. Without a status it was not answered."""

    sent: Headers
    status: int | None = None
    received: Headers = field(default_factory=Headers)


class _Recording:
    def __init__(self, app: ASGIApp, *, exchanges: list[Exchange]) -> None:
        self._app = app
        self._exchanges = exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(sent=Headers(scope=scope))
        self._exchanges.append(exchange)

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status, exchange.received = message["status"], Headers(raw=message["headers"])
            await send(message)

        await self._app(scope, receive, send_and_record)


def record_exchanges(app: FastAPI) -> list[Exchange]:
    """Every later exchange of an app that was not started yet, in the order in which they begin."""
    exchanges: list[Exchange] = []
    app.add_middleware(_Recording, exchanges=exchanges)
    return exchanges
