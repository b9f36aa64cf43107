"""Media of a request, measured first and decoded later, in bounded memory, whatever fails or is cancelled on the way."""

import asyncio
import base64
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving.media import images, videos
from serving.media.decoded import Video, VideoShape
from serving.media.images import ImageInfo
from serving.media.limits import MediaLimits
from serving.media.memory import Memory
from serving.media.reader import AskedMedia, MediaReader, ProbedImage, ProbedVideo
from serving.media.remote import RemoteMedia, RemotePolicy
from tests.serving.media_samples import encoded, moving, photo, refused, video_file
from tests.serving.test_media_remote import Names, Network, Site, answer

pytestmark = pytest.mark.asyncio

PNG = encoded(photo(), "PNG")
MP4 = video_file(moving(12))
MB = 2**20


def image(source: Any = PNG, number: int = 0) -> AskedMedia:
    return AskedMedia(kind="image", source=source, loc=("body", "images", number))


def video(source: Any = MP4, fps: float | None = None, number: int = 0) -> AskedMedia:
    return AskedMedia(kind="video", source=source, fps=fps, loc=("body", "videos", number))


def every_frame(shape: VideoShape) -> Sequence[int]:
    return range(shape.total_frames)


def reader_of(limits: MediaLimits | None = None, **options: Any) -> MediaReader:
    return MediaReader(limits=limits or MediaLimits(), **options)


async def test_a_request_with_everything() -> None:
    frames = [encoded(Image.fromarray(pixels), "PNG") for pixels in moving(5)]
    asked = [
        image(),
        image("data:image/png;base64," + base64.b64encode(PNG).decode(), 1),
        video(),
        video((frames[0], base64.b64encode(frames[1]).decode(), *frames[2:]), fps=2, number=1),
    ]
    reader = reader_of()
    probed = await reader.probe(asked)
    info = ImageInfo(width=48, height=32, format="PNG")
    shape = VideoShape(total_frames=12, fps=10, width=64, height=48)
    assert probed == [
        ProbedImage(data=PNG, info=info, loc=("body", "images", 0)),
        ProbedImage(data=PNG, info=info, loc=("body", "images", 1)),
        ProbedVideo(data=MP4, shape=shape, loc=("body", "videos", 0)),
        ProbedVideo(
            data=tuple(frames),
            shape=VideoShape(total_frames=5, fps=2, width=64, height=48),
            loc=("body", "videos", 1),
        ),
    ]
    async with reader.decode(probed, lambda shape: (0, 2, 2, 4)) as decoded:
        assert reader.memory_taken > 0
        for one in decoded[:2]:
            assert isinstance(one, Image.Image)
            assert np.array_equal(np.asarray(one), np.asarray(photo()))
        for one, frame in zip(decoded[2:], (moving(12), moving(5)), strict=True):
            assert isinstance(one, Video)
            assert one.indices == (0, 2, 2, 4)
            assert np.abs(one.frames.astype(int) - frame[[0, 2, 2, 4]])[:, 20:, 32:].max() < 8
    await until(lambda: reader.memory_taken == 0)
    await reader.aclose()


async def until(condition: Any) -> None:
    """Let the event loop run until it is so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - some of it happens in threads
            await asyncio.sleep(0)


async def test_nothing_is_nothing() -> None:
    reader = reader_of()
    assert await reader.probe([]) == []
    async with reader.decode([], every_frame) as decoded:
        assert decoded == []


async def test_orientation_is_one_choice_for_both_steps() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(photo(), "JPEG", exif=exif)
    for apply, size in ((False, (48, 32)), (True, (32, 48))):
        reader = reader_of(apply_exif_orientation=apply)
        (probed,) = await reader.probe([image(data)])
        assert isinstance(probed, ProbedImage)
        assert (probed.info.width, probed.info.height) == size
        async with reader.decode([probed], every_frame) as (decoded,):
            assert isinstance(decoded, Image.Image)
            assert decoded.size == size


async def test_a_list_of_frames_without_a_rate_has_the_references() -> None:
    (probed,) = await reader_of().probe([video((PNG, PNG))])
    assert isinstance(probed, ProbedVideo)
    assert probed.shape == VideoShape(total_frames=2, fps=24, width=48, height=32)


OFF = "images.0 is a URL, and this server fetches no media; its operator can allow hosts with media_hosts"
OTHER = encoded(photo(32, 32), "PNG")
REFUSED: dict[str, tuple[list[AskedMedia], dict[str, Any], str, str, list[str | int]]] = {
    "a URL": ([image("http://169.254.169.254/latest/meta-data/")], {}, OFF, "media_remote", ["images", 0]),
    "a second image that is none": (
        [image(), image(b"x", 1)],
        {},
        "images.1 is no image of a format that is read, which are PNG, JPEG, WebP and still GIF",
        "media_format",
        ["images", 1],
    ),
    "the first of two faults": ([image(b""), image(b"x", 1)], {}, "images.0 is empty", "media_source", ["images", 0]),
    "images": (
        [image(number=number) for number in range(5)],
        {"max_images": 4},
        "images.4 is one of 5 images; the limit max_images is 4",
        "media_count",
        ["images", 4],
    ),
    "videos": (
        [video()],
        {"max_videos": 0},
        "videos.0 is one of 1 videos; the limit max_videos is 0",
        "media_count",
        ["videos", 0],
    ),
    "bytes together": (
        [image(), image(number=1)],
        {"max_media_bytes": 2 * len(PNG) - 1},
        f"images.1 brings the request's media to {2 * len(PNG)} bytes; the limit max_media_bytes is {2 * len(PNG) - 1}",
        "media_too_large",
        ["images", 1],
    ),
    "a rate for a file": (
        [video(fps=2)],
        {},
        "videos.0 is a file, which says its frames a second itself; fps is for a list of frames",
        "media_source",
        ["videos", 0],
    ),
    "no frames": ([video(())], {}, "videos.0 has no frames", "media_source", ["videos", 0]),
    "frames": (
        [video((PNG,) * 3)],
        {"max_video_frames": 2},
        "videos.0 has 3 frames; the limit max_video_frames is 2",
        "media_count",
        ["videos", 0],
    ),
    "no rate": (
        [video((PNG, PNG), fps=0)],
        {},
        "videos.0.fps must be a number from 1e-06 to 1e+06",
        "media_source",
        ["videos", 0, "fps"],
    ),
    "a rate that is no number": (
        [video((PNG, PNG), fps=float("nan"))],
        {},
        "videos.0.fps must be a number from 1e-06 to 1e+06",
        "media_source",
        ["videos", 0, "fps"],
    ),
    "a frame of another size": (
        [video((PNG, OTHER))],
        {},
        "videos.0.1 is 32 x 32 pixels, and the first frame 48 x 32",
        "media_format",
        ["videos", 0, 1],
    ),
    "a frame that is too large": (
        [video((PNG, PNG))],
        {"max_frame_pixels": 1535},
        "videos.0.0 has frames of 1536 pixels (48 x 32); the limit max_frame_pixels is 1535",
        "media_too_large",
        ["videos", 0, 0],
    ),
}


@pytest.mark.parametrize(("asked", "limits", "message", "kind", "loc"), REFUSED.values(), ids=REFUSED)
async def test_refused_before_a_pixel_is_decoded(
    asked: list[AskedMedia], limits: dict[str, Any], message: str, kind: str, loc: list[str | int]
) -> None:
    with refused(message, kind, ("body", *loc)):
        await reader_of(MediaLimits(**limits)).probe(asked)


async def test_media_of_allowed_hosts() -> None:
    async with Site({"/a.png": answer(PNG), "/b.png": answer(b"<html>")}).serving() as site:
        remote = RemoteMedia(
            RemotePolicy(hosts=frozenset({"media.example"})),
            resolver=Names(media_example=[["93.184.215.14"]]),
            backend=Network(site),
        )
        reader = reader_of(remote=remote)
        first, second = await reader.probe([image(), image(" http://media.example/a.png", 1)])
        assert first.data == second.data
        with refused(
            "images.0 is no image of a format that is read, which are PNG, JPEG, WebP and still GIF", "media_format"
        ):
            await reader.probe([image("http://media.example/b.png")])
        await reader.aclose()


async def test_memory_is_counted_from_sizes_and_samples() -> None:
    needed = 48 * 32 * images.DECODED_BYTES_PER_PIXEL
    at_most = MediaLimits(max_decoded_bytes=2 * needed)
    reader = reader_of(at_most)
    probed = await reader.probe([image(number=number) for number in range(3)])
    async with reader.decode(probed[:2], every_frame):
        assert reader.memory_taken == 2 * needed
    message = (
        f"images.2 brings the memory to decode the request's media to {3 * needed} bytes; "
        f"the limit max_decoded_bytes is {2 * needed}"
    )
    with refused(message, "media_too_large", ("body", "images", 2)):
        async with reader.decode(probed, every_frame):
            pytest.fail("decoded")
    await until(lambda: reader.memory_taken == 0)


async def test_a_video_takes_memory_for_its_chosen_frames() -> None:
    reader = reader_of()
    (probed,) = await reader.probe([video()])
    for count in (2, 12):
        async with reader.decode([probed], lambda shape, count=count: range(count)):  # type: ignore[misc]
            assert isinstance(probed, ProbedVideo)
            assert reader.memory_taken == videos.decoded_bytes(probed.shape, count)
        await until(lambda: reader.memory_taken == 0)
    few = reader_of(MediaLimits(max_video_frames=11))
    with refused(
        "videos.0 would be looked at in 12 frames; the limit max_video_frames is 11",
        "media_count",
        ("body", "videos", 0),
    ):
        async with few.decode([probed], every_frame):
            pytest.fail("decoded")


async def test_damaged_pixels_are_refused_and_give_their_memory_back() -> None:
    reader = reader_of()
    cut = PNG[: len(PNG) // 2]
    probed = await reader.probe([image(), image(cut, 1), video()])
    with refused("images.1 is a PNG that is damaged or cut short", "media_damaged", ("body", "images", 1)):
        async with reader.decode(probed, every_frame):
            pytest.fail("decoded")
    await until(lambda: reader.memory_taken == 0)


async def test_others_wait_for_memory_in_turn() -> None:
    needed = 48 * 32 * images.DECODED_BYTES_PER_PIXEL
    reader = reader_of(MediaLimits(max_decoded_bytes=2 * needed), memory_bytes=2 * needed)
    probed = await reader.probe([image(number=number) for number in range(2)])
    order: list[str] = []
    leave = {name: asyncio.Event() for name in ("one", "two", "another")}

    async def hold(name: str, count: int) -> None:
        async with reader.decode(probed[:count], every_frame):
            order.append(name)
            await leave[name].wait()

    one = asyncio.create_task(hold("one", 1))
    await until(lambda: order == ["one"])
    two = asyncio.create_task(hold("two", 2))
    another = asyncio.create_task(hold("another", 1))
    for _ in range(50):
        await asyncio.sleep(0)
    # There is room for `another`, but it came after `two`.
    assert (order, reader.memory_taken) == (["one"], needed)
    leave["one"].set()
    await until(lambda: order == ["one", "two"])
    two.cancel()
    await until(lambda: order == ["one", "two", "another"])
    leave["another"].set()
    await asyncio.gather(one, two, another, return_exceptions=True)
    await until(lambda: reader.memory_taken == 0)


async def test_cancelled_while_a_thread_decodes_the_memory_stays_taken_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real = images.decode_image
    decoded = []

    def slow(*args: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(20)
        decoded.append(1)
        return real(*args, **named)

    monkeypatch.setattr(images, "decode_image", slow)
    reader = reader_of(threads=1)
    probed = await reader.probe([image(number=number) for number in range(3)])

    async def ask() -> None:
        async with reader.decode(probed, every_frame):
            pytest.fail("decoded")

    task = asyncio.create_task(ask())
    await until(begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reader.memory_taken == 3 * 48 * 32 * images.DECODED_BYTES_PER_PIXEL
    go_on.set()
    await until(lambda: reader.memory_taken == 0)
    assert len(decoded) == 1  # those that wait for the thread are not begun


async def test_cancelled_while_a_video_is_decoded_its_process_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    reader = reader_of()
    (probed,) = await reader.probe([video()])
    script = tmp_path / "endless.py"
    script.write_text("import signal, sys\nsys.stdin.buffer.read()\nsignal.pause()\n")
    monkeypatch.setattr(videos, "_SCRIPT", script)
    processes: list[asyncio.subprocess.Process] = []
    real = asyncio.create_subprocess_exec

    async def remember(*args: Any, **named: Any) -> asyncio.subprocess.Process:
        processes.append(await real(*args, **named))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)

    async def ask() -> None:
        async with reader.decode([probed], every_frame):
            pytest.fail("decoded")

    task = asyncio.create_task(ask())
    await until(lambda: processes)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: reader.memory_taken == 0)
    assert processes[0].returncode == -9


async def test_nothing_runs_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.get_ident()
    seen = set()
    for name in ("probe_image", "decode_image"):
        real = getattr(images, name)

        def elsewhere(*args: Any, real: Any = real, **named: Any) -> Any:
            seen.add(threading.get_ident())
            return real(*args, **named)

        monkeypatch.setattr(images, name, elsewhere)
    reader = reader_of()
    probed = await reader.probe([image(), video((PNG, PNG))])
    async with reader.decode(probed, every_frame):
        pass
    assert seen
    assert here not in seen


async def test_memory_must_hold_a_request() -> None:
    with pytest.raises(ValueError, match=r"^memory_bytes must be at least max_decoded_bytes \(2147483648\), not 1$"):
        reader_of(memory_bytes=1)


async def test_memory_gives_back_what_a_cancelled_one_was_given() -> None:
    memory = Memory(10)
    await memory.take(10)
    waiting = asyncio.create_task(memory.take(10))
    await asyncio.sleep(0)
    memory.give(10)  # served, but the task has not run since
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert memory.taken == 0
    first, second = asyncio.create_task(memory.take(8)), asyncio.create_task(memory.take(8))
    third = asyncio.create_task(memory.take(2))
    await asyncio.sleep(0)
    assert (memory.taken, first.done(), third.done()) == (8, True, False)
    second.cancel()
    await third  # no longer behind one that does not fit
    assert memory.taken == 10
