"""What a checkpoint's `generation_config.json` says of its tokens, and what in it is not applied.

`sampling_defaults` reads the sampling parameters that it recommends.
"""

from collections.abc import Mapping
from typing import Any

from glimpse.engine.errors import CheckpointError

Tokens = tuple[int, ...]

_UNAPPLIED: Mapping[str, tuple[Any, ...]] = {
    "constraints": ([],),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": ([], {}),
    "stop_strings": ([],),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}
"""Fields that change answers of transformers' `generate` and none here, with the values, besides null, that change
nothing."""


def unapplied_fields(generation: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the fields, each with its value, that would change answers and are not applied."""
    return tuple(
        f"{name} ({value})"
        for name, neutral in _UNAPPLIED.items()
        if (value := generation.get(name)) is not None and value not in neutral
    )


def suppressed_tokens(generation: Mapping[str, Any], eos_token_ids: Tokens, vocab_size: int) -> Tokens:
    """Returns the tokens that are never sampled: `suppress_tokens`, of which those outside the vocabulary mean nothing,
    and `bad_words_ids` of one token, of which end tokens mean nothing, as in transformers.

    Raises:
        CheckpointError: a field is not supported.
    """
    if begin := generation.get("begin_suppress_tokens"):
        raise CheckpointError(
            f"generation_config.json: 'begin_suppress_tokens': expected none, got {len(begin)} tokens; write them as"
            " suppress_tokens, or remove them"
        )
    found: Any = generation.get("suppress_tokens") or ()
    if not isinstance(found, list | tuple) or not all(isinstance(each, int) for each in found):
        raise CheckpointError(f"generation_config.json: 'suppress_tokens': expected token ids, got {found!r}")
    single = {word[0] for word in _bad_words(generation, vocab_size) if len(word) == 1}
    return tuple(sorted({each for each in found if 0 <= each < vocab_size} | single - {*eos_token_ids}))


def bad_phrases(generation: Mapping[str, Any], vocab_size: int) -> tuple[Tokens, ...]:
    """Returns `bad_words_ids` of several tokens. Raises CheckpointError: the field is not supported."""
    return tuple(word for word in _bad_words(generation, vocab_size) if len(word) > 1)


def _bad_words(generation: Mapping[str, Any], vocab_size: int) -> list[Tokens]:
    words: Any = generation.get("bad_words_ids") or ()
    match words:
        case [*_] if all(_is_word(word, vocab_size) for word in words):
            return [tuple(word) for word in words]
        case _:
            raise CheckpointError(
                f"generation_config.json: 'bad_words_ids': expected lists of token ids of the vocabulary, got {words!r}"
            )


def _is_word(word: Any, vocab_size: int) -> bool:
    if not isinstance(word, list | tuple) or not word:
        return False
    return all(isinstance(token_id, int) and 0 <= token_id < vocab_size for token_id in word)
