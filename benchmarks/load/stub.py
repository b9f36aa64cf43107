"""A SystemOne server that takes a known time and knows nothing else, for the self-check. `python -m benchmarks.load.stub`.

It prints its port. Delays are taken in the order of arrival, on however many connections. With `--queue` it does one request
after another. `/record` says how long it really had each request, since a busy machine lets it sleep longer than it meant to.
"""

import argparse
import asyncio
import itertools
import json

from aiohttp import web

ANSWER = {
    "model": "stub",
    "answers": {"q": {"type": "noul", "noul": 0.5}},
    "usage": {"input_tokens": 100, "output_tokens": 0, "x_cached_tokens": 0},
}


class Stub:
    """Delays in seconds, one after another and again from the first; in a queue or all at once."""

    def __init__(self, delays_s: list[float], *, queue: bool) -> None:
        self._delays_s, self._queue = itertools.cycle(delays_s), queue
        self._free_at = 0.0
        self._had_s: list[tuple[float, float]] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Read, wait as long as it takes by the clock, answer."""
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        await request.read()
        # Ends are reckoned, not measured: what one request's wait takes too long does not add to the next one's.
        begins = max(arrived, self._free_at) if self._queue else arrived
        ends = begins + next(self._delays_s)
        self._free_at = ends
        await asyncio.sleep(ends - loop.time())
        self._had_s.append((arrived, loop.time() - arrived))
        return web.json_response(ANSWER)

    async def record(self, _: web.Request) -> web.Response:
        """Seconds from arrival to answer, in the order of arrival."""
        return web.json_response([had for _, had in sorted(self._had_s)])


async def models(_: web.Request) -> web.Response:
    """One model."""
    return web.json_response({"object": "list", "data": [{"id": "stub"}]})


async def serve(stub: Stub) -> None:
    """Serve on a free port of this machine until ended."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/systemone", stub.answer)
    app.router.add_get("/record", stub.record)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serve with the delays on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.stub", description=__doc__)
    parser.add_argument("--delays-ms", type=float, nargs="+", required=True)
    parser.add_argument("--queue", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(serve(Stub([delay / 1000 for delay in arguments.delays_ms], queue=arguments.queue)))


if __name__ == "__main__":
    main()
