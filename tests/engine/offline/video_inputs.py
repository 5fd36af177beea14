"""Video inputs of `LLM` for the tests."""

import numpy as np
import PIL.Image

SMALL = {"min_pixels": 784, "max_pixels": 56 * 56}


FRAMES = np.random.default_rng(1).integers(0, 256, (4, 56, 56, 3), dtype=np.uint8)


IMAGES = [PIL.Image.fromarray(frame) for frame in FRAMES]


PLACEHOLDER = "<|vision_start|><|video_pad|><|vision_end|>"
