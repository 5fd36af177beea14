"""Refuses grammars that cannot be enforced before they reach the engine. Independent of torch.

Compiles a grammar as the engine does, but for a vocabulary of single bytes, which is fast to build.
"""

import json
import re

from glimpse.engine.grammar.json_schema import check_schema
from glimpse.engine.grammar.lark import GrammarError, parse_choices, parse_json, read_lark
from glimpse.engine.grammar.matcher import GrammarCompiler, Matcher, Vocabulary
from glimpse.engine.sampling_params import Grammar, GrammarKind
from glimpse.engine.text.tokenizer import Tokenizer

__all__ = ["GrammarChecker", "GrammarError"]

MAX_GRAMMAR_BYTES = 128 << 10
MAX_LARK_DEFINITIONS = 500
"""Definitions may be nested in one another; a thread's stack holds a few thousand."""

_LARK_OPTIONS = ["allow_initial_skip", "no_forcing"]
_LARK_ATTRIBUTE = re.compile(r"\[[^\]]*\b(temperature|stop|stop_capture)\b")


class GrammarChecker:
    """Checks grammars for one checkpoint. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._compiler = GrammarCompiler(_byte_vocabulary(tokenizer))

    def check(self, grammar: Grammar) -> None:
        """Checks a grammar. Takes milliseconds; hundreds for the largest grammars, during which other threads run.

        Raises:
            GrammarError: the grammar cannot be enforced.
        """
        num_bytes = len(grammar.text.encode(errors="surrogatepass"))
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"expected at most {MAX_GRAMMAR_BYTES} bytes, got {num_bytes}")
        _check_text(grammar)
        Matcher(self._compiler, grammar).allowed()


def _byte_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    tokens = [b""] * tokenizer.vocab_size
    plain_ids = (token_id for token_id in range(tokenizer.vocab_size) if token_id not in tokenizer.special_ids)
    for byte, token_id in zip(range(256), plain_ids, strict=False):
        tokens[token_id] = bytes([byte])
    for token_id in tokenizer.special_ids:
        tokens[token_id] = tokenizer.token_bytes(token_id)
    return Vocabulary(tokens=tokens, special_ids=sorted(tokenizer.special_ids))


def _check_text(grammar: Grammar) -> None:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            check_schema(parse_json(grammar.text))
        case GrammarKind.CHOICE:
            parse_choices(grammar.text)
        case GrammarKind.LARK:
            _check_lark(grammar.text)
        case GrammarKind.JSON_OBJECT | GrammarKind.REGEX:
            pass


def _check_lark(lark: str) -> None:
    text = read_lark(lark)
    num_definitions = text.code.count(":")
    if num_definitions > MAX_LARK_DEFINITIONS:
        raise GrammarError(f"expected at most {MAX_LARK_DEFINITIONS} definitions, got {num_definitions}")
    if attribute := _LARK_ATTRIBUTE.search(text.code):
        raise GrammarError(f"the attribute {attribute[1]!r} cannot be enforced")
    for inline in text.inlines:
        match inline.keyword:
            case "%json":
                check_schema(inline.value)
            case "%llguidance" if not isinstance(inline.value, dict) or not set(inline.value) <= set(_LARK_OPTIONS):
                raise GrammarError(f"%llguidance: expected only {_LARK_OPTIONS}, got {json.dumps(inline.value)}")
            case _:
                pass
