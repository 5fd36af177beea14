"""The identity of a medium: a hash of its pixels and of how they become patches, or of a sound's samples and so on.

Knows no formats and no requests.
"""

import hashlib
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

_DOMAIN = b"glimpse.media.v2"


def content_key(kind: str, pixels: npt.NDArray[np.uint8], *parameters: int) -> bytes:
    """SHA-256 of a medium: equal exactly for what the engine would compute alike.

    Each field is preceded by its length, so that no two lists of fields are the same bytes.

    Args:
        kind: "image" or "video".
        pixels: RGB, C-contiguous; the shape counts too.
        parameters: of the processing that follows.
    """
    numbers = (pixels.ndim, *pixels.shape, *parameters)
    return _hash((kind.encode(), b"RGB", *_texts(numbers), pixels.data))


def audio_key(samples: npt.NDArray[np.float32], *parameters: int) -> bytes:
    """SHA-256 of a sound, in the same way.

    Args:
        samples: [samples], C-contiguous.
        parameters: of the processing that follows.
    """
    return _hash((b"audio", b"float32", *_texts((len(samples), *parameters)), samples.data))


def decoded_key(namespace: str, kind: str, files: Iterable[bytes], *parameters: object) -> bytes:
    """SHA-256 of how a medium is made of files, by which it is found again without being decoded.

    Args:
        tenant: whose it is; others do not find it.
        kind: "image", "video" or "audio", and what the files are of it.
        files: their hashes.
        parameters: of their processing: numbers, tuples, dataclasses of these.
    """
    fields = (b"decoded", namespace.encode(), kind.encode(), msgspec.msgpack.encode(parameters), *files)
    return _hash(fields)


def embedding_key(kind: str, dtype: str, numbers: Iterable[int], data: memoryview) -> bytes:
    """SHA-256 of embeddings, in the same way, and never that of what they may have been made of.

    Args:
        kind: of the medium that they stand for.
        dtype: of their elements.
        numbers: their shape, and the medium's grid.
        data: their elements.
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
