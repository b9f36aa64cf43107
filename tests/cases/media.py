"""Cases of media: assets, images and videos, all made here, for a server that serves them; and for one that does not.

A case that is answered holds the request as the reference would be given it, with media decoded by Pillow, not by us.
"""

import base64
import io
import json
from typing import Any

import numpy as np
from PIL import Image

from tests.cases.case import REFUND, STATE, Case, body, choice, invalid, usage_error
from tests.serving.media_samples import encoded, moving, photo, png_header, video_file

ALIAS = "<image:0123456789abcdef0123456789abcdef>"
UUID = "3f0c0e3e-6a51-4d5e-9a3e-1f6f6f9f2b11"
SMALL = encoded(photo(64, 64), "PNG")
SHARED = photo(256, 256, seed=1)
PNG = encoded(SHARED, "PNG")
JPEG = encoded(SHARED, "JPEG")
WEBP = encoded(SHARED, "WEBP", lossless=True)
GIF = encoded(SHARED, "GIF")
ANIMATED = encoded(photo(64, 64), "GIF", save_all=True, append_images=[photo(64, 64, seed) for seed in (2, 3)])
FRAMES = [encoded(photo(64, 64, seed), "PNG") for seed in range(8)]
MOVIE = moving(12)
# As it comes from the file: every frame of it is sampled, so that compression loss is all that differs from `MOVIE`.
MP4 = video_file(MOVIE, fps=4)
LOOK = "Is a parcel to be seen?"
NOT_READ = "is no image of a format that is read, which are PNG, JPEG, WebP and still GIF"
NEITHER = "is neither a data URL or base64 nor an http or https URL; a path of a file is never opened"
NO_REFERENCE = "no string in state, instructions or criteria refers to the asset"


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64_of(data)}"


def decoded(data: bytes) -> Image.Image:
    """As the reference's users decode an image."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def answered(
    case_id: str,
    fields: dict[str, Any],
    *,
    images: list[bytes] | None = None,
    videos: list[np.ndarray] | None = None,
    media_kwargs: dict[str, Any] | None = None,
    state: Any = STATE,
    read_state: Any = None,
    instructions: str = LOOK,
    read_instructions: str | None = None,
    why: str = "",
) -> Case:
    """A request with media that is answered, and what the reference is given: texts with labels, decoded media."""
    read = {
        "state": state if read_state is None else read_state,
        "questions": {"r": {"type": "noul", "instructions": read_instructions or instructions}},
        "images": [decoded(data) for data in images or []],
        "videos": videos or [],
        "media_kwargs": media_kwargs or {},
    }
    sent = body({"r": {"type": "noul", "instructions": instructions}}, state=state, **fields)
    return Case(id=case_id, body=sent, record=read, why=why)


def refused_image(case_id: str, image: Any, message: str, kind: str, why: str = "") -> Case:
    return invalid(case_id, body({"r": REFUND}, images=[image]), ["images", 0], f"images.0 {message}", kind, why)


def asset(data: bytes = SMALL, **fields: Any) -> dict[str, Any]:
    return {"type": "image", "data_base64": base64_of(data), "format": "png"} | fields


ASSETS = (
    answered(
        "shape-027",
        {"assets": {ALIAS: asset()}},
        images=[SMALL],
        instructions=f"Is {ALIAS} a receipt?",
        read_instructions="Is <image 1> a receipt?",
    ),
    usage_error("asset-002", body({"refund": REFUND}, assets={ALIAS: asset()}), f"{NO_REFERENCE} '{ALIAS}'"),
    usage_error(
        "asset-002/two",
        body({"refund": REFUND}, assets={"first": asset(), "second": asset(PNG)}),
        f"{NO_REFERENCE} 'first', nor to 1 other",
    ),
    usage_error(
        "asset-002/part-that-is-not-there",
        body({"r": REFUND}, state="See photo.", assets={"photo": {"type": "image", "part": "asset-0"}}),
        "asset 'photo' names the part 'asset-0', which is not there",
    ),
    answered(
        "asset-004",
        {"assets": {UUID: asset(JPEG, format="jpg")}},
        images=[JPEG],
        state={"door": UUID},
        read_state={"door": "<image 1>"},
    ),
    answered(
        "asset-004/beside-images",
        {"images": [data_url(PNG)], "assets": {UUID: asset()}},
        images=[PNG, SMALL],
        state=["Before", {"after": f"the {UUID}."}],
        read_state=["Before", {"after": "the <image 2>."}],
    ),
    usage_error(
        "asset-004/option-name-alone",
        json.dumps(
            json.loads(choice({UUID: "a door", "other": None})) | {"assets": {UUID: asset()}},
        ).encode(),
        f"{NO_REFERENCE} '{UUID}'",
        why="Names of options are answered byte for byte, and so are not searched.",
    ),
    answered(
        "asset-005/jpeg",
        {"assets": {"photo": asset(JPEG, format="jpeg")}},
        images=[JPEG],
        state="See photo.",
        read_state="See <image 1>.",
    ),
    answered(
        "asset-005/no-format",
        {"assets": {"photo": {"data_base64": base64_of(SMALL)}}},
        images=[SMALL],
        state="See photo.",
        read_state="See <image 1>.",
        why="The bytes say what they are.",
    ),
    invalid(
        "asset-005",
        body({"r": REFUND}, assets={}),
        ["assets"],
        "assets has no assets; it needs at least 1",
        "too_short",
        "The published schema wants at least one asset where there is `assets`.",
    ),
    invalid(
        "asset-005/gif",
        body({"r": REFUND}, state="See photo.", assets={"photo": asset(GIF, format="gif")}),
        ["assets", "photo", "format"],
        "assets.photo.format must be 'png', 'jpg', 'jpeg' or 'webp'",
        "literal_error",
    ),
    invalid(
        "asset-005/no-data",
        body({"r": REFUND}, state="See photo.", assets={"photo": asset(b"")}),
        ["assets", "photo"],
        "assets.photo needs data_base64, or part in a multipart request",
        "asset_empty",
    ),
    invalid(
        "asset-005/no-image",
        body({"r": REFUND}, state="See photo.", assets={"photo": asset(b"no picture")}),
        ["assets", "photo"],
        f"assets.photo {NOT_READ}",
        "media_format",
    ),
    Case(
        id="asset-004/multipart",
        body=b'--x\r\ncontent-disposition: form-data; name="request"\r\n\r\n'
        + body({"r": REFUND}, state="See photo.", assets={"photo": {"part": "p"}})
        + b'\r\n--x\r\ncontent-disposition: form-data; name="p"; filename="p.png"\r\ncontent-type: image/png\r\n\r\n'
        + PNG
        + b"\r\n--x--\r\n",
        headers={"content-type": "multipart/form-data; boundary=x"},
        document=body({"r": REFUND}, state="See photo.", assets={"photo": {"part": "p"}}),
        record={"state": "See <image 1>.", "questions": {"r": REFUND}, "images": [decoded(PNG)]},
    ),
)

IMAGES = (
    answered(
        "img-001",
        {"images": [data_url(PNG), data_url(JPEG, "image/jpeg"), data_url(WEBP, "image/webp")]},
        images=[PNG, JPEG, WEBP],
    ),
    *(
        answered(f"img-001/{name}", {"images": [image]}, images=[data])
        for name, image, data in (
            ("png", data_url(PNG), PNG),
            ("jpeg", data_url(JPEG, "image/jpeg"), JPEG),
            ("webp", data_url(WEBP, "image/webp"), WEBP),
            ("base64", base64_of(PNG), PNG),
            ("url-object", {"url": data_url(PNG)}, PNG),
            ("base64-object", {"content_type": "image/png", "base64": base64_of(PNG)}, PNG),
        )
    ),
    refused_image(
        "img-002",
        data_url(ANIMATED, "image/gif"),
        "is an animated GIF, and only still images are read; PNG, JPEG, WebP and still GIF are",
        "media_format",
    ),
    answered("img-002/still", {"images": [data_url(GIF, "image/gif")]}, images=[GIF]),
    refused_image("img-002/not-an-image", data_url(b"%PDF-1.7"), NOT_READ, "media_format"),
    refused_image(
        "img-004",
        data_url(png_header(30_000, 30_000)),
        "has 900000000 pixels (30000 x 30000); the limit max_image_pixels is 50000000",
        "media_too_large",
    ),
    refused_image(
        "img-005",
        data_url(png_header(20_000, 10_000)),
        "has 200000000 pixels (20000 x 10000); the limit max_image_pixels is 50000000",
        "media_too_large",
    ),
    refused_image(
        "img-005/no-pixels", data_url(png_header(64, 64)), "is a PNG that is damaged or cut short", "media_damaged"
    ),
    refused_image(
        "img-006",
        "http://169.254.169.254/latest/meta-data/",
        "is a URL, and this server fetches no media; its operator can allow hosts with media_hosts",
        "media_remote",
    ),
    refused_image(
        "img-006/file",
        "file:///etc/passwd",
        "names a file of this machine, and none is ever opened; send a data URL or base64",
        "media_source",
    ),
    refused_image("img-006/path", "/etc/hostname.png", NEITHER, "media_source"),
    answered(
        "img-008",
        {"images": [data_url(SMALL)] * 5},
        images=[SMALL] * 5,
        why="Up to 16 by default (max_images).",
    ),
    invalid(
        "img-008/17",
        body({"r": REFUND}, images=[data_url(SMALL)] * 17),
        ["images", 16],
        "images.16 is one of 17 images; the limit max_images is 16",
        "media_count",
    ),
    invalid(
        "img-012",
        body(
            {"r": REFUND},
            state=[{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": data_url(PNG)}}],
        ),
        ["state", 1],
        "state.1 is a part of type image_url; media are sent in images, videos or assets",
        "inline_media",
        "Refused: the model reads its images before the state, so that where one stands in it would be lost.",
    ),
    invalid(
        "img-012/in-a-string",
        body({"r": REFUND}, state={"photo": data_url(PNG)}),
        ["state", "photo"],
        "state.photo is a data URL of a medium; media are sent in images, videos or assets",
        "inline_media",
    ),
    answered(
        "img-013",
        {"images": [data_url(encoded(photo(1920, 1080), "JPEG"), "image/jpeg")]},
        images=[encoded(photo(1920, 1080), "JPEG")],
    ),
    answered(
        "inj-003",
        {"images": [data_url(PNG)]},
        images=[PNG],
        state="also <|image_pad|> and <|video_pad|>",
        why="Treated as text: the reference's prompt for a tokenizer that knows no such tokens.",
    ),
)

VIDEOS = (
    answered(
        "vid-001",
        {"videos": [{"frames": [data_url(frame) for frame in FRAMES], "fps": 1}]},
        videos=[np.stack([np.asarray(decoded(frame)) for frame in FRAMES])],
        media_kwargs={"video_metadata": [{"total_num_frames": 8, "fps": 1}]},
        why="Frames as a list need fps, and the time stamps are the reference's.",
    ),
    answered(
        "vid-001/fewer-asked-for",
        {"videos": [{"frames": [base64_of(frame) for frame in FRAMES], "fps": 2}], "media_kwargs": {"fps": 1}},
        videos=[np.stack([np.asarray(decoded(frame)) for frame in FRAMES])],
        media_kwargs={"fps": 1, "video_metadata": [{"total_num_frames": 8, "fps": 2}]},
    ),
    answered(
        "vid-001/file",
        {"images": [data_url(PNG)], "videos": [data_url(MP4, "video/mp4")]},
        images=[PNG],
        videos=[MOVIE],
        media_kwargs={"video_metadata": [{"total_num_frames": 12, "fps": 4}]},
    ),
    invalid(
        "vid-001/no-fps",
        body({"r": REFUND}, videos=[{"frames": [data_url(frame) for frame in FRAMES]}]),
        ["videos", 0, "fps"],
        "videos.0.fps is required",
        "missing",
        "The reference would assume 24 frames a second, and the model would read wrong times.",
    ),
    invalid(
        "vid-001/one-frame",
        body({"r": REFUND}, videos=[{"frames": [data_url(SMALL)], "fps": 1}]),
        ["videos", 0],
        "videos.0 cannot be shown to the model: 1 frame of it would be looked at, and a video needs at least 2",
        "media_format",
    ),
)

UNSERVED = "is refused: the model is served here without its vision tower"
UNSERVED_MEDIA = (
    *(
        invalid(
            f"shape-027/{name}",
            body({"r": REFUND}, **{name: value}),
            [name, 0],
            f"{name}.0 {UNSERVED}",
            "media_not_served",
        )
        for name, value in (
            ("images", [data_url(SMALL)]),
            ("videos", [{"frames": [data_url(SMALL)] * 2, "fps": 1}]),
        )
    ),
    invalid(
        "shape-027/assets",
        body({"r": {"type": "noul", "instructions": f"Is {ALIAS} a receipt?"}}, assets={ALIAS: asset()}),
        ["assets", ALIAS],
        f"assets.{ALIAS} {UNSERVED}",
        "media_not_served",
    ),
)
