"""What processing hands to the engine: media as the vision tower takes them. Knows nothing of how they came about."""

from dataclasses import dataclass
from typing import Any

from model_plugin.schema_layout import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """All images, or all videos, of one prompt, as the vision tower takes them.

    Attributes:
        patches: FP32 tensor `[patches, channels * temporal patch * patch * patch]`, of one image or video after another.
        grids: int64 tensor `[items, 3]`: patches along time, height and width; their product is an item's patches.
        digests: 32 bytes for each item: equal for equal features of one kind and grid, and different for others.
        spans: the runs of placeholder tokens, in order: one for an image, one for each pair of frames of a video.
            Positions count from the first token of the media.
    """

    patches: Any
    grids: Any
    digests: tuple[bytes, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessedMedia:
    """Media as the engine takes them; `digest` stands for tokens and features together."""

    input_ids: list[int]
    images: Features | None
    videos: Features | None
    digest: bytes
