"""The fuzz targets pass with their seeds and some corruptions of them; `python -m tests.fuzz` explores further."""

import numpy as np
import pytest

from tests.fuzz import seeds, targets, tensors


def corrupt(seed: bytes, random: np.random.Generator) -> bytes:
    """Returns the seed with some bytes changed, and possibly truncated or with a part repeated or removed."""
    data = bytearray(seed)
    for place in random.integers(0, max(len(data), 1), 1 + len(data) // 200):
        data[place : place + 1] = random.bytes(1)
    start, end = sorted(random.integers(0, len(data) + 1, 2))
    match int(random.integers(0, 3)):
        case 0:
            return bytes(data)
        case 1:
            return bytes(data[:end])
        case _:
            return bytes(data[:end] + data[start:])


@pytest.mark.parametrize("target", [*targets.TARGETS, *tensors.TARGETS])
def test_corrupt_inputs_only_raise_media_errors(target: str) -> None:
    fuzz = (targets.TARGETS | tensors.TARGETS)[target]
    random = np.random.default_rng(1)
    for seed in (tensors if target in tensors.TARGETS else seeds).seeds_of(target):
        for data in (seed, corrupt(seed, random), corrupt(seed, random)):
            fuzz(data)
