"""Synthetic videos for tests: each frame has a different grey, which identifies it."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

STEP = 4
"""The brightness difference of consecutive frames."""
CODECS = {
    "mp4, H.264": ("mp4", "libx264"),
    "mov, H.264": ("mov", "libx264"),
    "mkv, H.264": ("matroska", "libx264"),
    "mp4, HEVC": ("mp4", "libx265"),
    "webm, VP8": ("webm", "vp8"),
    "webm, VP9": ("webm", "libvpx-vp9"),
    "webm, AV1": ("webm", "libsvtav1"),
    "mp4, AV1": ("mp4", "libsvtav1"),
    "mp4, MPEG-4 Part 2": ("mp4", "mpeg4"),
    "avi, MPEG-4 Part 2": ("avi", "mpeg4"),
    "avi, Motion JPEG": ("avi", "mjpeg"),
}
_OPTIONS = {
    "libx264": {"crf": "8"},
    "libx265": {"crf": "8", "x265-params": "log-level=none"},
    "vp8": {"b": "2M", "crf": "4"},
    "mpeg4": {"b": "2M"},
    "libsvtav1": {"preset": "10", "crf": "12", "svtav1-params": "lp=1"},
}


def greys(num_frames: int, *, width: int = 64, height: int = 48) -> npt.NDArray[np.uint8]:
    """Returns frames [frames, height, width, 3]; frame i is filled with grey 16 + 4 i."""
    values = 16 + STEP * np.arange(num_frames)
    return np.broadcast_to(values[:, None, None, None], (num_frames, height, width, 3)).astype(np.uint8)


def numbers(pixels: npt.NDArray[np.uint8]) -> list[int]:
    """Returns the indices in `greys` of these frames, [frames, height, width, 3]."""
    return [round((float(frame.mean()) - 16) / STEP) for frame in pixels]


def video(
    frames: npt.NDArray[np.uint8],
    *,
    container: str = "mp4",
    codec: str = "libx264",
    fps: int = 10,
    keyframe_every: int = 5,
    times: Sequence[int] | None = None,
    with_audio: bool = False,
    bf: str | None = None,
    **container_options: str,
) -> bytes:
    """Returns a deterministic file of frames [frames, height, width, 3]; `times` are in units of 1 / fps seconds."""
    file = BytesIO()
    options = {"fflags": "+bitexact"} | container_options
    with scheduling_policy_restored(), av.open(file, "w", format=container, options=options) as output:
        write(
            output,
            frames,
            codec=codec,
            fps=fps,
            keyframe_every=keyframe_every,
            times=times,
            with_audio=with_audio,
            bf=bf,
        )
    return file.getvalue()


@contextmanager
def scheduling_policy_restored() -> Generator[None]:
    """Restores the thread's scheduling policy.

    As root, the AV1 encoder makes the calling thread a real-time thread, which its child threads inherit. Spinning
    OpenMP threads with that policy can deadlock if there are more of them than processors.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def streamable_mp4(frames: npt.NDArray[np.uint8], folder: Path) -> bytes:
    """Returns an MP4 whose index precedes its frames, as in files for the web."""
    path = folder / "streamable.mp4"
    with av.open(str(path), "w", options={"movflags": "faststart"}) as output:
        write(output, frames, codec="libx264", fps=10, keyframe_every=5)
    return path.read_bytes()


def write(
    output: Any,
    frames: npt.NDArray[np.uint8],
    *,
    codec: str,
    fps: int,
    keyframe_every: int,
    times: Sequence[int] | None = None,
    with_audio: bool = False,
    bf: str | None = None,
) -> None:
    options = _OPTIONS.get(codec, {}) | {"g": str(keyframe_every)} | ({} if bf is None else {"bf": bf})
    stream = output.add_stream(codec, rate=fps, options=options)
    _, stream.height, stream.width, _ = frames.shape
    stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    audio = output.add_stream("pcm_s16le", rate=48000) if with_audio else None
    for index, pixels in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        frame.pts = index if times is None else times[index]
        frame.time_base = Fraction(1, fps)
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))
    if audio is not None:
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 48000), np.int16), format="s16", layout="mono")
        silence.sample_rate = 48000
        output.mux(audio.encode(silence))
        output.mux(audio.encode(None))


def turned_mp4(data: bytes) -> bytes:
    """Returns the MP4 with a display rotation of 90° clockwise, as phones write for portrait videos."""
    matrix = data.index(b"tkhd") + 4 + 40  # header of version 0
    quarter = b"".join(
        value.to_bytes(4, "big", signed=True) for value in (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    )
    return data[:matrix] + quarter + data[matrix + 36 :]
