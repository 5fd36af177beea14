"""The fuzz targets withstand their seeds, and each seed damaged in a few ways; `python -m tests.fuzz` goes further."""

import numpy as np
import pytest

from tests.fuzz import seeds, targets, tensors


def corrupt(seed: bytes, random: np.random.Generator) -> bytes:
    """The seed with some bytes changed, or cut off, or a part of it repeated."""
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
def test_nothing_but_a_refusal_comes_of_damage(target: str) -> None:
    withstand = (targets.TARGETS | tensors.TARGETS)[target]
    random = np.random.default_rng(1)
    for seed in (tensors if target in tensors.TARGETS else seeds).seeds_of(target):
        for data in (seed, corrupt(seed, random), corrupt(seed, random)):
            withstand(data)
