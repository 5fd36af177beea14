"""Test vectors of vLLM's MiniCPM-V 2.6: the encoder outputs of the tiny checkpoint for some images of odd sizes.

`make_minicpmv_vectors.py` makes them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

VECTORS = Path(__file__).with_name("minicpmv_vllm.npz")
SIZES = ((56, 56), (14, 70), (70, 28), (98, 14), (56, 84))
"""Heights and widths of slices in pixels, whole patches."""


def images() -> Sequence[np.ndarray]:
    """Returns the images, uint8 [height, width, 3]."""
    return [np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8) for seed, size in enumerate(SIZES)]


def load_vectors() -> Mapping[str, np.ndarray]:
    """Returns the encoder output of each image, float32 [queries, hidden_size], by its index."""
    return np.load(VECTORS)
