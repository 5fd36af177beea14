"""What the scheduler may use."""

from dataclasses import dataclass

from glimpse.engine.core.memory.sliding_window import SlidingWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The memory that the scheduler distributes, and the sizes of its steps."""

    num_blocks: int
    """KV blocks for sequences."""
    block_size: int
    """Tokens in a KV block."""
    max_model_len: int
    """The most tokens of a sequence, prompt and answer together."""
    max_batch_tokens: int
    """The most tokens computed in a step."""
    max_sequences: int
    """The most sequences that run at a time."""
    encoder_bytes_per_row: int
    """Size of the encoder output of one placeholder token."""
    encoder_cache_bytes: int
    """Memory for encoder outputs. One medium that fills the context window fits in any case."""
    prefix_caching: bool
    """Computed blocks are shared between sequences with the same prefix."""
    max_decode_slowdown: float
    """How much longer a step may take with prompt tokens than without, as a factor of at least 1."""
    uses_gpu: bool = False
    """Steps run on a GPU, where any prompt token in a step costs kernel launches."""
    max_draft_tokens: int = 0
    """The most draft tokens of a sequence in a step; 0 turns speculative decoding off."""
    uses_mtp: bool = False
    """The model proposes them."""
    adaptive_drafts: bool = False
    """Draft tokens are verified only where that is expected to pay."""
    num_sliding_blocks: int = 0
    """KV blocks of sliding layers. 0: they are parts of the other ones."""
    window: int = 0
    """Tokens that these layers attend to."""
    num_states: int = 0
    """States for sequences and snapshots. 0: the model's layers keep none."""

    @property
    def max_running(self) -> int:
        """The most sequences that run at a time: each can have a token in each step, and has a state."""
        return min(self.max_sequences, self.max_batch_tokens, self.num_states or self.max_sequences)

    @property
    def sliding_window(self) -> SlidingWindow | None:
        """The window of layers with blocks of their own; None without any."""
        return SlidingWindow(num_tokens=self.window, block_size=self.block_size) if self.num_sliding_blocks else None

    @property
    def num_draft_states(self) -> int | None:
        """The most states that draft tokens of a step take, of those beyond two for each sequence or, if these are few,
        a quarter of all; None if no layer keeps any."""
        return max(self.num_states - 2 * self.max_sequences, self.num_states // 4) if self.num_states else None

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: a sequence could wait forever under these limits.
        """
        if self.max_model_len > self.num_blocks * self.block_size:
            raise ValueError(
                f"max_model_len: expected at most {self.num_blocks * self.block_size} tokens ({self.num_blocks} blocks "
                f"of {self.block_size}), got {self.max_model_len}"
            )
        if self.sliding_window is not None:
            needed = self.sliding_window.num_blocks(self.max_batch_tokens)
            needed = min(needed, -(-self.max_model_len // self.block_size))
            if self.num_sliding_blocks < needed:
                raise ValueError(
                    f"num_sliding_blocks: expected at least the {needed} of a step, got {self.num_sliding_blocks}"
                )
        if self.max_batch_tokens < 1:
            raise ValueError(f"max_batch_tokens: expected at least 1, got {self.max_batch_tokens}")
        if self.max_sequences < 1:
            raise ValueError(f"max_sequences: expected at least 1, got {self.max_sequences}")
