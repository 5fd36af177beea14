"""Sampling parameters of one sequence. Plain values: they cross the process boundary as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MAX_LOGIT_BIAS = 100.0
MAX_STOP_CHARACTERS = 4096
MAX_BAD_WORD_CHARACTERS = 256

GREEDY_TEMPERATURE = 1e-5
"""Lower temperatures are treated as greedy: dividing by them would overflow."""


class GrammarKind(StrEnum):
    """The notation of a grammar."""

    JSON_OBJECT = "json_object"
    """Any JSON object. `text` is empty."""
    JSON_SCHEMA = "json_schema"
    """A JSON Schema, as JSON."""
    REGEX = "regex"
    """A regular expression that matches the whole answer."""
    CHOICE = "choice"
    """A JSON array of strings. The answer is one of them."""
    LARK = "lark"
    """A context-free grammar in llguidance's dialect of Lark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningTags:
    """An answer may begin with reasoning between two tags: `opening reasoning closing text`."""

    opening: str
    closing: str
    special_ids: tuple[tuple[str, int], ...] = ()
    """(text, token id) of the special tokens with which the tags begin."""
    is_open: bool = False
    """The answer begins inside the reasoning: the prompt ends with the opening tag."""
    strips_answer: bool = True
    """White space after the closing tag is not part of the text."""
    answer: str = ""
    """Tag that may begin the text. Where white space is not part of it, the tag is not either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """Bounds the reasoning of an answer: when it has `max_tokens` tokens, the closing tag is generated."""

    tags: ReasoningTags
    max_tokens: int
    """The most tokens between the tags, at least 0."""
    closing_token_ids: tuple[int, ...]
    """The tokens of the closing tag, at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarTrigger:
    """Where in an answer its grammar begins. Until then, any token may come.

    The grammar constrains the answer from the first token that has a part of the trigger. Text before the trigger in
    this token is the grammar's to allow.
    """

    token_ids: tuple[int, ...] = ()
    """Each of these tokens is a trigger."""
    texts: tuple[str, ...] = ()
    """Each of these texts is a trigger."""
    start_pattern: str = ""
    """An answer that begins with a match of this regular expression, of at most 64 bytes, triggers the grammar. Empty:
    none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """Constrains an answer. The front end has checked it: see `glimpse.engine.checkpoint.text.grammar_check`."""

    kind: GrammarKind
    text: str = ""
    reasoning: ReasoningTags | None = None
    """The answer may begin with reasoning, which is free; the grammar constrains what follows. None: all of it."""
    trigger: GrammarTrigger | None = None
    """The grammar constrains the answer from here on, if this occurs after the reasoning. If the tokens with the
    trigger do not match the grammar, the answer stays free. None: the grammar constrains all of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are sampled and when the answer ends.

    The protos state the ranges, and the front end has checked them, for `LLM` too.
    """

    n: int = 1
    """How many answers `LLM` generates for a prompt. The engine ignores it: each answer is a request."""
    max_tokens: int = 4096
    """The most tokens to generate. The core lowers it to what the context window leaves."""
    temperature: float = 1.0
    """Divides the logits. 0 is greedy."""
    top_p: float = 1.0
    """Keeps the smallest set of most likely tokens whose probabilities reach this sum (nucleus). 1 keeps all."""
    top_k: int = 0
    """Keeps this number of most likely tokens. 0 keeps all. Callers may write -1 for it; the engine never sees it."""
    min_p: float = 0.0
    """Drops tokens whose probability is below this share of the largest one."""
    frequency_penalty: float = 0.0
    """Subtracted from a logit for each time its token was generated."""
    presence_penalty: float = 0.0
    """Subtracted once from a logit if its token was generated at all."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt and answer (arXiv 1909.05858)."""
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    """Token id → value added to its logit."""
    seed: int | None = None
    """Makes sampling repeatable. None: a random seed."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer. The front end handles them; the engine ignores them."""
    include_stop_str_in_output: bool = False
    """The answer ends with the text of `stop` that ended it, rather than before it."""
    skip_special_tokens: bool = True
    """The text leaves out the tokenizer's special tokens. The front end does; the engine ignores it."""
    bad_words: tuple[str, ...] = ()
    """Texts that the answer does not contain, at the start of a word or within one, as their own tokens spell them. The
    front end spells them; the engine ignores them."""
    bad_word_token_ids: tuple[tuple[int, ...], ...] = ()
    """The spellings of `bad_words`, each at least one token. The last token of each never follows the others."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that are generated; the model's end tokens must be among them to end the answer. None: all."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer, in addition to the model's end tokens. They are not part of the text."""
    min_tokens: int = 0
    """End tokens and stop token ids are not generated before this number of tokens, and stop strings do not count."""
    ignore_eos: bool = False
    """The model's end tokens do not end the answer."""
    logprobs: int | None = None
    """k: returns the log-probability of each token and those of the k most likely ones. None: returns none."""
    prompt_logprobs: int | None = None
    """k: returns the log-probability of each token of the prompt and those of the k most likely ones at its position.
    The whole prompt is computed then, whatever is cached. None: returns none."""
    grammar: Grammar | None = None
    """Constrains the whole answer, unless `max_tokens` cuts it. None: unconstrained."""
    reasoning_budget: ReasoningBudget | None = None
    """Bounds the reasoning with which the answer begins. None: unbounded."""

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Earlier tokens change the logits."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def needs_host_sampling(self) -> bool:
        """The next token does not depend on the model's logits alone, even before the grammar is triggered.

        It is sampled on the host, when all earlier tokens are known.
        """
        return bool(
            self.has_penalties
            or self.logit_bias
            or self.allowed_token_ids
            or self.bad_word_token_ids
            or self.min_tokens
            or (self.grammar is not None and self.grammar.trigger is None)
            or self.reasoning_budget is not None
        )
