"""Whether a server's memory stays flat: `clef-serve up` on the CPU, 10,000 requests of every kind, the size of its processes.

Knows only HTTP and the operating system's account of memory. Run it with `python -m benchmarks.server_memory`; it needs what
`make install-dev` installs. The last line is one JSON object, and the exit status is 1 if memory grew beyond the bound.
"""

import argparse
import asyncio
import base64
import datetime
import gzip
import importlib.metadata
import io
import itertools
import json
import os
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
from backports import zstd
from PIL import Image

from benchmarks._workloads import question_set
from benchmarks.corpus import lines
from launch.keys import create_key
from tests.launch.running import running
from tests.serving.media_samples import moving, photo, video_file
from tests.serving.raw_bodies import raw_requests

MIB = 2**20
START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 60
SYSTEMONE = "/v1/systemone"
STEP = 1000
# The first half fills what is meant to be filled: caches, pools, arenas, the first use of every library. Of 10,000 requests
# about 5,000 were measured to do so.
SETTLED_AFTER = 2
ROLES = ("front", "scheduler", "detokenizer", "others")
# SGLang maps its pools at the start, and their pages become resident as they are first used. Small ones are in use at once;
# of large ones the first use would go on for longer than this program, and look like a leak.
ENGINE = ("--max-total-tokens", "32768", "--max-mamba-cache-size", "48", "--max-running-requests", "8")
# SGLang's cache of what it computed of images holds 100 MB by default, which these would not fill.
ENVIRON = {"SGLANG_VLM_CACHE_SIZE_MB": "4"}
# glibc keeps freed memory for later, more of it with every peak. Told to give it back, it makes the size of a process that of
# what the process holds, and a leak of a few KiB for each request cannot hide.
GIVE_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
STATE_LINES = 6
STATES = tuple("\n".join(state) for state in zip(*[lines(40 * STATE_LINES)] * STATE_LINES, strict=True))


@dataclass(frozen=True, kw_only=True)
class Message:
    """One request, and the statuses that it may be answered with."""

    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    expected: frozenset[int] = frozenset({200})


Draw = random.Random


def _request(draw: Draw, **fields: Any) -> dict[str, Any]:
    """Half of the states are known, and half of the question sets."""
    state = draw.choice(STATES) if draw.random() < 0.5 else f"{draw.random()}\n{draw.choice(STATES)}"
    questions = dict(itertools.islice(question_set(draw.randrange(8)).items(), draw.randint(1, 4)))
    if draw.random() < 0.5:
        questions = {f"{name}-{draw.randrange(10**9)}": question for name, question in questions.items()}
    return {"state": state, "questions": questions} | fields


def _json(value: Any) -> Message:
    return Message(body=json.dumps(value).encode())


def text(draw: Draw) -> Message:
    """A state that is text."""
    return _json(_request(draw))


def structured(draw: Draw) -> Message:
    """A state that is JSON, a field that nobody knows, and a salt of its own."""
    state = {
        "id": draw.randrange(10**12),
        "lines": draw.choice(STATES).splitlines(),
        "nested": [{"a": [None, 1.5]}] * 5,
    }
    return _json(_request(draw, state=state, x_trace=draw.random(), cache_salt=str(draw.randrange(10**6))))


def many_options(draw: Draw) -> Message:
    """A choice of up to 255."""
    options = {f"option {draw.randrange(10**6)}": None for _ in range(draw.choice([20, 60, 255]))}
    return _json(_request(draw, questions={"which": {"type": "choice", "criteria": options}}))


def isolated(draw: Draw) -> Message:
    """Each question in a prompt of its own."""
    return _json(_request(draw, x_isolated=True, x_question_ids="neutral"))


def image(draw: Draw) -> Message:
    """One or two images."""
    return _json(_request(draw, images=[_picture(draw) for _ in range(draw.randint(1, 2))]))


def video(draw: Draw) -> Message:
    """A short video, as a file or as frames."""
    if draw.random() < 0.5:
        frames = [_picture(draw, (64, 48)) for _ in range(4)]
        return _json(_request(draw, videos=[{"frames": frames, "fps": 2}]))
    file = video_file(moving(draw.randint(6, 12)))
    return _json(_request(draw, videos=[{"base64": base64.b64encode(file).decode(), "content_type": "video/mp4"}]))


def multipart(draw: Draw) -> Message:
    """An asset in a part of its own."""
    request = _request(draw, state="See <photo>.", assets={"<photo>": {"part": "asset-0"}})
    parts: dict[str, tuple[str | None, str | bytes, str]] = {
        "request": (None, json.dumps(request), "application/json"),
        "asset-0": ("photo.png", _encoded(draw, "PNG"), "image/png"),
    }
    made = httpx.Request("POST", "http://front", files=parts)
    return Message(body=made.read(), headers={"content-type": made.headers["content-type"]})


def compressed(draw: Draw) -> Message:
    """gzip or zstd."""
    plain = text(draw)
    coding = draw.choice(["gzip", "zstd"])
    body = gzip.compress(plain.body) if coding == "gzip" else zstd.compress(plain.body)
    return Message(body=body, headers={**plain.headers, "content-encoding": coding})


def invalid(draw: Draw) -> Message:
    """Spoilt somewhere, on whatever layer."""
    spoilt = next(raw for raw in raw_requests(draw.getrandbits(64)) if not raw.is_valid)
    return Message(body=spoilt.body, headers=spoilt.headers, expected=frozenset({200, 400, 404, 413, 415, 422}))


def unknown_key(draw: Draw) -> Message:
    """From someone who may not ask."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {draw.randbytes(20).hex()}"}
    return Message(body=text(draw).body, headers=headers, expected=frozenset({401}))


def aborted(draw: Draw) -> Message:
    """A client that leaves, at any moment; what becomes of its answer, nobody sees."""
    return draw.choice([text, structured, many_options, isolated, image, multipart])(draw)


def _picture(draw: Draw, size: tuple[int, int] | None = None) -> str:
    return base64.b64encode(_encoded(draw, draw.choice(["PNG", "JPEG", "WEBP"]), size)).decode()


def _encoded(draw: Draw, format_name: str, size: tuple[int, int] | None = None) -> bytes:
    width, height = size or (draw.randrange(32, 256), draw.randrange(32, 256))
    out = io.BytesIO()
    picture: Image.Image = photo(width, height, seed=draw.getrandbits(32))
    picture.save(out, format_name)
    return out.getvalue()


KINDS: dict[Callable[[Draw], Message], int] = {  # and how many of a hundred
    text: 34,
    structured: 15,
    many_options: 3,
    isolated: 4,
    image: 10,
    video: 2,
    multipart: 4,
    compressed: 8,
    invalid: 10,
    unknown_key: 4,
    aborted: 6,
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Resident memory of each of `ROLES` after so many requests, in bytes."""

    requests: int
    rss: dict[str, int]
    seconds: float

    @property
    def total(self) -> int:
        """All processes together."""
        return sum(self.rss.values())

    def row(self) -> str:
        """A line of the table, in MiB."""
        sizes = "  ".join(f"{self.rss[role] / MIB:11.1f}" for role in ROLES)
        return f"{self.requests:8d}  {sizes}  {self.total / MIB:8.1f}  {self.seconds:7.0f}"


HEADING = f"{'requests':>8}  {'  '.join(f'{role:>11}' for role in ROLES)}  {'total':>8}  {'seconds':>7}"


def sample(pid: int, requests: int, started: float) -> Sample:
    """What the operating system says of a server's processes."""
    server = psutil.Process(pid)
    rss = dict.fromkeys(ROLES, 0)
    for process in (server, *server.children(recursive=True)):
        try:
            command, size = " ".join(process.cmdline()), process.memory_info().rss
        except psutil.NoSuchProcess:  # it decoded a video, and ended
            continue
        role = next((role for role in ROLES if role in command), "front" if process.pid == pid else "others")
        rss[role] += size
    return Sample(requests=requests, rss=rss, seconds=time.monotonic() - started)


async def drive(url: str, key: str, arguments: argparse.Namespace, pid: int) -> tuple[list[Sample], Counter[str]]:
    """Send everything, so many at a time; a sample after each `STEP`, when all are answered."""
    draw = random.Random(arguments.seed)
    counts: Counter[str] = Counter()
    started = time.monotonic()
    samples = [sample(pid, 0, started)]
    print(f"{HEADING}\n{samples[0].row()}", flush=True)
    gate = asyncio.Semaphore(arguments.concurrency)
    limits = httpx.Limits(max_connections=arguments.concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        while (done := samples[-1].requests) < arguments.requests:
            count = min(STEP, arguments.requests - done)
            async with asyncio.TaskGroup() as group:
                for kind, seed in _drawn(draw, count):
                    await gate.acquire()
                    task = group.create_task(_send(client, url, key, kind, random.Random(seed), counts))
                    task.add_done_callback(lambda _: gate.release())
            samples.append(sample(pid, done + count, started))
            print(samples[-1].row(), flush=True)
    return samples, counts


def _drawn(draw: Draw, count: int) -> Iterator[tuple[Callable[[Draw], Message], int]]:
    for kind in draw.choices(list(KINDS), list(KINDS.values()), k=count):
        yield kind, draw.getrandbits(64)


async def _send(
    client: httpx.AsyncClient,
    url: str,
    key: str,
    kind: Callable[[Draw], Message],
    draw: Draw,
    counts: Counter[str],
) -> None:
    message = kind(draw)
    headers = {"authorization": f"Bearer {key}"} | message.headers
    if kind is aborted:
        await _send_and_leave(url, headers, message.body, draw)
        counts["aborted"] += 1
        return
    response = await client.post(SYSTEMONE, content=message.body, headers=headers)
    if response.status_code not in message.expected:
        raise SystemExit(
            f"benchmarks.server_memory: {kind.__name__} was answered {response.status_code}: {response.text}"
        )
    counts[f"{kind.__name__} {response.status_code}"] += 1


async def _send_and_leave(url: str, headers: dict[str, str], body: bytes, draw: Draw) -> None:
    """Half leave while they send, half while they wait."""
    address = urlsplit(url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    lines = [f"POST {SYSTEMONE} HTTP/1.1", "host: front", f"content-length: {len(body)}"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())]) + "\r\n\r\n"
    message = head.encode() + body
    leaves_early = draw.random() < 0.5
    writer.write(message[: draw.randrange(len(message))] if leaves_early else message)
    await writer.drain()
    if not leaves_early:
        await asyncio.sleep(draw.random() / 10)
    writer.transport.abort()


def growth(samples: Sequence[Sample]) -> dict[str, Any]:
    """How much memory came to be in use since the settled sample, in all and by process."""
    last = samples[-1]
    settled = next(one for one in samples if one.requests * SETTLED_AFTER >= last.requests)
    requests = last.requests - settled.requests
    grown = last.total - settled.total
    return {
        "over_requests": requests,
        "growth_mib": round(grown / MIB, 1),
        "growth_kib_per_request": round(grown / 1024 / requests, 3),
        "growth_mib_by_process": {role: round((last.rss[role] - settled.rss[role]) / MIB, 1) for role in ROLES},
    }


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server_memory", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--requests", type=int, default=10_000, help="how many; the first half is not judged")
    parser.add_argument("--concurrency", type=int, default=8, help="most at one time")
    parser.add_argument("--bound-kib", type=float, default=2.0, help="most growth for each request judged, in KiB")
    parser.add_argument(
        "--keep-freed", action="store_true", help="leave the C library's allocator as it is in production"
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything that is sent")
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, and as the last line one JSON object."""
    arguments = parse_arguments()
    made = create_key(name="benchmark", tenant="benchmark")
    with tempfile.TemporaryDirectory(prefix="clef-benchmark-") as temporary:
        keys = Path(temporary) / "keys.toml"
        keys.write_text(made.entry, encoding="utf-8")
        command = ["up", "--device", "cpu", "--dtype", "float32", "--port", "0", "--api-keys", str(keys), "--", *ENGINE]
        environ = ENVIRON if arguments.keep_freed else ENVIRON | GIVE_BACK
        with running("launch", *command, environ=environ) as server:
            url = server.wait_for(r"clef-serve is ready at (http://\S+)", START_TIMEOUT_S)[1]
            samples, counts = asyncio.run(drive(url, made.key, arguments, server.process.pid))
            server.press_ctrl_c()
            status = server.end(STOP_TIMEOUT_S)
    grown = growth(samples)
    flat = status == 0 and grown["growth_kib_per_request"] <= arguments.bound_kib
    each = f"{grown['growth_kib_per_request']} KiB each"
    print(f"\n{grown['growth_mib']} MiB over the last {grown['over_requests']} requests, {each}")
    report = {
        "benchmark": "server_memory",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "requests": arguments.requests,
        "concurrency": arguments.concurrency,
        "keep_freed": arguments.keep_freed,
        **grown,
        "bound_kib_per_request": arguments.bound_kib,
        "flat": flat,
        "server_exit_status": status,
        "rss_mib": {one.requests: round(one.total / MIB, 1) for one in samples},
        "answers": dict(sorted(counts.items())),
        "seconds": round(samples[-1].seconds),
        "versions": {name: importlib.metadata.version(name) for name in ("sglang", "torch", "clef-serving")},
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    print(json.dumps(report))
    raise SystemExit(0 if flat else 1)


if __name__ == "__main__":
    main()
