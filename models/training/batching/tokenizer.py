"""The checkpoint's tokenizer: byte-level BPE whose merges spell out whole words of the tasks' own texts.

A word after a space is one token if the tasks use it; all other text is bytes. Text read from an image is quoted, so it
is always one token per character. Pre-tokenization is that of the published tokenizers.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from models.family import SPECIAL_TOKENS, WORDS

MARKUP = ("<tool_call>", "</tool_call>", "<tools>", "</tools>", "<tool_response>", "</tool_response>")
"""Added tokens that are text: answers contain them."""

ROLES = ("system", "user", "assistant")

SPACE = "Ġ"
"""A space in the alphabet of byte-level BPE."""


def learn_tokenizer(texts: Iterable[str], *, max_words: int) -> Tokenizer:
    """Returns a tokenizer with the bytes, the most frequent words with all their prefixes, and the special tokens.

    Args:
        texts: texts to fit.
        max_words: largest number of words.
    """
    counts: Counter[str] = Counter()
    cut = _cutter()
    for text in texts:
        counts.update(word for word, _ in cut.pre_tokenize_str(text))
    kinds = (_is_spaced, _is_capitalised, _is_punctuation)
    words = [word for word, count in counts.most_common() if count > 1 and any(kind(word) for kind in kinds)]
    kept = words[:max_words]
    # Merges after a space come first, because earlier merges are applied first.
    chains = [*filter(_is_spaced, kept), *(word for word in kept if not _is_spaced(word)), *ROLES]
    return make_tokenizer(chains)


def make_tokenizer(words: Sequence[str]) -> Tokenizer:
    """Returns the tokenizer of these words, given in the byte-level alphabet in order of precedence."""
    merges = list(dict.fromkeys((word[:end], word[end]) for word in words for end in range(1, len(word))))
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _cutter()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    return tokenizer


def _cutter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _is_spaced(word: str) -> bool:
    return re.fullmatch(SPACE + "([a-z]+|[AI])", word) is not None


def _is_capitalised(word: str) -> bool:
    return re.fullmatch("[A-Z][a-z]+", word) is not None


def _is_punctuation(word: str) -> bool:
    return re.fullmatch(f"{SPACE}?[!-/:-@\\[-`{{-~]*Ċ*", word) is not None
