"""What `clef-serve verify` asks: the fixed records, or those of a file. Knows neither server nor reference."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.verify.records import RECORDS, Record, image_records

if TYPE_CHECKING:
    from PIL.Image import Image


class VerifyError(ValueError):
    """There is nothing to compare; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A record to ask, with its images as the reference takes them."""

    name: str
    record: Record
    images: Sequence["Image"] = ()


def fixed_cases(*, with_images: bool) -> Iterator[Case]:
    """The records that every release is asked by default."""
    yield from (Case(name=name, record=record) for name, record in RECORDS.items())
    if with_images:
        for name, (record, images) in image_records().items():
            yield Case(name=name, record=record, images=images)


def read_records(path: Path) -> Iterator[Case]:
    """The records of a file of JSON lines, each with `state`, `questions` and perhaps `id` and `images` as data URLs.

    Raises:
        VerifyError: the file cannot be read, or a line is no such record.
    """
    from serving.api_types import parse_request
    from serving.errors import RequestError

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as err:
        raise VerifyError(f"--records {path} cannot be read: {err}") from err
    empty = True
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        empty = False
        try:
            read = json.loads(line)
            if not isinstance(read, dict):
                raise ValueError("not an object")
            if other := sorted(read.keys() & {"videos", "assets", "media_kwargs"}):
                raise ValueError(f"{', '.join(other)} cannot be compared; images can")
            record = {key: read[key] for key in ("state", "questions") if key in read}
            parse_request({"model": "verify", **record})
            images = [_image(url) for url in read.get("images") or ()]
        except (RequestError, ValueError, TypeError, OSError) as err:
            raise VerifyError(f"--records {path}, line {number}: {err}") from err
        yield Case(name=str(read.get("id", f"line {number}")), record=record, images=images)
    if empty:
        raise VerifyError(f"--records {path} holds no record")


def data_url(image: "Image") -> str:
    """A request's form of an image, which loses nothing of it."""
    written = BytesIO()
    image.save(written, format="PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def _image(url: Any) -> "Image":
    from PIL import Image

    if not isinstance(url, str) or not url.startswith("data:image/") or ";base64," not in url:
        raise ValueError("images must be data URLs, data:image/...;base64,...")
    image = Image.open(BytesIO(base64.b64decode(url.split(",", 1)[1], validate=True)))
    image.load()
    return image
