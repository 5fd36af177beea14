"""Video files that a stranger might send, made by code, and what becomes of each: a table."""

import struct
from collections.abc import Callable
from functools import cache

import numpy as np

from glimpse.media.errors import MediaErrorCode
from tests.media.audio import audio_file, tone
from tests.media.images import encode, scene
from tests.media.videos import greys, video

DAMAGED = MediaErrorCode.INVALID_MEDIA
TOO_LARGE = MediaErrorCode.TOO_LARGE
UNSUPPORTED = MediaErrorCode.UNSUPPORTED_FORMAT

Make = Callable[[], bytes]


def _mp4() -> bytes:
    return video(greys(8))


def _webm() -> bytes:
    return video(greys(8), container="webm", codec="vp8")


def _changed(data: bytes, name: bytes, offset: int, value: bytes) -> bytes:
    """The file with other bytes so far behind its first box of that name."""
    place = data.index(name) + 4 + offset
    return data[:place] + value + data[place + len(value) :]


def _box(kind: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack(">I4s", len(body) + 8 if size is None else size, kind) + body


def _nested(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = _box(b"moov", data)
    return _box(b"ftyp", b"isom\0\0\0\0") + data


def _long_matroska(num_frames: int) -> bytes:
    """A video of one frame, shown again and again: blocks of three bytes that a demuxer must read through."""
    data = video(greys(2), container="matroska", codec="vp8", live="1")
    clusters: list[bytes] = []
    for start in range(0, num_frames, 1000):
        time = b"\xe7\x84" + struct.pack(">I", 1000 + start)
        blocks = b"".join(b"\xa3\x87\x81" + struct.pack(">h", index) + b"\x80\x10\x02\x00" for index in range(1000))
        body = time + blocks
        clusters.append(b"\x1f\x43\xb6\x75" + (len(body) | 1 << 28).to_bytes(4, "big") + body)
    return data + b"".join(clusters)


def _hours() -> bytes:
    """Two frames, the second of which comes after three hours."""
    return video(greys(2), fps=1, times=[0, 3 * 3600])


def _large_frames(width: int, height: int) -> bytes:
    data = video(greys(2), codec="libx264")
    return data.replace(struct.pack(">HH", 64, 48), struct.pack(">HH", width, height))


def _long_and_flat() -> bytes:
    return video(np.zeros((2, 16, 4080, 3), np.uint8))


def _with_a_reference() -> bytes:
    """Whose frames are said to lie in another file."""
    data = _mp4()
    place = data.index(b"url \0\0\0\1")
    return data[: place + 4] + b"\0\0\0\0" + data[place + 8 :]


def _attachment() -> bytes:
    return _webm() + b"\x19\x41\xa4\x69\x84\xff\xff\xff\xff"


def _noise_inside() -> bytes:
    data = bytearray(_mp4())
    start = data.index(b"mdat") + 4
    data[start : start + 400] = np.random.default_rng(0).bytes(400)
    return bytes(data)


def _other_codec() -> bytes:
    return video(greys(3), container="matroska", codec="mpeg4")


def _transport_stream() -> bytes:
    return video(greys(3), container="mpegts")


def _only_audio() -> bytes:
    return audio_file(tone(440, 16_000, 0.5), 16_000, container="mov", codec="pcm_s16le")


_FILES: dict[str, tuple[Make, MediaErrorCode | None]] = {
    "claims 4 billion frames": (lambda: _changed(_mp4(), b"stsz", 8, b"\xff\xff\xff\xff"), TOO_LARGE),
    "claims a million frames": (lambda: _changed(_mp4(), b"stsz", 8, struct.pack(">I", 1_000_001)), TOO_LARGE),
    "has a million frames": (lambda: _long_matroska(1_000_000), TOO_LARGE),
    "has frames of a billion pixels": (lambda: _large_frames(40_000, 30_000), None),
    "lasts three hours": (_hours, TOO_LARGE),
    "is long and flat": (_long_and_flat, DAMAGED),
    "has other bytes for frames": (_noise_inside, None),
    "says that its frames lie elsewhere": (_with_a_reference, None),
    "has a compressed index": (lambda: _mp4() + _box(b"moov", _box(b"cmov", bytes(20))), UNSUPPORTED),
    "is boxes in boxes": (lambda: _nested(5000), DAMAGED),
    "has a box of no size": (lambda: _box(b"ftyp", b"isom\0\0\0\0") + _box(b"moov", bytes(8), size=1), DAMAGED),
    "has a box of exabytes": (
        lambda: _box(b"ftyp", b"isom\0\0\0\0") + struct.pack(">I4sQ", 1, b"moov", 2**63 - 1) + bytes(50),
        DAMAGED,
    ),
    "has an element of exabytes": (_attachment, None),
    "is half an MP4": (lambda: _mp4()[: len(_mp4()) // 2], DAMAGED),
    "is the beginning of a WebM": (lambda: _webm()[:200], DAMAGED),
    "has only audio": (_only_audio, DAMAGED),
    "is of another codec": (_other_codec, UNSUPPORTED),
    "is a transport stream": (_transport_stream, UNSUPPORTED),
    "is an AVI": (lambda: video(greys(2), container="avi"), UNSUPPORTED),
    "is a playlist": (lambda: b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/a.ts\n", UNSUPPORTED),
    "is a list of files": (lambda: b"ffconcat version 1.0\nfile '/etc/passwd'\n", UNSUPPORTED),
    "is a manifest": (lambda: b"<?xml version='1.0'?><MPD><BaseURL>file:///etc/</BaseURL></MPD>", UNSUPPORTED),
    "is a session description": (lambda: b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n", UNSUPPORTED),
    "is a playlist behind an MP4's first bytes": (
        lambda: _box(b"ftyp", b"isom\0\0\0\0") + b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        DAMAGED,
    ),
    "is an image": (lambda: encode(scene(20, 20), "PNG"), UNSUPPORTED),
    "is a moving GIF": (lambda: encode(scene(20, 20), "GIF", save_all=True), UNSUPPORTED),
    "is noise": (lambda: np.random.default_rng(2).bytes(5000), UNSUPPORTED),
    "is one frame": (lambda: video(greys(1)), None),
    "is of 16×16 pixels": (lambda: video(greys(4, width=16, height=16)), None),
    "has all frames at once": (lambda: video(greys(8), container="matroska", codec="vp8", times=[0] * 8), None),
}


@cache
def hostile_videos() -> dict[str, tuple[bytes, MediaErrorCode | None]]:
    """All of them, by what each is; None: it is a video after all."""
    return {name: (make(), code) for name, (make, code) in _FILES.items()}
