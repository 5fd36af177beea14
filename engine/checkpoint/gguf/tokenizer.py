"""The tokenizer in a GGUF file as the `tokenizer.json` and `tokenizer_config.json` of the same model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glimpse.engine.checkpoint.families.reading.tokenizer_files import QWEN2_WORDS, byte_level_document
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.text.token_spelling import SPACE
from glimpse.engine.errors import CheckpointError

_NORMAL, _UNKNOWN, CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""Values of `tokenizer.ggml.token_type` (llama.h)."""
_MAX_TOKEN_CHARACTERS = 1024

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = QWEN2_WORDS.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
_QWEN35_WORDS = QWEN2_WORDS.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi-3 behind which spaces remain; those behind others are no part of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreTokenizer:
    """How a byte-level BPE divides a text into words."""

    words: tuple[str, ...]
    """Expressions. Each divides what the one before has left into its matches and what is between them."""
    composes: bool = False
    """Texts are normalized to NFC."""
    ignores_merges: bool = False
    """Words of the vocabulary are tokens, also where no merges lead to them."""
    adds_bos: bool = False
    """Whether texts begin with a token of their own, if the metadata does not say."""


_LLAMA3 = _PreTokenizer(words=(_LLAMA3_WORDS,), ignores_merges=True, adds_bos=True)
_DIGITS = _PreTokenizer(words=(r"\p{N}", _GPT2_WORDS))
_PRE_TOKENIZERS: Mapping[str, _PreTokenizer] = {
    "default": _PreTokenizer(words=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _PreTokenizer(words=(_GPT2_WORDS,)),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "pixtral": _LLAMA3,
    "chatglm-bpe": _PreTokenizer(words=(_LLAMA3_WORDS,)),
    "glm4": _PreTokenizer(words=(_LLAMA3_WORDS,), ignores_merges=True),
    "gpt-4o": _PreTokenizer(words=(_GPT4O_WORDS,)),
    "smaug-bpe": _PreTokenizer(words=(_LLAMA3_WORDS,)),
    "tekken": _PreTokenizer(words=(_TEKKEN_WORDS,), ignores_merges=True, adds_bos=True),
    "qwen2": _PreTokenizer(words=(QWEN2_WORDS,), composes=True),
    "qwen35": _PreTokenizer(words=(_QWEN35_WORDS,), composes=True),
    "deepseek-r1-qwen": _PreTokenizer(words=(QWEN2_WORDS,)),
}
"""By `tokenizer.ggml.pre` (`llama_vocab` in llama.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """The tokens of a file, and what each is."""

    tokens: Sequence[str]
    kinds: Sequence[int]

    @property
    def ids(self) -> dict[str, int]:
        """The id of each token; those that only fill gaps are left out."""
        return {token: index for index, token in enumerate(self.tokens) if self.kinds[index] != _UNUSED}

    @property
    def added(self) -> list[tuple[int, dict[str, Any]]]:
        """Tokens that texts are searched for before anything else: id and `tokenizer.json`'s fields."""
        special = {CONTROL: True, _UNKNOWN: True, _USER_DEFINED: False}
        return [
            (index, {"content": token, "special": special[kind]})
            for index, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in special
        ]


def read_tokenizer_documents(
    gguf: Gguf, renamed: Mapping[int, str] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what `tokenizer.json` and `tokenizer_config.json` say.

    Args:
        renamed: texts of tokens, by their ids, that differ from the file's.

    Raises:
        CheckpointError: the tokenizer's kind is not supported, or what belongs together has different lengths.
    """
    vocabulary = _vocabulary(gguf, renamed or {})
    match gguf.get("tokenizer.ggml.model"):
        case "gpt2":
            document, adds_bos = _byte_level(gguf, vocabulary)
        case "llama":
            document, adds_bos = _sentencepiece(gguf, vocabulary), True
        case "gemma4":
            document, adds_bos = _sentencepiece(gguf, _with_marks(vocabulary)), True
            document["model"]["merges"] = [_pair(merge) for merge in gguf.texts("tokenizer.ggml.merges") or ()]
        case other:
            raise CheckpointError(
                f"GGUF metadata: 'tokenizer.ggml.model': expected gpt2, llama or gemma4, got {other!r:.80}"
            )
    named = {
        name: _token(gguf, vocabulary, key)
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    document["post_processor"] = _post_processor(
        document["post_processor"],
        first=named["bos"] if _flag(gguf, "add_bos_token", default=adds_bos) else None,
        last=named["eos"] if _flag(gguf, "add_eos_token", default=False) else None,
    )
    return document, {f"{name}_token": token[1] for name, token in named.items() if token is not None}


def _vocabulary(gguf: Gguf, renamed: Mapping[int, str]) -> _Vocabulary:
    tokens = gguf.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise CheckpointError("GGUF metadata: 'tokenizer.ggml.tokens': expected the vocabulary, got none")
    for index, text in renamed.items():
        tokens[index] = text
    if (longest := max(map(len, tokens))) > _MAX_TOKEN_CHARACTERS:
        raise CheckpointError(
            f"GGUF metadata: 'tokenizer.ggml.tokens': expected at most {_MAX_TOKEN_CHARACTERS} characters,"
            f" got {longest}"
        )
    kinds = gguf.numbers("tokenizer.ggml.token_type")
    _check_length("token_type", tokens, kinds)
    vocabulary = _Vocabulary(tokens=tokens, kinds=[_NORMAL] * len(tokens) if kinds is None else kinds.tolist())
    used = sum(kind != _UNUSED for kind in vocabulary.kinds)
    if len(vocabulary.ids) != used:
        raise CheckpointError("GGUF metadata: 'tokenizer.ggml.tokens': expected each token once, got one twice")
    return vocabulary


def _check_length(name: str, tokens: Sequence[str], found: Any) -> None:
    if found is not None and len(found) != len(tokens):
        raise CheckpointError(
            f"GGUF metadata: 'tokenizer.ggml.{name}': expected {len(tokens)} values, one for each token,"
            f" got {len(found)}"
        )


def _byte_level(gguf: Gguf, vocabulary: _Vocabulary) -> tuple[dict[str, Any], bool]:
    name, merges = gguf.get("tokenizer.ggml.pre") or "default", gguf.texts("tokenizer.ggml.merges")
    if name not in _PRE_TOKENIZERS:
        supported = ", ".join(_PRE_TOKENIZERS)
        raise CheckpointError(f"GGUF metadata: 'tokenizer.ggml.pre': expected one of {supported}; got {name!r:.80}")
    if merges is None:
        raise CheckpointError("GGUF metadata: 'tokenizer.ggml.merges': expected the merges of a BPE, got none")
    pre = _PRE_TOKENIZERS[str(name)]
    document = byte_level_document(
        vocabulary.ids, merges, vocabulary.added, words=pre.words, normalizer={"type": "NFC"} if pre.composes else None
    )
    document["model"]["ignore_merges"] = pre.ignores_merges
    return document, pre.adds_bos


def _sentencepiece(gguf: Gguf, vocabulary: _Vocabulary) -> dict[str, Any]:
    """Returns the document of a SentencePiece BPE, as transformers writes Llama 2's."""
    scores = gguf.numbers("tokenizer.ggml.scores")
    if scores is None:
        raise CheckpointError("GGUF metadata: 'tokenizer.ggml.scores': expected a score for each token, got none")
    _check_length("scores", vocabulary.tokens, scores)
    unknown = next(
        (token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind == _UNKNOWN), None
    )
    is_phi3 = gguf.get("general.architecture") == "phi3"
    begins_with_space = _flag(gguf, "add_space_prefix", default=True)
    to_spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "single_word": False,
                "lstrip": False,
                "normalized": False,
                "rstrip": is_phi3 and token["special"] and token["content"] not in _UNSTRIPPED,
                **token,
            }
            for index, token in vocabulary.added
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *([{"type": "Prepend", "prepend": SPACE}] if begins_with_space else []),
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                to_spaces,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begins_with_space else []),
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary.ids,
            "merges": _merges(vocabulary, scores.tolist()),
        },
    }


_MARKS = frozenset(
    ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')
)
"""Special tokens of Gemma 4 that llama.cpp's converter calls the user's, so that llama.cpp shows them."""


def _with_marks(vocabulary: _Vocabulary) -> _Vocabulary:
    kinds = [
        CONTROL if token in _MARKS else kind for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    ]
    return replace(vocabulary, kinds=kinds)


def _pair(merge: str) -> tuple[str, str]:
    """Returns the halves of a merge, of which the first may begin with a space."""
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1 :]


def _merges(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Returns the pairs that SentencePiece merges: to the pieces of the vocabulary, those of the highest scores first
    (https://github.com/google/sentencepiece, src/bpe_model.cc)."""
    ids, kinds = vocabulary.ids, vocabulary.kinds
    pieces = [(token, index) for token, index in ids.items() if kinds[index] in (_NORMAL, _USER_DEFINED)]
    pieces.sort(key=lambda each: -scores[each[1]])
    found: list[tuple[str, str]] = []
    for piece, _ in pieces:
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        found += sorted(
            ((left, right) for left, right in halves if left in ids and right in ids),
            key=lambda pair: (ids[pair[0]], ids[pair[1]]),
        )
    return found


def _token(gguf: Gguf, vocabulary: _Vocabulary, key: str) -> tuple[int, str] | None:
    """Returns the id and the text of a token that the metadata names."""
    found = gguf.get(f"tokenizer.ggml.{key}_token_id")
    if type(found) is not int or not 0 <= found < len(vocabulary.tokens):
        return None
    return found, vocabulary.tokens[found]


def _flag(gguf: Gguf, name: str, *, default: bool) -> bool:
    found = gguf.get(f"tokenizer.ggml.{name}")
    return default if found is None else bool(found)


def _post_processor(
    inner: dict[str, Any] | None, *, first: tuple[int, str] | None, last: tuple[int, str] | None
) -> dict[str, Any] | None:
    """Returns the step that puts a token before each text and behind it, after an inner step."""
    if first is None and last is None:
        return inner
    before, behind = ([{"SpecialToken": {"id": each[1], "type_id": 0}}] if each else [] for each in (first, last))
    text = {"Sequence": {"id": "A", "type_id": 0}}
    outer = {
        "type": "TemplateProcessing",
        "single": [*before, text, *behind],
        "pair": [*before, text, {"Sequence": {"id": "B", "type_id": 1}}, *behind],
        "special_tokens": {
            token: {"id": token, "ids": [index], "tokens": [token]} for index, token in filter(None, (first, last))
        },
    }
    return outer if inner is None else {"type": "Sequence", "processors": [inner, outer]}
