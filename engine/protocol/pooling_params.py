"""How a prompt becomes an embedding. Plain values: they cross the process boundary as they are."""

from dataclasses import dataclass
from enum import StrEnum


class PoolingMode(StrEnum):
    """Which hidden states, after the decoder's final norm, become the embedding."""

    LAST_TOKEN = "last_token"  # noqa: S105 - a token of text
    """Hidden state of the prompt's last token."""
    MEAN = "mean"
    """The mean of those of all tokens of the prompt. A cached prefix has none, so that it is computed again."""
    TOKEN = "token"  # noqa: S105 - a token of text
    """Each of those of all tokens, of models for late interaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """How hidden states are pooled into an embedding, and what becomes of it. The front end has checked the ranges."""

    mode: PoolingMode = PoolingMode.LAST_TOKEN
    normalize: bool = True
    """Divide the embedding by its Euclidean length, after it was cut."""
    dimensions: int | None = None
    """Cut the embedding to this number of its first values, 1 to the model's hidden size (Matryoshka representation
    learning, arXiv 2205.13147). None: keep all."""
    token_ids: tuple[int, ...] = ()
    """In place of the last token's hidden state, the logits of these tokens as the next one. The other fields do not
    apply then."""

    @property
    def needs_all_states(self) -> bool:
        """Whether the hidden states of all tokens are pooled."""
        return self.mode is not PoolingMode.LAST_TOKEN and not self.token_ids
