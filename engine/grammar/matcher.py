"""Grammars compiled for a checkpoint's tokens and followed token by token, by llguidance. Knows no torch, no texts."""

import json
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from glimpse.engine.cpu_policy import lower_thread_priority
from glimpse.engine.grammar.lark import GrammarError, to_lark
from glimpse.engine.sampling_params import Grammar

BoolArray = npt.NDArray[np.bool_]

_LIMITS = LLParserLimits(
    initial_lexer_fuel=250_000,  # to compile: so much is spent in about 20 ms
    step_lexer_fuel=200_000,  # for one token: about 14 ms
    step_max_items=50_000,
    max_grammar_size=100_000,
    max_lexer_states=50_000,  # 1 or 2 KB each
    verbose_errors=False,
)
_NUM_COMPILED = 32
"""Grammars that are kept compiled: the next request often comes with the last one's."""
_NUM_THREADS = 2
"""So that one grammar which takes a second does not hold up those that take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What the tokens of a checkpoint are."""

    tokens: Sequence[bytes]
    """What each adds to the text's UTF-8, by its id; nothing for ids that no text needs."""
    special_ids: Sequence[int]
    """Tokens that text is never made of. A grammar may name them, as `<|im_end|>`."""


class GrammarCompiler:
    """Compiles grammars in threads of its own, and keeps the last ones. Safe to use in several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.num_tokens = len(vocabulary.tokens)
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)))
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "grammar", initializer=lower_thread_priority)
        self._kept = lru_cache(maxsize=_NUM_COMPILED)(self._compile_soon)

    def compile(self, grammar: Grammar) -> Future[LLMatcher]:
        """Sees to it that a grammar is compiled, and does not wait for it. What comes of it `begin` says."""
        return self._kept(grammar)

    def begin(self, grammar: Grammar) -> LLMatcher:
        """A matcher of one's own at the beginning of a grammar; its lexer is shared with others that this gave.

        Waits for the compiler, unless `compile` was called in good time.

        Raises:
            GrammarError: the grammar's text is not what its kind says. What else is wrong, the matcher says.
        """
        compiled = self._kept(grammar)
        if (error := compiled.exception()) is not None:
            raise GrammarError(str(error)) from error  # the kept one would gather the frames of all its callers
        return compiled.result().deep_copy()

    def begin_afresh(self, grammar: Grammar) -> LLMatcher:
        """The same with a new lexer."""
        self._kept.cache_clear()
        return self.begin(grammar)

    def _compile_soon(self, grammar: Grammar) -> Future[LLMatcher]:
        return self._threads.submit(self._compile, grammar)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        document = {"grammars": [{"lark_grammar": to_lark(grammar)}]}
        return LLMatcher(self._tokenizer, json.dumps(document), log_level=0, limits=_LIMITS)


class Matcher:
    """Follows one answer through its grammar."""

    def __init__(self, compiler: GrammarCompiler, grammar: Grammar) -> None:
        self._compiler = compiler
        self._grammar = grammar
        self._token_ids: list[int] = []
        self._is_fresh = False
        self._matcher: LLMatcher | None = None  # compiled when it is needed

    def allowed(self) -> BoolArray:
        """Which tokens can follow, [tokens]. Those that end an answer are not among them.

        Raises:
            GrammarError: the grammar cannot be compiled, is too complex at this place, or is not complete though
                nothing can follow.
        """
        if self._matcher is None:
            self._matcher = self._compiler.begin(self._grammar)
            if self._token_ids:  # of an answer that goes on here
                self._matcher.consume_tokens(self._token_ids)
        bitmask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            bitmask = self._retry(self._matcher.get_error())
        if self._matcher.is_stopped():
            return np.zeros(self._compiler.num_tokens, dtype=np.bool_)
        bits = np.frombuffer(bitmask, dtype=np.uint8)
        return np.unpackbits(bits, count=self._compiler.num_tokens, bitorder="little").view(np.bool_)

    @property
    def complete(self) -> bool:
        """The answer may end here."""
        return self._matcher is not None and self._matcher.is_accepting()

    def accept(self, token_id: int) -> None:
        """Goes on with a token that is allowed."""
        self._token_ids.append(token_id)
        if self._matcher is not None:
            self._matcher.consume_token(token_id)

    def _retry(self, error: str) -> bytes:
        """The lexer, which answers share, has limits: of this answer alone it may keep them."""
        if not self._is_fresh and self._token_ids:
            self._is_fresh = True
            self._matcher = self._compiler.begin_afresh(self._grammar)
            self._matcher.consume_tokens(self._token_ids)
            bitmask = self._matcher.compute_bitmask()
            if not self._matcher.is_error():
                return bitmask
        raise GrammarError(_reason(error))


class _Tokens:
    """A vocabulary as llguidance wants it, which would ask it to make tokens only of texts that it forces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = list(vocabulary.special_ids)
        self.eos_token_id = None  # which tokens end an answer is the sampler's affair
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError


def _reason(error: str) -> str:
    """The part of llguidance's message that says what is wrong: without excerpts of the source and its own state."""
    error = error.partition("\n<non-verbose/>")[0].rpartition("failed to compile JSON schema: ")[2].strip()
    if error.startswith("NoExtension"):
        return "nothing that can be generated satisfies it"
    if error.startswith("oneOf constraints"):
        return "the alternatives of oneOf may overlap as far as one can tell; those of anyOf may"
    named = re.search(r"^error: (.*)", error, re.MULTILINE)  # the regex parser's own message, below an excerpt
    return (named[1] if named else error.partition("\n")[0])[:300]
