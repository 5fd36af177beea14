"""Which KV blocks layers need that attend to the last tokens alone. Pure arithmetic."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """The window of a model's sliding layers, over blocks."""

    num_tokens: int
    """Tokens that a token attends to: itself and those right before it."""
    block_size: int

    def first_block(self, start: int) -> int:
        """Returns the index of the first block that the token at `start`, or a later one, attends to."""
        return max(start + 1 - self.num_tokens, 0) // self.block_size

    def num_held(self, num_tokens: int) -> int:
        """Returns how many blocks a sequence holds of which so many tokens are computed, one at a time at the end."""
        return -(-num_tokens // self.block_size) - self.first_block(num_tokens - 1)

    def num_blocks(self, num_new: int) -> int:
        """Returns the most blocks that a sequence needs to compute so many tokens in a step."""
        # They begin anywhere in a block.
        return (self.num_tokens + num_new + self.block_size - 3) // self.block_size + 1
