"""How one sequence's tokens are chosen and when it ends. Plain values: they cross the process seam as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this take the most likely token: dividing by them would overflow."""


class GrammarKind(StrEnum):
    """In which notation a grammar is written."""

    JSON_OBJECT = "json_object"
    """Any JSON object; there is no text."""
    JSON_SCHEMA = "json_schema"
    """A JSON Schema, as JSON text."""
    REGEX = "regex"
    """A regular expression that the whole answer matches."""
    CHOICE = "choice"
    """A JSON array of strings, of which the answer is one."""
    LARK = "lark"
    """A context-free grammar in llguidance's dialect of Lark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A language that an answer is in. It was checked by whoever made it: see `glimpse.engine.text.grammar_check`."""

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The choice of tokens. Ranges are checked by whoever makes one; here they are true."""

    max_tokens: int = 4096
    """The most tokens generated, at least 1; the core lowers it to what the context window leaves."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus: the fewest most likely tokens whose probabilities reach this sum. 1 keeps all."""
    top_k: int = 0
    """The number of most likely tokens kept; 0 keeps all."""
    min_p: float = 0.0
    """Tokens below this share of the largest probability are dropped."""
    frequency_penalty: float = 0.0
    """Subtracted from a logit once for each time its token was generated."""
    presence_penalty: float = 0.0
    """Subtracted from a logit once if its token was generated at all."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen so far, prompt included (arXiv 1909.05858)."""
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    """Token id → what is added to its logit."""
    seed: int | None = None
    """Makes the draws repeatable; None draws afresh."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; the front end watches for them, the engine never sees them in tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer, beside the model's end tokens. They are not part of the text."""
    min_tokens: int = 0
    """End tokens and stop token ids are not generated before this many tokens."""
    ignore_eos: bool = False
    """The model's end tokens do not end the answer."""
    logprobs: int | None = None
    """None: none are returned. k: each token's log-probability and those of the k most likely tokens."""
    grammar: Grammar | None = None
    """The language that the whole answer is in, unless it is cut by `max_tokens`; None leaves it free."""

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def penalises(self) -> bool:
        """What was said before changes the logits."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def adjusts(self) -> bool:
        """A token is not chosen from the model's logits alone.

        Such choices are made on the host, when all tokens before are known.
        """
        return bool(self.penalises or self.logit_bias or self.min_tokens or self.grammar is not None)
