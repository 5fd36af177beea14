"""Documents with long strings are parsed as any other, without a long call that keeps other threads waiting."""

import json
import sys
import threading
import time
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from glimpse.server.codec import long_strings
from glimpse.server.codec.document import DecodeError, JsonDocument
from glimpse.server.codec.long_strings import shorten

LONG = 20
"""Characters of a long string in these tests."""
TOKENS = st.sampled_from(
    [
        *'{}[]:,"\\ \n1',
        '"',
        '":"',
        '","',
        '"a"',
        '\\"',
        "\\\\",
        "\\u0041",
        "é",
        "\x01",
        "\x7f",
        "x" * LONG,
        "y" * 3 * LONG,
    ]
)
TEXTS = st.text(max_size=5) | st.sampled_from(["x" * LONG, "y" * 2 * LONG, 'z"\\' + "z" * LONG, "\\" * 9, "é" * LONG])
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=12
)


def outcome(document: bytes) -> Any:
    try:
        return JsonDocument(document).parse()
    except DecodeError as error:
        return error.message


def both(document: bytes, num_bytes: int = LONG) -> tuple[Any, Any]:
    """Returns what comes of a document with long strings taken out, and without."""
    with mock.patch.object(long_strings, "MIN_BYTES", num_bytes):
        shortened = outcome(document)
    with mock.patch.object(long_strings, "MIN_BYTES", 1 << 40):
        return shortened, outcome(document)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.integers(1, LONG))
def test_values_are_the_same(value: Any, is_ascii: bool, indent: int | None, num_bytes: int) -> None:
    document = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode(errors="surrogatepass")
    shortened, plain = both(document, num_bytes)
    assert shortened == plain


@given(st.lists(TOKENS, max_size=30).map("".join), st.integers(1, LONG))
def test_errors_are_the_same(text: str, num_bytes: int) -> None:
    shortened, plain = both(text.encode(), num_bytes)
    assert shortened == plain


@given(st.lists(TOKENS, max_size=12).map("".join), st.integers(0, 200))
def test_errors_after_long_strings_are_the_same(text: str, cut: int) -> None:
    document = b'{"a": "' + b"x" * 50 + b'",\n "b": ["' + b"y" * 60 + b'", ' + text.encode() + b'], "a": "\xff"}'
    for part in (document, document[:cut]):
        shortened, plain = both(part)
        assert shortened == plain


def test_long_strings_are_taken_out() -> None:
    url, text = "A" * long_strings.MIN_BYTES, "B" * (3 * long_strings.MIN_BYTES + 1)
    value = {"n": [1, '\\"', {"url": url}, "\\", text, "C" * 1000], text: ""}
    document = json.dumps(value).encode()
    assert len(shorten(document).document) < 2000
    assert outcome(document) == value


def test_other_threads_run_while_a_long_document_is_parsed() -> None:
    document = json.dumps(["A" * (1 << 20)] * 60).encode()
    parsing = threading.Thread(target=outcome, args=(document,))
    num_turns, interval = 0, sys.getswitchinterval()
    sys.setswitchinterval(0.0001)  # a thread asks for its turn at once: 70 turns, of which by default 12 are left
    try:
        parsing.start()
        while parsing.is_alive():
            time.sleep(0.0001)
            num_turns += 1
    finally:
        sys.setswitchinterval(interval)
    assert num_turns > 10  # a few, if the document were parsed in a single call
