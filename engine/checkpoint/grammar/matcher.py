"""Compiles grammars for a checkpoint's vocabulary and matches them token by token, with llguidance. No torch."""

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import RLock
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from glimpse.engine.checkpoint.grammar.lark import GrammarError, reasoning_before, to_lark
from glimpse.engine.protocol.cpu_policy import lower_thread_priority
from glimpse.engine.protocol.sampling_params import Grammar

BoolArray = npt.NDArray[np.bool_]

_LIMITS = LLParserLimits(
    initial_lexer_fuel=250_000,  # to compile: about 20 ms
    step_lexer_fuel=200_000,  # per token: about 14 ms
    step_max_items=50_000,
    max_grammar_size=100_000,
    max_lexer_states=50_000,  # 1 or 2 KB each
    verbose_errors=False,
)
_NUM_COMPILED = 32
"""Compiled grammars that are kept though nobody holds them: consecutive requests often use the same one."""
_ANSWER = "answer"
"""Name of the grammar of what follows the reasoning."""
_NUM_THREADS = 2
"""Two, so that a grammar that takes a second does not delay those that take milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a checkpoint."""

    tokens: Sequence[bytes]
    """Token id → UTF-8 bytes; empty for unused ids."""
    special_ids: Sequence[int]
    """Tokens that plain text never encodes to. A grammar may name them, such as `<|im_end|>`."""


class GrammarCompiler:
    """Compiles grammars in its own threads. Thread-safe.

    It keeps the latest. Whoever holds the future of a grammar holds what the grammar is compiled to.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.num_tokens = len(vocabulary.tokens)
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)))
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "grammar", initializer=lower_thread_priority)
        self._lock = RLock()
        self._held = WeakValueDictionary[Grammar, Future[LLMatcher]]()
        self._latest = OrderedDict[Grammar, Future[LLMatcher]]()

    def compile(self, grammar: Grammar) -> Future[LLMatcher]:
        """Starts compiling a grammar unless its future is held, and does not wait. `begin` reports errors."""
        with self._lock:
            compiled = self._held.get(grammar)
            if compiled is None:
                compiled = Future[LLMatcher]()
                self._threads.submit(self._compile_once, grammar, compiled)
            return self._keep(grammar, compiled)

    def begin(self, grammar: Grammar) -> LLMatcher:
        """Returns a new matcher at the beginning of a grammar; matchers of a grammar share its lexer.

        Waits until the grammar is compiled. If that was asked for before and still waits behind other grammars, this
        thread compiles it.

        Raises:
            GrammarError: the text does not match the grammar's kind. Other errors are reported by the matcher.
        """
        with self._lock:
            is_held = grammar in self._held
            compiled = self.compile(grammar)
        if is_held:
            self._compile_once(grammar, compiled)
        return self._begun(compiled)

    def begin_with_new_lexer(self, grammar: Grammar) -> LLMatcher:
        """Like `begin`, with a lexer that no other matcher has yet."""
        with self._lock:
            own = self._keep(grammar, Future[LLMatcher]())
        self._compile_once(grammar, own)
        return self._begun(own)

    def _keep(self, grammar: Grammar, compiled: Future[LLMatcher]) -> Future[LLMatcher]:
        self._held[grammar] = self._latest[grammar] = compiled
        self._latest.move_to_end(grammar)
        if len(self._latest) > _NUM_COMPILED:
            self._latest.popitem(last=False)
        return compiled

    @staticmethod
    def _begun(compiled: Future[LLMatcher]) -> LLMatcher:
        if (error := compiled.exception()) is not None:
            raise GrammarError(str(error)) from error  # a kept exception would accumulate the frames of all callers
        return compiled.result().deep_copy()

    def _compile_once(self, grammar: Grammar, compiled: Future[LLMatcher]) -> None:
        """Compiles a grammar unless a thread has begun to."""
        with self._lock:
            if compiled.running() or compiled.done():
                return
            compiled.set_running_or_notify_cancel()
        try:
            compiled.set_result(self._compile(grammar))
        except Exception as error:
            compiled.set_exception(error)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        grammars = [{"name": _ANSWER, "lark_grammar": to_lark(grammar)}]
        if grammar.reasoning is not None and grammar.trigger is None:
            grammars.insert(0, {"lark_grammar": reasoning_before(_ANSWER, grammar.reasoning)})
        return LLMatcher(self._tokenizer, json.dumps({"grammars": grammars}), log_level=0, limits=_LIMITS)


class Matcher:
    """Matches one completion against its grammar.

    A grammar with a trigger is dropped where it cannot be followed: from there on, every token is allowed.
    """

    def __init__(self, compiler: GrammarCompiler, grammar: Grammar) -> None:
        self._compiler = compiler
        self._grammar = grammar
        self._token_ids: list[int] = []
        self._has_own_lexer = False
        self._is_dropped = False
        self._matcher: LLMatcher | None = None  # begun when first needed

    def allowed(self) -> BoolArray:
        """Returns which tokens may follow, bool [num_tokens], tokens that end a completion excluded.

        Raises:
            GrammarError: the grammar cannot be compiled, is too complex at this point, or is incomplete although no
                token can follow. Not with a trigger.
        """
        try:
            return self._every_token() if self._is_dropped else self._allowed()
        except GrammarError:
            if self._grammar.trigger is None:
                raise
            self._is_dropped = True
            return self._every_token()

    def _every_token(self) -> BoolArray:
        return np.ones(self._compiler.num_tokens, dtype=np.bool_)

    def _allowed(self) -> BoolArray:
        if self._matcher is None:
            self._matcher = self._compiler.begin(self._grammar)
            if self._token_ids:  # of a completion that is resumed here
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
        """True if the completion may end here."""
        return self._is_dropped or (self._matcher is not None and self._matcher.is_accepting())

    def accept(self, token_id: int) -> None:
        """Advances by an allowed token."""
        self._token_ids.append(token_id)
        if self._matcher is not None:
            self._matcher.consume_token(token_id)

    def _retry(self, error: str) -> bytes:
        """Retries with a new lexer: the shared one may have reached its limits because of other completions."""
        if not self._has_own_lexer and self._token_ids:
            self._has_own_lexer = True
            self._matcher = self._compiler.begin_with_new_lexer(self._grammar)
            self._matcher.consume_tokens(self._token_ids)
            bitmask = self._matcher.compute_bitmask()
            if not self._matcher.is_error():
                return bitmask
        raise GrammarError(_reason(error))


class _Tokens:
    """Adapter for llguidance, which would tokenize with it only texts that it forces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = list(vocabulary.special_ids)
        self.eos_token_id = None  # the sampler handles tokens that end a completion
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError


def _reason(error: str) -> str:
    """Extracts the reason from llguidance's message, without source excerpts and internal state."""
    error = error.partition("\n<non-verbose/>")[0].rpartition("failed to compile JSON schema: ")[2].strip()
    if error.startswith("NoExtension"):
        return "no text that can be generated satisfies it"
    named = re.search(r"^error: (.*)", error, re.MULTILINE)  # the regex parser's message follows an excerpt
    return (named[1] if named else error.partition("\n")[0])[:300]
