"""Every form a medium may be sent in yields its very bytes; all others are refused, and no message holds any of them."""

import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidRequestError
from serving.media.limits import MediaLimits
from serving.media.sources import inline_bytes, remote_url
from tests.serving.media_samples import LOC, outcome, refused

LIMITS = MediaLimits()
DATA = bytes(range(256)) + b"?"  # 257 bytes: both odd characters of each alphabet, and padding
BASE64 = base64.b64encode(DATA).decode()
WRAPPED = base64.encodebytes(DATA).decode()
URL_SAFE = base64.urlsafe_b64encode(DATA).decode()

FORMS: dict[str, str | bytes] = {
    "bytes": DATA,
    "base64": BASE64,
    "base64 in lines": WRAPPED,
    "base64 with blanks around": f" \n{BASE64}\r\n",
    "base64 without padding": BASE64.rstrip("="),
    "base64 of the URL-safe alphabet": URL_SAFE,
    "data URL": f"data:image/png;base64,{BASE64}",
    "data URL of another image type": f"data:image/jpeg;base64,{BASE64}",
    "data URL with a parameter": f"data:image/png;name=a.png;base64,{BASE64}",
    "data URL without a type": f"data:;base64,{BASE64}",
    "data URL of any bytes": f"data:application/octet-stream;base64,{BASE64}",
    "data URL in capitals": f"DATA:IMAGE/PNG;BASE64,{BASE64}",
    "data URL in lines": f"\n data:image/png;base64,{WRAPPED}",
    "data URL with percent signs": "data:image/png;base64," + BASE64.replace("+", "%2B").replace("=", "%3D"),
}


def read(source: str | bytes, limits: MediaLimits = LIMITS) -> bytes:
    return inline_bytes(source, kind="image", limits=limits, loc=LOC)


@pytest.mark.parametrize("source", FORMS.values(), ids=FORMS)
def test_every_form_yields_the_bytes(source: str | bytes) -> None:
    assert remote_url(source) is None
    assert read(source) == DATA


@given(st.binary(min_size=1, max_size=300), st.booleans(), st.booleans())
def test_base64_of_any_bytes(data: bytes, url_safe: bool, padded: bool) -> None:
    text = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()
    assert read(text if padded else text.rstrip("=")) == data


@given(
    st.text(max_size=60) | st.sampled_from(["data:", "a:b,"]).flatmap(lambda head: st.text().map(lambda t: head + t))
)
def test_any_text_is_read_or_refused(text: str) -> None:
    if remote_url(text) is not None:
        return
    assert outcome(lambda: read(text)) in ("read", "media_source", "media_format")


NEITHER = (
    "images.0 is neither a data URL or base64 nor an http or https URL; a path of a file is never opened",
    "media_source",
)
NO_FILE = (
    "images.0 names a file of this machine, and none is ever opened; send a data URL or base64",
    "media_source",
)
REFUSED: dict[str, tuple[str | bytes, str, str]] = {
    "no bytes": (b"", "images.0 is empty", "media_source"),
    "no text": ("", "images.0 is empty", "media_source"),
    "an empty data URL": ("data:image/png;base64,", "images.0 is empty", "media_source"),
    "a file URL": ("file:///etc/hostname", *NO_FILE),
    "a file URL in capitals": (" FILE:///etc/hostname", *NO_FILE),
    "a path": ("/etc/hostname", *NEITHER),
    "a relative path": ("../../etc/hostname", *NEITHER),
    "words": ("a picture of a parcel", *NEITHER),
    "other letters": ("QUJ\u00e9", *NEITHER),
    "a letter too many": ("QUJDR", *NEITHER),
    "padding inside": ("QUJD=QUJD", *NEITHER),
    "too much padding": ("QUJDRA===", *NEITHER),
    "both alphabets": ("-+AA", *NEITHER),
    "percent signs outside a URL": ("QUJD%3D", *NEITHER),
    "ftp": (
        "ftp://example.com/a.png",
        "images.0 is a URL of the scheme 'ftp', which is not fetched; send a data URL or base64",
        "media_source",
    ),
    "a data URL in plain text": (
        "data:image/svg+xml,%3Csvg/%3E",
        "images.0 is a data URL that is not in base64",
        "media_source",
    ),
    "a data URL cut short": (
        "data:image/png;base64",
        "images.0 is a data URL without a comma after its type",
        "media_source",
    ),
    "a declared text": (
        f"data:text/html;base64,{BASE64}",
        "images.0 is a data URL of the type text/html, and an image is wanted",
        "media_format",
    ),
    "a declared video": (
        f"data:video/mp4;base64,{BASE64}",
        "images.0 is a data URL of the type video/mp4, and an image is wanted",
        "media_format",
    ),
}


@pytest.mark.parametrize(("source", "msg", "kind"), REFUSED.values(), ids=REFUSED)
def test_refused(source: str | bytes, msg: str, kind: str) -> None:
    with refused(msg, kind):
        read(source)


@pytest.mark.parametrize("form", ["base64", "base64 in lines", "data URL", "bytes"])
def test_the_limit_on_bytes_is_exact(form: str) -> None:
    assert read(FORMS[form], MediaLimits(max_image_bytes=257)) == DATA
    with refused("images.0 has 257 bytes; the limit max_image_bytes is 256", "media_too_large"):
        read(FORMS[form], MediaLimits(max_image_bytes=256))


def test_a_video_has_a_limit_of_its_own() -> None:
    limits = MediaLimits(max_image_bytes=1, max_video_bytes=256)
    with refused("images.0 has 257 bytes; the limit max_video_bytes is 256", "media_too_large"):
        inline_bytes(DATA, kind="video", limits=limits, loc=LOC)


@pytest.mark.parametrize("url", ["http://a.example/x", " HTTPS://a.example/x\n"])
def test_a_remote_address_is_told_apart(url: str) -> None:
    assert remote_url(url) == url.strip()


@pytest.mark.parametrize("form", ["{}!", "data:text/plain;base64,{}", "data:{},", "data:{};base64,AAAA", "x:{}", "{}"])
def test_no_message_holds_the_payload(form: str) -> None:
    secret = base64.b64encode(os.urandom(3000)).decode()
    with pytest.raises(InvalidRequestError) as caught:
        read(form.format(secret), MediaLimits(max_image_bytes=100))
    assert secret[:12].lower() not in str(caught.value).lower()
