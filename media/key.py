"""The identity of a medium: a hash of its pixels and of how they become patches. Knows no formats and no requests."""

import hashlib

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
    fields = (_DOMAIN, kind.encode(), b"RGB", *(str(number).encode() for number in numbers), pixels.data)
    digest = hashlib.sha256()
    for field in fields:
        digest.update(memoryview(field).nbytes.to_bytes(8, "little"))
        digest.update(field)
    return digest.digest()
