"""The tokenizer of most tiny checkpoints: a byte-level BPE with a few merges, as Qwen's."""

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "o n", "r e", "e r", "o u", "Ġ a", "i s", "Ġ is", "i m", "a g", "Ġ w")
PLAIN_TOKENS = (*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES))
"""In the order of token ids; special tokens follow."""
VOCAB_SIZE = 384
"""Rows of the embedding table: more than the tokenizer's tokens, as in published checkpoints."""


def make_tokenizer(special_tokens: Sequence[str] = SPECIAL_TOKENS) -> Tokenizer:
    """Returns a byte-level BPE tokenizer with a few merges and Qwen's special tokens."""
    vocab = {token: index for index, token in enumerate(PLAIN_TOKENS)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), behavior="isolated")
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return tokenizer


def ids_of(special_tokens: Sequence[str]) -> dict[str, int]:
    """Returns the ids of special tokens, which follow the plain ones."""
    return {token: index for index, token in enumerate(special_tokens, len(PLAIN_TOKENS))}


def readable_token_ids(tokenizer: Tokenizer) -> list[int]:
    texts = {token_id: tokenizer.decode([token_id]) for token_id in range(tokenizer.get_vocab_size())}
    return [token_id for token_id, text in texts.items() if text.isascii() and text.isprintable() and text]
