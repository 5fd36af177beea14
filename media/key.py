"""Content keys: hashes that identify media by their content and their processing."""

import hashlib
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

_DOMAIN = b"glimpse.media.v2"


def content_key(kind: str, pixels: npt.NDArray[np.uint8], *parameters: int) -> bytes:
    """Returns the SHA-256 of preprocessed pixels. Two keys are equal exactly if the encoder computes the same for both.

    Each field is preceded by its length, so that no two lists of fields hash the same bytes.

    Args:
        kind: "image" or "video".
        pixels: uint8 RGB, C-contiguous. The shape is part of the key.
    """
    numbers = (pixels.ndim, *pixels.shape, *parameters)
    return _hash((kind.encode(), b"RGB", *_texts(numbers), pixels.data))


def audio_key(samples: npt.NDArray[np.float32], *parameters: int) -> bytes:
    """Returns the SHA-256 of audio samples, like `content_key`. `samples`: [samples], C-contiguous."""
    return _hash((b"audio", b"float32", *_texts((len(samples), *parameters)), samples.data))


def decoded_key(namespace: str, kind: str, files: Iterable[bytes], *parameters: object) -> bytes:
    """Returns the SHA-256 of the inputs of decoding, under which the decoded media are cached.

    Args:
        namespace: Cache namespace; other namespaces get other keys.
        kind: "image", "video", "audio" or "frames".
        files: SHA-256 of each file.
        parameters: Parameters of the decoding: numbers, tuples and dataclasses of these.
    """
    fields = (b"decoded", namespace.encode(), kind.encode(), msgspec.msgpack.encode(parameters), *files)
    return _hash(fields)


def embedding_key(kind: str, dtype: str, numbers: Iterable[int], data: memoryview) -> bytes:
    """Returns the SHA-256 of embeddings. It never equals the key of the media that they were computed from.

    Args:
        numbers: Shape of the tensor and grid of the media.
    """
    return _hash((b"embedding", kind.encode(), dtype.encode(), *_texts(numbers), data))


def _texts(numbers: Iterable[int]) -> Iterable[bytes]:
    return (str(number).encode() for number in numbers)


def _hash(fields: Iterable[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256()
    for field in (_DOMAIN, *fields):
        digest.update(memoryview(field).nbytes.to_bytes(8, "little"))
        digest.update(field)
    return digest.digest()
