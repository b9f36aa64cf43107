"""A process of its own that reads one video file with PyAV (FFmpeg), so that hostile bytes can take no more than it has.

A file of a kilobyte can make a demuxer fill gigabytes, and a decoder can crash. Here the kernel bounds memory and time, and
the server lives on. Run as a script by `videos`; knows nothing of requests, and imports nothing of ours, to start quickly.

Standard input holds the job, one line of JSON, then the file. Standard output takes one line of JSON: what was found, or
`refused` and why. Frames go into the shared memory whose descriptor the job names.
"""

import json
import mmap
import os
import resource
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import av
import numpy as np
from av.codec.context import ThreadType
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

DECODER_THREADS = 2
# What a thread's stack takes of the memory allowed here; Linux's own default.
STACK_BYTES = 8 * 2**20


class Refused(Exception):  # noqa: N818 - a finding, not an error
    """The file is not read. The argument says why, in a word that `videos` knows."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One encoded frame: when it is shown and decoded, and until when it is shown, in the stream's time base."""

    pts: int
    dts: int
    end: int
    is_key: bool


def main() -> None:
    """Do the job of standard input."""
    job = json.loads(sys.stdin.buffer.readline())
    limit(resource.RLIMIT_CPU, job["cpu_seconds"])
    limit(resource.RLIMIT_CORE, 0)
    allow_memory(job["memory_bytes"])
    try:
        found = read(sys.stdin.buffer.read(), job)
    except Refused as err:
        found = {"refused": str(err)}
    except MemoryError:
        found = {"refused": "memory"}
    except Exception as err:  # noqa: BLE001 - whatever a decoder makes of the bytes, the bytes are at fault
        found = {"refused": "damaged", "error": type(err).__name__}
    print(json.dumps(found), flush=True)


def begin_again_with_small_stacks() -> None:
    """Threads get stacks of the size that was the limit when the process began; SGLang raises it to 64 MiB in the server."""
    if resource.getrlimit(resource.RLIMIT_STACK)[0] not in range(STACK_BYTES + 1):
        limit(resource.RLIMIT_STACK, STACK_BYTES)
        if resource.getrlimit(resource.RLIMIT_STACK)[0] == STACK_BYTES:
            os.execv(sys.executable, [sys.executable, "-I", __file__])  # noqa: S606 - ourselves


def allow_memory(count: int) -> None:
    """Let this process take so many bytes beyond those it has."""
    with open("/proc/self/status") as status:  # noqa: PTH123 - pathlib is not imported for this
        kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
    limit(resource.RLIMIT_DATA, kilobytes * 1024 + count)


def limit(which: int, value: int) -> None:
    """Lower a limit of this process, or raise it again, within what the process was given."""
    most = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value if most == resource.RLIM_INFINITY else min(value, most), most))


def read(data: bytes, job: dict[str, Any]) -> dict[str, Any]:
    """What the file holds; with `indices`, also its frames."""
    max_pixels = {"max_pixels": str(job["max_pixels"])}
    options = {**max_pixels, "codec_whitelist": ",".join(job["codecs"]), "protocol_whitelist": "none"}
    with av.open(BytesIO(data), "r", format=job["format"], options=options, metadata_errors="replace") as container:
        stream = container.streams.best("video")
        if not isinstance(stream, VideoStream):
            raise Refused("no_video")
        if stream.codec_context is None or stream.codec_context.name not in job["codecs"]:
            raise Refused("codec")
        if not 0 < stream.width * stream.height <= job["max_pixels"]:  # none where FFmpeg found it too large
            raise Refused("frame_size")
        packets = scan(container, stream, job["max_frames"])
        allow_memory(job["decoder_bytes"] + stream.width * stream.height * job["decoder_bytes_per_pixel"])
        stream.codec_context.options = max_pixels
        stream.thread_type = ThreadType.AUTO
        stream.thread_count = DECODER_THREADS
        if "indices" in job:
            keep(container, stream, packets, job)
            return {}
        return measure(container, stream, packets)


def scan(container: InputContainer, stream: VideoStream, most: int) -> list[Packet]:
    """Every frame's packet, in the order in which they are shown; read without decoding, whatever the header says."""
    packets: list[Packet] = []
    for packet in container.demux(stream):
        pts = packet.dts if packet.pts is None else packet.pts
        if packet.is_discard or not packet.size:
            continue
        if pts is None:
            raise Refused("damaged")
        if len(packets) == most:
            raise Refused("frames")
        dts = pts if packet.dts is None else packet.dts
        packets.append(Packet(pts, dts, pts + max(packet.duration or 0, 0), packet.is_keyframe))
    if not packets:
        raise Refused("damaged")
    return sorted(packets, key=lambda packet: packet.pts)


def measure(container: InputContainer, stream: VideoStream, packets: list[Packet]) -> dict[str, Any]:
    """The number of frames, their rate, and the size of the first as shown."""
    first = next(decoded(container, stream, packets[0]), None)
    if first is None:
        raise Refused("damaged")
    size = (first.height, first.width) if quarter_turns(first) % 2 else (first.width, first.height)
    unit = stream.time_base or 0
    seconds = float((max(packet.end for packet in packets) - packets[0].pts) * unit)
    fps = len(packets) / seconds if seconds > 0 else float(stream.average_rate or 0)
    return {"width": size[0], "height": size[1], "frames": len(packets), "fps": fps, "seconds": seconds}


def keep(container: InputContainer, stream: VideoStream, packets: list[Packet], job: dict[str, Any]) -> None:
    """Write the chosen frames to the shared memory, uint8 `[frames, height, width, 3]`."""
    shape = (len(job["indices"]), job["height"], job["width"], 3)
    with mmap.mmap(job["frames_fd"], 0) as memory:
        kept = np.frombuffer(memory, np.uint8).reshape(shape)
        for place, frame in enumerate(chosen(container, stream, packets, job["indices"])):
            turns = quarter_turns(frame)
            # Also a frame of another size than the first: a stream may change it.
            height, width = shape[1:3] if turns % 2 == 0 else shape[2:0:-1]
            kept[place] = np.rot90(frame.to_ndarray(format="rgb24", width=width, height=height, threads=1), turns)
        del kept  # it holds the memory open


def chosen(
    container: InputContainer, stream: VideoStream, packets: list[Packet], indices: list[int]
) -> Iterator[VideoFrame]:
    """The frames at these places. Frames between are decoded only where no key frame lets them be left out."""
    keys = [packet for packet in packets if packet.is_key] or packets[:1]
    frames: Iterator[VideoFrame] = iter(())
    shown: VideoFrame | None = None
    for index in indices:
        wanted = packets[index].pts
        start = keys[max(bisect_right(keys, wanted, key=lambda packet: packet.pts) - 1, 0)]
        if shown is None or time_of(shown) < start.pts:
            frames, shown = decoded(container, stream, start), None
        # Some packets show nothing; then the frame after it is what there is to see.
        while shown is None or time_of(shown) < wanted:
            shown = next(frames, None)
            if shown is None:
                raise Refused("damaged")
        if shown.is_corrupt:
            raise Refused("damaged")
        yield shown


def decoded(container: InputContainer, stream: VideoStream, start: Packet) -> Iterator[VideoFrame]:
    """The frames from a packet on."""
    container.seek(start.dts, stream=stream)
    return container.decode(stream)


def time_of(frame: VideoFrame) -> float:
    """When it is shown, in the stream's time base."""
    time = frame.dts if frame.pts is None else frame.pts
    return float("-inf") if time is None else time


def quarter_turns(frame: VideoFrame) -> int:
    """How often to turn it counter-clockwise by 90 degrees to have it as it is meant to be seen."""
    return round(frame.rotation / 90) % 4


if __name__ == "__main__":
    begin_again_with_small_stacks()
    main()
