"""The media of one request: from its fields to the prompt's media tokens, and on to what the engine takes.

Joins `serving.media.reader`, which knows pixels, and `serving.media.processing`, which knows tokens. Knows nothing of
questions, scores or HTTP.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from PIL.Image import new as new_image

from serving.api_types import (
    Asset,
    Image,
    ImageData,
    ImageUrl,
    SystemOneRequest,
    Video,
    VideoData,
    VideoFrames,
    VideoUrl,
)
from serving.errors import ApiUsageError
from serving.media.decoded import Video as DecodedVideo
from serving.media.processed import ProcessedMedia
from serving.media.processing import MediaProcessor
from serving.media.reader import AskedMedia, MediaReader, ProbedImage, ProbedMedia
from serving.media.refusal import Loc, refusal
from serving.media.remote import RemoteMedia, RemotePolicy
from serving.settings import ServingSettings
from serving.strict_json import shorten

BLANK_PIXELS = (64, 64)


class OpenedMedia:
    """The media of a request whose sizes are known.

    Attributes:
        tokens: how many tokens they take in the prompt.
        images: how many there are.
        videos: how many there are.
    """

    def __init__(
        self, desk: "MediaDesk", media: Sequence[ProbedMedia], options: Mapping[str, Any], tokens: int = 0
    ) -> None:
        self._desk, self._media, self._options = desk, media, options
        self.tokens = tokens
        self.images = sum(isinstance(one, ProbedImage) for one in media)
        self.videos = len(media) - self.images

    async def processed(self) -> ProcessedMedia | None:
        """Decoded and made into tokens and features; None if there are no media.

        Raises:
            InvalidRequestError: one of them is damaged.
        """
        return await self._desk.process(self._media, self._options) if self._media else None


class MediaDesk:
    """Takes requests' media. Belongs to one event loop.

    Args:
        processor: the release's, a Transformers processor; without one, media are refused.
        settings: see `ServingSettings`.

    Raises:
        ValueError: the processor is not of the kind that Clef releases have.
    """

    def __init__(self, processor: Any, settings: ServingSettings) -> None:
        self._processor = MediaProcessor(processor) if processor is not None else None
        remote = None
        if settings.media_hosts:
            policy = RemotePolicy(hosts=frozenset(settings.media_hosts), timeout_s=settings.media_timeout_ms / 1000)
            remote = RemoteMedia(policy)
        self._reader = MediaReader(
            limits=settings.media,
            remote=remote,
            threads=settings.media_threads,
            memory_bytes=settings.max_media_memory,
            apply_exif_orientation=settings.apply_exif_orientation,
        )
        self._pool = ThreadPoolExecutor(settings.media_threads, thread_name_prefix="clef-media-process")

    async def aclose(self) -> None:
        """End the threads and close connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._reader.aclose()

    async def open(
        self, request: SystemOneRequest, asset_names: Sequence[str], parts: Mapping[str, bytes]
    ) -> OpenedMedia:
        """Fetch, unpack and measure a request's media.

        Args:
            request: its `images`, `videos`, `assets` and `media_kwargs`.
            asset_names: the assets in the order of their images, as `place_assets` gives them.
            parts: of a multipart body, by name.

        Raises:
            ApiUsageError: assets and parts do not belong together.
            InvalidRequestError: a medium cannot be had, is nothing this server reads, or is beyond a limit.
        """
        asked = [_asked_image(image, ("body", "images", at)) for at, image in enumerate(request.images or ())]
        asked += _asked_assets(request.assets or {}, asset_names, parts)
        asked += [_asked_video(video, ("body", "videos", at)) for at, video in enumerate(request.videos or ())]
        options = request.media_kwargs.as_sent() if request.media_kwargs else {}
        if not asked:
            return OpenedMedia(self, (), options)
        if self._processor is None:
            raise refusal(
                asked[0].loc, "is refused: the model is served here without its vision tower", "media_not_served"
            )
        media = await self._reader.probe(asked)
        return OpenedMedia(self, media, options, await self._in_pool(self._count, media, options))

    async def blank(self) -> ProcessedMedia | None:
        """A small image without anything on it, for the warm-up; None if media are not served."""
        if self._processor is None:
            return None
        processed: ProcessedMedia = await self._in_pool(self._processor.process, [new_image("RGB", BLANK_PIXELS)], [])
        return processed

    async def process(self, media: Sequence[ProbedMedia], options: Mapping[str, Any]) -> ProcessedMedia:
        """See `OpenedMedia.processed`."""
        assert self._processor is not None
        processor = self._processor
        async with self._reader.decode(media, lambda shape: processor.frames_to_sample(shape, options)) as decoded:
            videos = [pixels for pixels in decoded if isinstance(pixels, DecodedVideo)]
            images = [pixels for pixels in decoded if not isinstance(pixels, DecodedVideo)]
            processed: ProcessedMedia = await self._in_pool(processor.process, images, videos)
        return processed

    def _count(self, media: Sequence[ProbedMedia], options: Mapping[str, Any]) -> int:
        assert self._processor is not None
        total = self._processor.end_tokens
        for one in media:
            try:
                if isinstance(one, ProbedImage):
                    total += self._processor.image_tokens(one.info.width, one.info.height)
                else:
                    total += self._processor.video_tokens(one.shape, options)
            except ValueError as err:
                raise refusal(one.loc, f"cannot be shown to the model: {err}", "media_format") from err
        return total

    async def _in_pool(self, work: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)


def _asked_image(image: Image, loc: Loc) -> AskedMedia:
    return AskedMedia(kind="image", source=_source(image), loc=loc)


def _asked_video(video: Video, loc: Loc) -> AskedMedia:
    if isinstance(video, VideoFrames):
        return AskedMedia(kind="video", source=tuple(map(_source, video.frames)), fps=video.fps, loc=loc)
    return AskedMedia(kind="video", source=_source(video), loc=loc)


def _source(medium: str | ImageUrl | ImageData | VideoUrl | VideoData) -> str:
    if isinstance(medium, str):
        return medium
    return medium.base64 if isinstance(medium, ImageData | VideoData) else medium.url


def _asked_assets(
    assets: Mapping[str, Asset], names: Sequence[str], parts: Mapping[str, bytes]
) -> Iterator[AskedMedia]:
    """Each asset's image; every part of the body must belong to exactly one asset, as the published API has it."""
    left = dict(parts)
    for name in names:
        asset, loc = assets[name], ("body", "assets", name)
        if asset.part is None:
            assert asset.data_base64 is not None
            yield AskedMedia(kind="image", source=asset.data_base64, loc=loc)
        elif asset.part in left:
            yield AskedMedia(kind="image", source=left.pop(asset.part), loc=loc)
        else:
            why = "is claimed by another asset too" if asset.part in parts else "is not there"
            raise ApiUsageError(f"asset '{shorten(name)}' names the part '{shorten(asset.part)}', which {why}")
    for part in left:
        raise ApiUsageError(f"no asset names the part '{shorten(part)}'")
