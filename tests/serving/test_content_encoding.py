"""Compressed bodies: whatever way they are cut into chunks, what is not quite right, and what a bomb costs."""

import gzip
import itertools
import zlib
from collections.abc import Iterable

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from serving.content_encoding import MAX_FRAMES, OUTPUT_STEP_BYTES, ZSTD_WINDOW_LOG, ContentDecoder
from serving.errors import MalformedBodyError, UnsupportedEncodingError

TEXT = b'{"state": "' + b"The parcel of Lindqvist & Sons arrived broken. " * 40 + b'"}'
ZSTD = zstd.compress(TEXT)
GZIP = gzip.compress(TEXT)
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
BLOCK_BYTES = 128 * 2**10


def zstd_checksummed(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def zstd_frame(*, window_log: int, content_bytes: int, blocks: bytes) -> bytes:
    """A frame made by hand: it states its window and the size of its content."""
    return ZSTD_MAGIC + bytes([0x80, (window_log - 10) << 3]) + content_bytes.to_bytes(4, "little") + blocks


def raw_block(content: bytes) -> bytes:
    return (len(content) << 3 | 1).to_bytes(3, "little") + content


def zstd_bomb(*, blocks: int) -> bytes:
    """A frame of 4 bytes a block, each of which stands for 128 KiB of spaces, the most a block can hold."""
    space = (BLOCK_BYTES << 3 | 2).to_bytes(3, "little") + b" "
    last = (BLOCK_BYTES << 3 | 3).to_bytes(3, "little") + b" "
    return ZSTD_MAGIC + bytes([0x00, (17 - 10) << 3]) + space * (blocks - 1) + last


def decode(encoding: str, chunks: Iterable[bytes]) -> bytes:
    decoder = ContentDecoder(encoding)
    body = b"".join(piece for chunk in chunks for piece in decoder.decode(chunk))
    decoder.finish()
    return body


def single_bytes(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


@pytest.mark.parametrize(
    ("encoding", "body", "decoded"),
    [
        ("", TEXT, TEXT),
        ("identity", TEXT, TEXT),
        (" Identity ,", TEXT, TEXT),
        ("identity", b"", b""),
        ("gzip", GZIP, TEXT),
        ("GZip", GZIP, TEXT),
        ("x-gzip", GZIP, TEXT),
        ("identity, gzip", GZIP, TEXT),
        ("gzip", gzip.compress(b""), b""),
        ("gzip", GZIP + gzip.compress(b"") + gzip.compress(b"!"), TEXT + b"!"),
        ("zstd", ZSTD, TEXT),
        ("zstd", zstd_checksummed(TEXT), TEXT),
        ("zstd", zstd.compress(b""), b""),
        ("zstd", ZSTD + zstd.compress(b"") + ZSTD, TEXT + TEXT),
        ("zstd", SKIPPABLE + ZSTD + SKIPPABLE, TEXT),
        ("zstd", zstd_frame(window_log=ZSTD_WINDOW_LOG, content_bytes=5, blocks=raw_block(b"hello")), b"hello"),
        ("zstd", zstd.compress(TEXT, level=19), TEXT),
    ],
    ids=[
        "none",
        "identity",
        "identity-oddly-written",
        "identity-empty",
        "gzip",
        "gzip-upper-case",
        "x-gzip",
        "identity-then-gzip",
        "gzip-empty",
        "gzip-members",
        "zstd",
        "zstd-checksum",
        "zstd-empty",
        "zstd-frames",
        "zstd-skippable",
        "zstd-largest-window",
        "zstd-level-19",
    ],
)
def test_decoded(encoding: str, body: bytes, decoded: bytes) -> None:
    assert decode(encoding, [body]) == decoded
    assert decode(encoding, single_bytes(body)) == decoded
    assert decode(encoding, [b"", body, b""]) == decoded


@given(
    encoding=st.sampled_from(["identity", "gzip", "zstd"]),
    parts=st.lists(st.binary(max_size=300) | st.sampled_from([TEXT, b"x" * 200_000]), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 2**20), max_size=8),
)
def test_the_way_a_body_is_cut_changes_nothing(encoding: str, parts: list[bytes], cuts: list[int]) -> None:
    compress = {"identity": bytes, "gzip": gzip.compress, "zstd": zstd_checksummed}[encoding]
    body = b"".join(map(compress, parts))
    ends = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    assert decode(encoding, [body[start:end] for start, end in itertools.pairwise(ends)]) == b"".join(parts)


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("br", "br"),
        ("deflate", "deflate"),
        ("compress", "compress"),
        ("gzip;q=1", "gzip;q=1"),
        ("*", "*"),
        ("gzip, zstd", "gzip, zstd"),
        ("zstd,zstd", "zstd, zstd"),
        ("identity, br", "br"),
        ("x" * 200, "x" * 80 + "…"),
    ],
)
def test_refused_codings(encoding: str, shown: str) -> None:
    with pytest.raises(UnsupportedEncodingError) as caught:
        ContentDecoder(encoding)
    assert str(caught.value) == (
        f"content-encoding '{shown}' is not supported; send the body in one of gzip, zstd, or uncompressed"
    )


def flipped(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]


GZIP_FAULT = "the body is not valid gzip: Error -3 while decompressing data: "
ZSTD_FAULT = "the body is not valid zstd with a window of at most 8388608 bytes: Unable to decompress Zstandard data: "
BROKEN = {
    "gzip-plain": ("gzip", TEXT, GZIP_FAULT + "incorrect header check"),
    "gzip-zlib": ("gzip", zlib.compress(TEXT), GZIP_FAULT + "incorrect header check"),
    "gzip-checksum": ("gzip", flipped(GZIP, len(GZIP) - 8), GZIP_FAULT + "incorrect data check"),
    "gzip-length": ("gzip", flipped(GZIP, len(GZIP) - 1), GZIP_FAULT + "incorrect length check"),
    "gzip-trailing": ("gzip", GZIP + b"more", GZIP_FAULT + "incorrect header check"),
    "gzip-padding": ("gzip", GZIP + bytes(512), GZIP_FAULT + "incorrect header check"),
    "gzip-nothing": ("gzip", b"", "the body ends before its gzip data does"),
    "zstd-plain": ("zstd", TEXT, ZSTD_FAULT + "Unknown frame descriptor"),
    "zstd-gzip": ("zstd", GZIP, ZSTD_FAULT + "Unknown frame descriptor"),
    "zstd-block": (
        "zstd",
        zstd_frame(window_log=20, content_bytes=9, blocks=b"\x07\x00\x00"),
        ZSTD_FAULT + "Data corruption detected",
    ),
    "zstd-checksum": (
        "zstd",
        flipped(zstd_checksummed(TEXT), len(zstd_checksummed(TEXT)) - 1),
        ZSTD_FAULT + "Restored data doesn't match checksum",
    ),
    "zstd-trailing": ("zstd", ZSTD + b"more", ZSTD_FAULT + "Unknown frame descriptor"),
    "zstd-nothing": ("zstd", b"", "the body ends before its zstd data does"),
    "zstd-window": (
        "zstd",
        zstd_frame(window_log=ZSTD_WINDOW_LOG + 1, content_bytes=5, blocks=raw_block(b"hello")),
        ZSTD_FAULT + "Frame requires too much memory for decoding",
    ),
}


@pytest.mark.parametrize(("encoding", "body", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_bodies(encoding: str, body: bytes, message: str) -> None:
    for chunks in ([body], single_bytes(body), [body[:9], body[9:]]):
        with pytest.raises(MalformedBodyError) as caught:
            decode(encoding, chunks)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", GZIP), ("zstd", ZSTD), ("zstd", zstd_checksummed(TEXT))],
    ids=["gzip", "zstd", "zstd-checksummed"],
)
def test_a_body_cut_short_is_broken_wherever_it_is_cut(encoding: str, body: bytes) -> None:
    for end in range(len(body)):
        with pytest.raises(MalformedBodyError, match=f"the body ends before its {encoding} data does"):
            decode(encoding, [body[:end]])


def test_a_frame_that_needs_a_dictionary_is_broken() -> None:
    dictionary = zstd.train_dict([b"parcel %d of the order A-%d" % (number, number * 7) for number in range(300)], 2000)
    body = zstd.compress(b"parcel 4 of the order A-9", zstd_dict=dictionary)
    with pytest.raises(MalformedBodyError, match="Dictionary mismatch"):
        decode("zstd", [body])


@pytest.mark.parametrize(
    ("encoding", "empty"),
    [("gzip", gzip.compress(b"")), ("zstd", b"\x50\x2a\x4d\x18" + bytes(4))],
    ids=["gzip", "zstd"],
)
def test_the_number_of_frames_is_bounded(encoding: str, empty: bytes) -> None:
    assert decode(encoding, [empty * MAX_FRAMES]) == b""
    with pytest.raises(MalformedBodyError, match=f"is {encoding} in more than 4096 frames one after the other"):
        decode(encoding, [empty * (MAX_FRAMES + 1)])


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("zstd", zstd_bomb(blocks=64)), ("gzip", gzip.compress(b" " * (64 * BLOCK_BYTES))), ("identity", b" " * 2**20)],
    ids=["zstd", "gzip", "identity"],
)
def test_a_body_comes_in_small_pieces(encoding: str, body: bytes) -> None:
    pieces = list(ContentDecoder(encoding).decode(body))
    assert max(map(len, pieces)) == OUTPUT_STEP_BYTES
    assert sum(map(len, pieces)) == (2**20 if encoding == "identity" else 64 * BLOCK_BYTES)
