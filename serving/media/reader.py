"""The media of a request, from what it holds to decoded pixels, in two steps. Knows nothing of routes, tokens or engines.

First `probe`: fetch, unpack, and read headers alone, which gives the sizes that tokens are counted from. Then `decode`, for
requests that are short enough. Nothing of this runs on the event loop, and all requests together hold a bounded amount of
decoded media.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from PIL import Image

from serving.media import images, videos
from serving.media.decoded import MAX_FPS, MIN_FPS, UNKNOWN_FPS, Video, VideoShape
from serving.media.images import ImageInfo
from serving.media.limits import MIB, MediaLimits
from serving.media.memory import Memory
from serving.media.refusal import Loc, beyond, refusal
from serving.media.remote import RemoteMedia
from serving.media.sources import MediaKind, inline_bytes, remote_url

REMOTE_SETTING = "media_hosts"

_Decoded = TypeVar("_Decoded", Image.Image, Video)
_Work = Callable[[], Coroutine[None, None, Image.Image | Video]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedMedia:
    """One image or video of a request.

    Attributes:
        source: a data URL, base64, an http or https URL, or the bytes; for a video also a tuple of these, its frames.
        fps: of a list of frames, frames a second; None takes the reference's 24. A file says itself.
        loc: its place in the request, for messages: ("body", "images", 0).
    """

    kind: MediaKind
    source: str | bytes | tuple[str | bytes, ...]
    fps: float | None = None
    loc: Loc


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedImage:
    """An image with its size known and its pixels still packed."""

    data: bytes
    info: ImageInfo
    loc: Loc

    @property
    def decoded_bytes(self) -> int:
        """Memory to decode it."""
        return self.info.decoded_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedVideo:
    """A video with its shape known and its pixels still packed: `data` is a file, or the frames of a list."""

    data: bytes | tuple[bytes, ...]
    shape: VideoShape
    loc: Loc

    def decoded_bytes(self, frames: int) -> int:
        """Memory to decode so many frames of it."""
        if isinstance(self.data, bytes):
            return videos.decoded_bytes(self.shape, frames)
        kept, one = frames * videos.KEPT_BYTES_PER_PIXEL, images.DECODED_BYTES_PER_PIXEL
        return self.shape.width * self.shape.height * (kept + one)


ProbedMedia = ProbedImage | ProbedVideo


class MediaReader:
    """Reads media under one set of limits. Belongs to one event loop.

    Args:
        remote: fetches from other hosts; None fetches nothing.
        threads: images that are decoded at once, and beside them as many video files; likewise, apart, of measuring.
        memory_bytes: for decoded media of all requests at once, from `decode` to the end of its block. Others wait.
        apply_exif_orientation: turn photos as their EXIF data say. The reference does not.

    Raises:
        ValueError: `memory_bytes` does not hold what one request may take.
    """

    def __init__(
        self,
        *,
        limits: MediaLimits,
        remote: RemoteMedia | None = None,
        threads: int = 2,
        memory_bytes: int = 4096 * MIB,
        apply_exif_orientation: bool = False,
    ) -> None:
        if memory_bytes < limits.max_decoded_bytes:
            raise ValueError(
                f"memory_bytes must be at least max_decoded_bytes ({limits.max_decoded_bytes}), not {memory_bytes}"
            )
        self._limits = limits
        self._remote = remote
        self._apply_exif_orientation = apply_exif_orientation
        # Apart, so that headers are not read behind a queue of pictures.
        self._probing = ThreadPoolExecutor(threads, thread_name_prefix="clef-media-probe")
        self._decoding = ThreadPoolExecutor(threads, thread_name_prefix="clef-media-decode")
        self._videos_probing = asyncio.Semaphore(threads)
        self._videos_decoding = asyncio.Semaphore(threads)
        self._memory = Memory(memory_bytes)

    @property
    def memory_taken(self) -> int:
        """Bytes held now for decoded media."""
        return self._memory.taken

    async def aclose(self) -> None:
        """End the threads and close connections. What was not begun is cancelled."""
        self._probing.shutdown(wait=False, cancel_futures=True)
        self._decoding.shutdown(wait=False, cancel_futures=True)
        if self._remote is not None:
            await self._remote.aclose()

    async def probe(self, asked: Sequence[AskedMedia]) -> list[ProbedMedia]:
        """The encoded bytes and the size of each, in order.

        Raises:
            InvalidRequestError: one of them cannot be had, is nothing this server reads, or they are beyond a limit.
        """
        for kind, name in (("image", "max_images"), ("video", "max_videos")):
            of_kind = [one for one in asked if one.kind == kind]
            most = getattr(self._limits, name)
            if len(of_kind) > most:
                raise beyond(of_kind[most].loc, f"is one of {len(of_kind)} {kind}s", self._limits, name, "media_count")
        budget = _Budget(self._limits)
        tasks = [asyncio.create_task(self._probe(one, budget)) for one in asked]
        try:
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def decode(
        self, media: Sequence[ProbedMedia], frames_to_sample: Callable[[VideoShape], Sequence[int]]
    ) -> AsyncIterator[list[Image.Image | Video]]:
        """Decoded media, in order, for as long as the block runs: keep none of them, their memory goes to others.

        Args:
            frames_to_sample: which frames of a video to decode, in order; raises ValueError if it cannot be shown.

        Raises:
            InvalidRequestError: one of them is damaged, or all together take more memory than a request may.
            ValueError: of `frames_to_sample`.
        """
        work: list[_Work] = []
        needed = 0
        stop = threading.Event()
        for one in media:
            if isinstance(one, ProbedImage):
                work.append(partial(self._to_the_end, partial(self._decode_image, one.data, one.loc, stop)))
                needed += one.decoded_bytes
            else:
                indices = self._sampled(one, frames_to_sample)
                work.append(partial(self._decode_video, one, indices, stop))
                needed += one.decoded_bytes(len(indices))
            if needed > self._limits.max_decoded_bytes:
                what = f"brings the memory to decode the request's media to {needed} bytes"
                raise beyond(one.loc, what, self._limits, "max_decoded_bytes")
        await self._memory.take(needed)
        tasks = [asyncio.create_task(start()) for start in work]
        try:
            # Shielded: a task ends only when its thread or process has, and until then the memory is not free.
            yield [await asyncio.shield(task) for task in tasks]
        finally:
            stop.set()
            for task in tasks:
                task.cancel()
            ended = asyncio.gather(*tasks, return_exceptions=True)
            ended.add_done_callback(lambda _: self._memory.give(needed))

    async def _probe(self, asked: AskedMedia, budget: "_Budget") -> ProbedMedia:
        if isinstance(asked.source, tuple):
            return await self._probe_frames(asked, asked.source, budget)
        if asked.fps is not None:
            message = "is a file, which says its frames a second itself; fps is for a list of frames"
            raise refusal(asked.loc, message, "media_source")
        data = await self._encoded(asked.source, asked.kind, asked.loc, budget)
        if asked.kind == "image":
            return ProbedImage(data=data, info=await self._probe_image(data, asked.loc), loc=asked.loc)
        async with self._videos_probing:
            shape = await videos.probe_video(data, self._limits, asked.loc)
        return ProbedVideo(data=data, shape=shape, loc=asked.loc)

    async def _probe_frames(
        self, asked: AskedMedia, sources: tuple[str | bytes, ...], budget: "_Budget"
    ) -> ProbedVideo:
        assert asked.kind == "video", asked.loc
        fps = UNKNOWN_FPS if asked.fps is None else asked.fps
        if not MIN_FPS <= fps <= MAX_FPS:
            raise refusal((*asked.loc, "fps"), f"must be a number from {MIN_FPS:g} to {MAX_FPS:g}", "media_source")
        if not sources:
            raise refusal(asked.loc, "has no frames", "media_source")
        if len(sources) > self._limits.max_video_frames:
            raise beyond(asked.loc, f"has {len(sources)} frames", self._limits, "max_video_frames", "media_count")
        frames: list[bytes] = []
        sizes: list[tuple[int, int]] = []
        for number, source in enumerate(sources):
            loc = (*asked.loc, number)
            frames.append(await self._encoded(source, "image", loc, budget))
            info = await self._probe_image(frames[-1], loc)
            videos.check_frame(info.width, info.height, self._limits, loc)
            sizes.append((info.width, info.height))
            if sizes[-1] != sizes[0]:
                message = f"is {info.width} x {info.height} pixels, and the first frame {sizes[0][0]} x {sizes[0][1]}"
                raise refusal(loc, message, "media_format")
        shape = VideoShape(total_frames=len(frames), fps=fps, width=sizes[0][0], height=sizes[0][1])
        return ProbedVideo(data=tuple(frames), shape=shape, loc=asked.loc)

    async def _encoded(self, source: str | bytes, kind: MediaKind, loc: Loc, budget: "_Budget") -> bytes:
        url = remote_url(source)
        if url is None:
            unpack = partial(inline_bytes, source, kind=kind, limits=self._limits, loc=loc)
            data = await asyncio.get_running_loop().run_in_executor(self._probing, unpack)
        elif self._remote is None:
            message = f"is a URL, and this server fetches no media; its operator can allow hosts with {REMOTE_SETTING}"
            raise refusal(loc, message, "media_remote")
        else:
            data = await self._remote.fetch(url, kind=kind, limits=self._limits, loc=loc)
        budget.spend(len(data), loc)
        return data

    async def _probe_image(self, data: bytes, loc: Loc) -> ImageInfo:
        turn = self._apply_exif_orientation
        probe = partial(images.probe_image, data, self._limits, loc, apply_exif_orientation=turn)
        return await asyncio.get_running_loop().run_in_executor(self._probing, probe)

    def _sampled(self, video: ProbedVideo, frames_to_sample: Callable[[VideoShape], Sequence[int]]) -> Sequence[int]:
        indices = frames_to_sample(video.shape)
        if len(indices) > self._limits.max_video_frames:
            what = f"would be looked at in {len(indices)} frames"
            raise beyond(video.loc, what, self._limits, "max_video_frames", "media_count")
        return indices

    async def _decode_video(self, video: ProbedVideo, indices: Sequence[int], stop: threading.Event) -> Video:
        if isinstance(video.data, tuple):
            return await self._to_the_end(partial(self._decode_frames, video.data, video, indices, stop))
        async with self._videos_decoding:
            return await videos.decode_video(video.data, video.shape, indices, self._limits, video.loc)

    def _decode_frames(
        self, data: tuple[bytes, ...], video: ProbedVideo, indices: Sequence[int], stop: threading.Event
    ) -> Video:
        frames = np.empty((len(indices), video.shape.height, video.shape.width, 3), np.uint8)
        for place, index in enumerate(indices):
            frames[place] = np.asarray(self._decode_image(data[index], (*video.loc, index), stop))
        return Video(frames=frames, indices=tuple(indices), shape=video.shape)

    def _decode_image(self, data: bytes, loc: Loc, stop: threading.Event) -> Image.Image:
        if stop.is_set():
            raise _StoppedError
        return images.decode_image(data, self._limits, loc, apply_exif_orientation=self._apply_exif_orientation)

    async def _to_the_end(self, work: Callable[[], _Decoded]) -> _Decoded:
        """Run it in a thread that decodes. Cancelled, it still waits for the thread, which nothing can end."""
        future = asyncio.get_running_loop().run_in_executor(self._decoding, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.gather(future, return_exceptions=True)
            raise


class _StoppedError(Exception):
    """Nobody waits for the pixels any more."""


class _Budget:
    """What is left of the encoded bytes of one request."""

    def __init__(self, limits: MediaLimits) -> None:
        self._limits = limits
        self._spent = 0

    def spend(self, count: int, loc: Loc) -> None:
        self._spent += count
        if self._spent > self._limits.max_media_bytes:
            what = f"brings the request's media to {self._spent} bytes"
            raise beyond(loc, what, self._limits, "max_media_bytes")
