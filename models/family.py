"""What all Qwen2-VL checkpoints share: special tokens, pre-tokenization, and the members of their files."""

from collections.abc import Mapping
from typing import Any

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen2-VL's special tokens, in its order."""

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pre-tokenization; transformers hard-codes it in the tokenizer class."""


def common_config(ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns the members of `config.json` that do not depend on size, from the special tokens' ids."""
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
    }


def tokenizer_config(ids: Mapping[str, int], max_position_embeddings: int) -> dict[str, Any]:
    """Returns `tokenizer_config.json` without the chat template.

    Args:
        ids: ids of all added tokens; those that are not special are text.
        max_position_embeddings: the context window.
    """
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(token_id): {"content": token, **flags, "special": token in SPECIAL_TOKENS}
        for token, token_id in sorted(ids.items(), key=lambda item: item[1])
    }
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": max_position_embeddings,
        "pad_token": "<|endoftext|>",
        "processor_class": "Qwen2VLProcessor",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
