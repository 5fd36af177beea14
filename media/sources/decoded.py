"""Media that a caller passes decoded already: frames and audio samples in this process's memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedFrames:
    """The frames of a video."""

    frames: Sequence[PIL.Image.Image | npt.NDArray[np.uint8]]
    """Images, or uint8 arrays [height, width, 3 or 4]."""
    seconds: tuple[float, ...] | None = None
    """Time of each frame in the file that it was read from. None: the options say how fast the frames follow."""

    def pick(self, indices: Sequence[int]) -> Iterator[PIL.Image.Image]:
        """Yields the frames at these indices. Converts an array to an image only when it is reached."""
        for index in indices:
            frame = self.frames[index]
            yield frame if isinstance(frame, PIL.Image.Image) else PIL.Image.fromarray(frame)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AudioSamples:
    """The samples of an audio input."""

    array: npt.NDArray[Any]
    """Floats, [samples] or [channels, samples], full scale at 1."""
    rate: int
    """Samples per second."""
