"""Video files are measured packet by packet, decoded frame by frame, and can do no harm outside their own process."""

import asyncio
import base64
import io
import json
import os
import resource
import struct
import subprocess
import sys
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from serving.media import video_child
from serving.media.decoded import VideoShape
from serving.media.limits import MediaLimits
from serving.media.videos import FORMATS, decode_video, probe_video
from tests.serving.media_samples import VIDEO_LOC, encoded, moving, mutated, outcome, photo, refused, video_file

LIMITS = MediaLimits()
FRAMES = moving(30)
CODECS = {
    "mp4 h264": video_file(FRAMES),
    "mp4 h264, key frames and b-frames": video_file(FRAMES, g="6", bf="2"),
    "mp4 h264, open groups": video_file(FRAMES, g="6", bf="2", **{"x264-params": "open-gop=1"}),
    "mp4 h264 in fragments": video_file(FRAMES, movflags="frag_keyframe+empty_moov", g="6"),
    "mp4 mpeg4": video_file(FRAMES, codec="mpeg4", g="6", b="2M"),
    "mp4 hevc": video_file(FRAMES, codec="libx265", **{"x265-params": "log-level=none:keyint=6"}),
    "webm vp8": video_file(
        FRAMES, container="webm", codec="libvpx", g="6", **{"auto-alt-ref": "1", "lag-in-frames": "8"}
    ),
    "webm vp9": video_file(FRAMES, container="webm", codec="libvpx-vp9", g="6"),
    "webm av1": video_file(FRAMES, container="webm", codec="libsvtav1", g="6"),
}


@cache
def probe(data: bytes, limits: MediaLimits = LIMITS) -> VideoShape:
    return asyncio.run(probe_video(data, limits, VIDEO_LOC))


def decode(data: bytes, indices: list[int], limits: MediaLimits = LIMITS) -> Any:
    return asyncio.run(decode_video(data, probe(data, limits), indices, limits, VIDEO_LOC))


@pytest.mark.parametrize("name", CODECS)
def test_measured_and_every_frame_found(name: str) -> None:
    shape = probe(CODECS[name])
    assert (shape.total_frames, shape.width, shape.height) == (30, 64, 48)
    assert shape.fps == pytest.approx(10, rel=1e-6)
    video = decode(CODECS[name], list(range(30)))
    assert video.frames.shape == (30, 48, 64, 3)
    # The greys are 6 apart.
    centre = video.frames[:, 24:, 32:].astype(float).mean(axis=(1, 2, 3))
    assert np.abs(centre - FRAMES[:, -1, -1, 0]).max() < 3
    assert np.abs(video.frames[:, :8, :8].astype(float).mean(axis=(0, 1, 2)) - (250, 20, 20)).max() < 12


def test_the_encoder_of_a_sample_leaves_the_process_an_ordinary_one() -> None:
    video_file(FRAMES[:2], container="webm", codec="libsvtav1")
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize("name", CODECS)
def test_chosen_frames_are_those_of_a_whole_decoding(name: str) -> None:
    whole = decode(CODECS[name], list(range(30))).frames
    for indices in ([29], [3, 4, 11, 13, 13, 26]):
        chosen = decode(CODECS[name], indices)
        assert chosen.indices == tuple(indices)
        assert np.array_equal(chosen.frames, whole[indices])


def test_pixels_are_those_of_pyav() -> None:
    with av.open(io.BytesIO(CODECS["mp4 h264"])) as file:
        theirs = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    assert np.array_equal(decode(CODECS["mp4 h264"], list(range(30))).frames, theirs)


@pytest.mark.parametrize(("fps", "container"), [(Fraction(30000, 1001), "mp4"), (Fraction(1, 2), "mp4"), (25, "webm")])
def test_the_rate_is_frames_over_time(fps: Fraction, container: str) -> None:
    codec = "libx264" if container == "mp4" else "libvpx"
    shape = probe(video_file(moving(12), fps=fps, container=container, codec=codec))
    assert shape.fps == pytest.approx(float(fps), rel=1e-3)


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
def test_frames_are_turned_as_the_file_says(degrees: int) -> None:
    data = video_file(moving(4), prepare=lambda stream: stream.set_display_rotation(degrees))
    plain = decode(video_file(moving(4)), [0, 3]).frames
    video = decode(data, [0, 3])
    assert np.array_equal(video.frames, np.rot90(plain, degrees // 90, axes=(1, 2)))
    assert (video.shape.height, video.shape.width) == video.frames.shape[1:3]


def of_another_codec() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as file:
        stream = file.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        file.mux(stream.encode(av.VideoFrame.from_ndarray(FRAMES[0], format="rgb24")))
        file.mux(stream.encode(None))
    return out.getvalue()


def of_sound_alone() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("aac", rate=8000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


OTHER = f"videos.0 is no video of a format that is read, which are {FORMATS}"
DAMAGED = "videos.0 is damaged or cut short"
MP4 = CODECS["mp4 h264"]
REFUSED: dict[str, tuple[bytes, dict[str, Any], str, str]] = {
    "nothing": (b"", {}, "videos.0 is empty", "media_source"),
    "an image": (encoded(photo(), "PNG"), {}, OTHER, "media_format"),
    "a playlist": (b"#EXTM3U\nhttp://127.0.0.1/a.ts\n", {}, OTHER, "media_format"),
    "a concat script": (b"ffconcat version 1.0\nfile /etc/hostname\n", {}, OTHER, "media_format"),
    "an avi": (b"RIFF\0\0\0\0AVI LIST", {}, OTHER, "media_format"),
    "another codec": (
        of_another_codec(),
        {},
        f"videos.0 is in a codec that is not read; {FORMATS} are",
        "media_format",
    ),
    "sound alone": (of_sound_alone(), {}, "videos.0 has no video in it", "media_format"),
    "an mp4's first bytes": (MP4[:200], {}, DAMAGED, "media_damaged"),
    "a webm's first bytes": (CODECS["webm vp9"][:100], {}, DAMAGED, "media_damaged"),
    "bytes": (
        MP4,
        {"max_video_bytes": 1000},
        f"videos.0 has {len(MP4)} bytes; the limit max_video_bytes is 1000",
        "media_too_large",
    ),
    "frame": (
        MP4,
        {"max_frame_pixels": 3071},
        "videos.0 has frames of 3072 pixels (64 x 48); the limit max_frame_pixels is 3071",
        "media_too_large",
    ),
    "frame of h264, far over": (
        MP4,
        {"max_frame_pixels": 1500},
        "videos.0 has frames of no readable size, or larger ones than allowed; the limit max_frame_pixels is 1500",
        "media_too_large",
    ),
    "frame of mpeg4, far over": (
        CODECS["mp4 mpeg4"],
        {"max_frame_pixels": 1500},
        "videos.0 has frames of no readable size, or larger ones than allowed; the limit max_frame_pixels is 1500",
        "media_too_large",
    ),
    "frames": (
        MP4,
        {"max_file_frames": 29},
        "videos.0 has more frames than allowed; the limit max_file_frames is 29",
        "media_too_large",
    ),
    "seconds": (
        MP4,
        {"max_video_seconds": 2.9},
        "videos.0 is 3 seconds long; the limit max_video_seconds is 2.9",
        "media_too_large",
    ),
    "pixels": (
        MP4,
        {"max_video_pixels": 92159},
        "videos.0 has 92160 pixels (30 frames of 64 x 48); the limit max_video_pixels is 92159",
        "media_too_large",
    ),
    "side": (
        MP4,
        {"min_image_side": 49},
        "videos.0 is 64 x 48 pixels; the limit min_image_side is 49",
        "media_too_small",
    ),
    "aspect": (
        MP4,
        {"max_aspect_ratio": 1.2},
        "videos.0 is 64 x 48 pixels, 1.333 to 1; the limit max_aspect_ratio is 1.2 to 1",
        "media_too_large",
    ),
}


@pytest.mark.parametrize(("data", "limits", "message", "kind"), REFUSED.values(), ids=REFUSED)
def test_refused(data: bytes, limits: dict[str, Any], message: str, kind: str) -> None:
    with refused(message, kind, VIDEO_LOC):
        probe(data, MediaLimits(**limits))


def test_limits_are_exact() -> None:
    limits = MediaLimits(
        max_file_frames=30, max_video_seconds=3, max_video_pixels=92160, max_frame_pixels=3072, min_image_side=48
    )
    assert probe(MP4, limits).total_frames == 30


def test_a_damaged_frame_is_refused_if_it_is_chosen() -> None:
    data = bytearray(CODECS["mp4 mpeg4"])
    middle = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 2
    data[middle : middle + 300] = b"\0" * 300
    assert probe(bytes(data)).total_frames == 30
    assert np.array_equal(decode(bytes(data), [0, 1]).frames, decode(CODECS["mp4 mpeg4"], [0, 1]).frames)
    with refused(DAMAGED, "media_damaged", VIDEO_LOC):
        decode(bytes(data), list(range(30)))


@pytest.mark.parametrize("stack_bytes", [64 * 2**20, 2**30])
def test_a_server_with_large_thread_stacks_reads_videos_too(stack_bytes: int) -> None:
    """SGLang raises the limit in the process that starts ours, and FFmpeg's threads would have no room."""
    before, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes, most))
    try:
        assert decode(CODECS["mp4 h264"], [3, 29]).frames.shape == (2, 48, 64, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (before, most))


def table_bomb(samples: int) -> bytes:
    """A file of a kilobyte whose tables speak of so many frames."""
    data = bytearray(video_file(moving(3), codec="mpeg4"))
    struct.pack_into(">II", data, data.index(b"stsz") + 8, 10, samples)
    struct.pack_into(">I", data, data.index(b"stts") + 12, samples)
    struct.pack_into(">II", data, data.index(b"stsc") + 12, 1, samples)
    return bytes(data)


MEASURED_APART = """
import asyncio, resource, sys
from serving.errors import InvalidRequestError
from serving.media.limits import MediaLimits
from serving.media.videos import probe_video
try:
    asyncio.run(probe_video(sys.stdin.buffer.read(), MediaLimits(), ("body", "videos", 0)))
except InvalidRequestError as err:
    print(err)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


@pytest.mark.parametrize("samples", [50_000_000, 400_000_000])
def test_a_bomb_in_the_tables_is_contained(samples: int) -> None:
    data = table_bomb(samples)
    assert len(data) < 2000
    done = subprocess.run([sys.executable, "-c", MEASURED_APART], input=data, capture_output=True, check=True)
    message, megabytes = done.stdout.decode().splitlines()
    assert message.startswith("videos.0 has frames of no readable size")
    assert int(megabytes) < 450  # 3.5 GB and 12 seconds for the smaller one where nothing bounds it


def test_too_much_work_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        "import json, resource, sys\n"
        "job = json.loads(sys.stdin.buffer.readline())\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (job['cpu_seconds'], 100))\n"
        "sys.stdin.buffer.read()\n"
        "while True: pass\n"
    )
    monkeypatch.setattr("serving.media.videos._SCRIPT", script)
    with refused(
        "videos.0 takes too long to decode; the limit max_video_cpu_seconds is 1 seconds", "media_too_large", VIDEO_LOC
    ):
        probe(MP4, MediaLimits(max_video_cpu_seconds=1))


def test_a_crash_is_the_files_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    script = tmp_path / "crash.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr("serving.media.videos._SCRIPT", script)
    with refused(DAMAGED, "media_damaged", VIDEO_LOC):
        probe.__wrapped__(MP4)  # not what an earlier test has found


FUZZ = """
import base64, collections, json, sys
sys.path.insert(0, sys.argv[1])
import video_child
outcomes = collections.Counter()
for text in json.load(sys.stdin):
    job = json.loads(sys.argv[2])
    try:
        job["format"] = "mp4" if base64.b64decode(text)[4:8] == b"ftyp" else "webm"
        found = video_child.read(base64.b64decode(text), job)
        outcomes["read" if found["frames"] else "empty"] += 1
    except Exception as err:
        outcomes["refused"] += 1
print(json.dumps(outcomes))
"""


@pytest.mark.parametrize("name", CODECS)
def test_mutated_videos_crash_nothing(name: str) -> None:
    # Many files in one process, which has a memory of its own and must not end early.
    files = [base64.b64encode(mutated(CODECS[name], seed)).decode() for seed in range(150)]
    job = {
        "codecs": ["h264", "hevc", "mpeg4", "vp8", "vp9", "libdav1d", "av1"],
        "max_pixels": 100_000,
        "max_frames": 1000,
        "decoder_bytes": 2**28,
        "decoder_bytes_per_pixel": 100,
    }
    child = [sys.executable, "-c", FUZZ, str(Path(video_child.__file__).parent), json.dumps(job)]
    done = subprocess.run(child, input=json.dumps(files).encode(), capture_output=True, check=True)
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == 150
    assert min(outcomes["read"], outcomes["refused"]) > 10


def test_mutated_videos_are_read_or_refused() -> None:
    def all_of(data: bytes) -> Any:
        return decode(data, list(range(probe(data).total_frames)))

    files = [mutated(CODECS[name], seed) for name in ("mp4 h264", "webm vp9") for seed in range(4)]
    outcomes = {outcome(partial(all_of, data)) for data in files}
    assert {"read", "media_damaged"} <= outcomes <= {"read", "media_damaged", "media_format", "media_too_large"}
