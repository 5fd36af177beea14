"""Turns grammars into grammars that can be enforced before they reach the engine. Independent of torch.

Compiles a grammar as the engine does, but for a vocabulary of single bytes, which is fast to build.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from glimpse.engine.checkpoint.grammar.json_schema import EnforcedSchema, enforceable
from glimpse.engine.checkpoint.grammar.lark import GrammarError, parse_choices, parse_json, read_lark, replace_schemas
from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler, Matcher, Vocabulary
from glimpse.engine.checkpoint.grammar.relaxation import relax
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind

__all__ = ["EnforcedGrammar", "GrammarChecker", "GrammarError"]

MAX_GRAMMAR_BYTES = 128 << 10
_MAX_COMPILED_BYTES = 4 * MAX_GRAMMAR_BYTES
_LEAST_BYTES = 1 << 10
"""Compiling the smallest grammar takes as long as about this much of a larger one."""
MAX_LARK_DEFINITIONS = 500
"""Definitions may be nested in one another; a thread's stack holds a few thousand."""

_LARK_OPTIONS = ["allow_initial_skip", "no_forcing"]
_LARK_ATTRIBUTE = re.compile(r"\[[^\]]*\b(temperature|stop|stop_capture)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcedGrammar:
    """A grammar that allows at least what the client's grammar allows, and can be enforced in full."""

    grammar: Grammar
    unenforced: tuple[str, ...] = ()
    """Keywords of JSON Schemas in the client's grammar that are not enforced, as JSON pointers."""


class GrammarTooLargeError(GrammarError):
    """A grammar has too many bytes, or a request has too many to compile."""


class CheckStoppedError(Exception):
    """Nobody waits for the check any more."""


class CompileBudget:
    """What may still be compiled for a request.

    A grammar is compiled again without the keywords that are refused, and the grammar of all tools again after
    each tool alone.
    """

    def __init__(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Once `is_stopped` returns True, nothing more is compiled."""
        self._num_left = _MAX_COMPILED_BYTES
        self._is_stopped = is_stopped

    def go_on(self) -> None:
        """Raises CheckStoppedError once nobody waits for the check."""
        if self._is_stopped():
            raise CheckStoppedError

    def spend(self, grammar: Grammar) -> None:
        """Counts a grammar that is about to be compiled.

        Raises:
            GrammarTooLargeError: it is more than is left.
            CheckStoppedError: nobody waits for the check.
        """
        self.go_on()
        self._num_left -= max(_LEAST_BYTES, len(grammar.text))
        if self._num_left < 0:
            raise GrammarTooLargeError("the schemas of the request take too long to check: send smaller or fewer ones")


class GrammarChecker:
    """Checks grammars for one checkpoint. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._compiler = GrammarCompiler(_byte_vocabulary(tokenizer))

    def check(self, grammar: Grammar, budget: CompileBudget | None = None) -> EnforcedGrammar:
        """Returns the grammar without the keywords of JSON Schemas that cannot be enforced.

        Takes milliseconds; hundreds for the largest grammars, during which other threads run. `budget` is that of the
        request.

        Raises:
            GrammarError: the grammar is invalid, too large or too complex.
            CheckStoppedError: the budget's request has ended.
        """
        budget = budget or CompileBudget()
        enforced = check_text(grammar)
        while True:
            budget.spend(enforced.grammar)
            try:
                Matcher(self._compiler, replace(enforced.grammar, trigger=None)).allowed()  # else it would be dropped
                return enforced
            except GrammarError as error:
                relaxed = _relaxed(enforced, str(error))
                if relaxed == enforced:
                    raise
                enforced = relaxed


def check_text(grammar: Grammar) -> EnforcedGrammar:
    """Does what `GrammarChecker.check` can do without compiling the grammar.

    Raises:
        GrammarError: the grammar is invalid, or it is a GrammarTooLargeError.
    """
    num_bytes = len(grammar.text.encode(errors="surrogatepass"))
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise GrammarTooLargeError(f"expected at most {MAX_GRAMMAR_BYTES} bytes, got {num_bytes}")
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return _with_schema(grammar, enforceable(parse_json(grammar.text)))
        case GrammarKind.CHOICE:
            parse_choices(grammar.text)
        case GrammarKind.LARK:
            return _check_lark(grammar)
        case GrammarKind.JSON_OBJECT | GrammarKind.REGEX:
            pass
    return EnforcedGrammar(grammar=grammar)


def _relaxed(enforced: EnforcedGrammar, reason: str) -> EnforcedGrammar:
    if enforced.grammar.kind is not GrammarKind.JSON_SCHEMA:
        return enforced
    schema = EnforcedSchema(schema=json.loads(enforced.grammar.text), unenforced=enforced.unenforced)
    return _with_schema(enforced.grammar, relax(schema, reason))


def _with_schema(grammar: Grammar, enforced: EnforcedSchema) -> EnforcedGrammar:
    if enforced.schema != json.loads(grammar.text):
        grammar = replace(grammar, text=json.dumps(enforced.schema))
    return EnforcedGrammar(grammar=grammar, unenforced=enforced.unenforced)


def _byte_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    tokens = [b""] * tokenizer.vocab_size
    plain_ids = (token_id for token_id in range(tokenizer.vocab_size) if token_id not in tokenizer.special_ids)
    for byte, token_id in zip(range(256), plain_ids, strict=False):
        tokens[token_id] = bytes([byte])
    for token_id in tokenizer.special_ids:
        tokens[token_id] = tokenizer.token_bytes(token_id)
    return Vocabulary(tokens=tokens, special_ids=sorted(tokenizer.special_ids))


def _check_lark(grammar: Grammar) -> EnforcedGrammar:
    text = read_lark(grammar.text)
    num_definitions = text.code.count(":")
    if num_definitions > MAX_LARK_DEFINITIONS:
        raise GrammarError(f"expected at most {MAX_LARK_DEFINITIONS} definitions, got {num_definitions}")
    if attribute := _LARK_ATTRIBUTE.search(text.code):
        raise GrammarError(f"the attribute {attribute[1]!r} cannot be enforced")
    for inline in text.inlines:
        if inline.keyword == "%llguidance" and not _are_allowed(inline.value):
            raise GrammarError(f"%llguidance: expected only {_LARK_OPTIONS}, got {json.dumps(inline.value)}")
    unenforced: list[str] = []

    def enforced_text(schema: Any) -> str:
        enforced = enforceable(schema)
        unenforced.extend(enforced.unenforced)
        return json.dumps(enforced.schema)

    lark = replace_schemas(grammar.text, enforced_text)
    return EnforcedGrammar(grammar=replace(grammar, text=lark), unenforced=tuple(dict.fromkeys(unenforced)))


def _are_allowed(options: object) -> bool:
    return isinstance(options, dict) and set(options) <= set(_LARK_OPTIONS)
