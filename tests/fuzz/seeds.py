"""Seeds for fuzzing: small generated files of every kind, including those of the hostile suite."""

from collections.abc import Callable, Mapping

import numpy as np

from tests.fuzz.targets import MAX_INPUT_BYTES
from tests.hostile import gguf_files
from tests.hostile.documents import hostile_documents
from tests.hostile.forms import file, form, hostile_forms, text
from tests.hostile.images import hostile_images
from tests.hostile.urls import hostile_urls
from tests.hostile.videos import hostile_videos
from tests.media import pdfs
from tests.media.audio import FILES, audio_file, tone
from tests.media.heif import coded, grid, heic, mirror, rotation
from tests.media.images import animation, encode, scene
from tests.media.videos import CODECS, greys, video
from tests.protos.compiled import file_descriptor_set


def seeds_of(target: str) -> list[bytes]:
    """Returns the seeds of a target that are within the maximum input size."""
    return [seed for seed in _SEEDS[target]() if len(seed) <= MAX_INPUT_BYTES]


def _gguf() -> list[bytes]:
    sentencepiece = gguf_files.model({"tokenizer.ggml.model": (gguf_files.STRING, gguf_files.text("llama"))})
    hostile = (data for data, _ in gguf_files.hostile_headers().values())
    encoders = map(gguf_files.mmproj, gguf_files.ENCODERS)
    return [gguf_files.model(), sentencepiece, *encoders, gguf_files.valid(), *hostile]


def _texts() -> list[bytes]:
    urls = [url.url.encode() for url in hostile_urls(8080).values()]
    return [
        *urls,
        b"data:image/png;base64,iVBORw0KGgo=",
        b"data:,a%20b",
        b"iVBORw0KGgo=",
        b"-_-_",
        b"file:///a%20b.png",
    ]


def _images() -> list[bytes]:
    small = scene(12, 8)
    formats = [encode(small, name) for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")]
    modes = [encode(small.convert(mode), "TIFF") for mode in ("1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr")]
    return [*formats, *modes, *_heif(), *(data for data, _ in hostile_images().values())]


def _heif() -> list[bytes]:
    small = scene(64, 64)
    tiles = [coded(small)] * 2
    turned = heic(small.convert("RGBA"), rotation(1), mirror(0), alpha=True)
    return [turned, heic(small, bits=10), grid(tiles, rows=1, columns=2, width=100, height=60)]


def _animations() -> list[bytes]:
    return [animation(greys(3, width=16, height=12), name) for name in ("GIF", "PNG", "WEBP", "AVIF")]


def _videos() -> list[bytes]:
    frames = greys(4, width=32, height=32)
    files = [video(frames, container=container, codec=codec) for container, codec in CODECS.values()]
    return [
        *files,
        video(frames, movflags="frag_keyframe+empty_moov"),
        *(data for data, _ in hostile_videos().values()),
    ]


def _audio() -> list[bytes]:
    samples = np.stack([tone(440, 48_000, 0.03)] * 2)  # accepted by every encoder
    return [audio_file(samples, 48_000, container=container, codec=codec) for container, codec in FILES.values()]


def _documents() -> list[bytes]:
    small = pdfs.of_images([scene(12, 8).convert("RGB")])
    return [
        small,
        pdfs.document([pdfs.rectangle((1, 0, 0), 0, 0, 9, 9) + pdfs.text("A")]),
        *(data for data, _ in hostile_documents().values()),
    ]


def _all_formats() -> list[bytes]:
    headers = [data[:64] for data in (*_images(), *_videos(), *_audio(), *_documents())]
    return [*dict.fromkeys(headers), b"", np.random.default_rng(0).bytes(64)]


def _forms() -> list[bytes]:
    whole = form(text("purpose", "vision"), file(b"\r\n--a\r"), text("expires_after[seconds]", "60"))
    return [whole, *(hostile.body for hostile in hostile_forms().values())]


def _message_types() -> list[bytes]:
    files = ("answers.proto", "older_answers.proto", "refused_answers.proto")
    return [file_descriptor_set(name, include_imports=False) for name in files]


_SEEDS: Mapping[str, Callable[[], list[bytes]]] = {
    "source": _texts,
    "sniff": _all_formats,
    "image": _images,
    "mp4": _videos,
    "video": _videos,
    "prepared video": _videos,
    "animation": _animations,
    "audio": _audio,
    "form": _forms,
    "message type": _message_types,
    "document": _documents,
    "gguf": _gguf,
}
