"""Refuses grammars that cannot be enforced, before an engine sees them. Knows no torch.

A grammar is compiled as the engine will, but for a vocabulary of single bytes, which is made in no time.
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
"""One may use the next; a thread's stack holds some thousands."""

_LARK_OPTIONS = {"no_forcing", "allow_initial_skip"}
_LARK_ATTRIBUTE = re.compile(r"\[[^\]]*\b(temperature|stop|stop_capture)\b")


class GrammarChecker:
    """Knows which grammars a checkpoint's answers can be held to. Safe to use in several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._compiler = GrammarCompiler(_bytes_and_special_tokens(tokenizer))

    def check(self, grammar: Grammar) -> None:
        """Takes milliseconds; hundreds of them for the largest grammars, in which other threads run.

        Raises:
            GrammarError: the grammar cannot be enforced.
        """
        num_bytes = len(grammar.text.encode(errors="surrogatepass"))
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"it has {num_bytes} bytes; the most are {MAX_GRAMMAR_BYTES}")
        _check_text(grammar)
        Matcher(self._compiler, grammar).allowed()


def _bytes_and_special_tokens(tokenizer: Tokenizer) -> Vocabulary:
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
        raise GrammarError(f"it has {num_definitions} definitions; the most are {MAX_LARK_DEFINITIONS}")
    if attribute := _LARK_ATTRIBUTE.search(text.code):
        raise GrammarError(f"the attribute {attribute[1]!r} cannot be enforced")
    for inline in text.inlines:
        match inline.keyword:
            case "%json":
                check_schema(inline.value)
            case "%llguidance" if not isinstance(inline.value, dict) or not inline.value.keys() <= _LARK_OPTIONS:
                raise GrammarError(f"%llguidance {json.dumps(inline.value)}: only {_LARK_OPTIONS} can be set")
            case _:
                pass
