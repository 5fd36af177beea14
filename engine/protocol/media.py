"""The media of a prompt as the engine receives them: where their tokens are, and what the encoder reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from glimpse.media.kind import MediaKind


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder output that was computed elsewhere. It replaces the output of the model's own encoder."""

    dtype: Literal["float32", "float16", "bfloat16"]
    data: memoryview
    """[rows, row width of the encoder output], row-major, little-endian. Every value is finite, in any dtype."""

    @property
    def num_values(self) -> int:
        return self.data.nbytes // (4 if self.dtype == "float32" else 2)


MediaContent: TypeAlias = memoryview | Embeddings
"""What an encoder output is made from.

- Image or video: pixels, uint8 [frames, height, width, 3], row-major; an image has 1 frame, or as many tiles as its
  family cuts it into.
- Audio: features, float32 [mel bins, frames], row-major.
- `Embeddings`: the encoder output itself, which is only copied.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    """The tokens of one medium in a prompt: placeholder tokens, and literal ones before, between and after them."""

    kind: MediaKind
    start: int
    """Index in the prompt of the medium's first token."""
    num_tokens: int
    """Tokens of the medium, literal ones included."""
    runs: tuple[tuple[int, int], ...] = ()
    """(offset from `start`, length) of each run of placeholder tokens, in order, without overlap. The placeholder
    tokens, in order, take the rows of the encoder output. Default: one run of all tokens."""
    key: bytes
    """256-bit hash of the content and of how it was processed. Equal keys mean equal encoder outputs."""
    grid: tuple[int, ...]
    """Shape of the encoder's input, as the model family defines it. Qwen's: patches in time, height and width, before
    merging; for audio: 1, mel bins, frames."""
    mrope_time_interval: float = 1.0
    """Distance in M-RoPE positions between two temporal patches of a video. The products are rounded down."""

    def __post_init__(self) -> None:
        if not self.runs:
            object.__setattr__(self, "runs", ((0, self.num_tokens),))

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows of the encoder output: the number of placeholder tokens."""
        return sum(length for _, length in self.runs)

    def rows_between(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields what the prompt's tokens from `start` to before `end` take from the encoder output.

        Yields:
            For each run among them: its first row of the encoder output, the index of its first token in the prompt,
            and the number of its tokens.
        """
        row = 0
        for offset, length in self.runs:
            run_start = self.start + offset
            first, last = max(run_start, start), min(run_start + length, end)
            if first < last:
                yield row + first - run_start, first, last - first
            row += length
