"""A tiny checkpoint of MiniCPM-V 4.6 with seeded random weights, written by transformers, in the layout of published
ones."""

from pathlib import Path
from typing import Any

import torch
from transformers import MiniCPMV4_6Config, MiniCPMV4_6ForConditionalGeneration

from tests.checkpoints import qwen3_5
from tests.checkpoints.files import write_files
from tests.checkpoints.tokenizer import SPECIAL_TOKENS, ids_of, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER, draw_weights

PATCH, SCALE = 8, 64
"""Sides in pixels of a patch, and of a square with the area of a slice: a token is a square of 4 by 4 patches."""
MARKS = ("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>")
TOKEN_IDS = ids_of((*SPECIAL_TOKENS, *MARKS))
PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "MiniCPMV4_6ImageProcessor",
    "processor_class": "MiniCPMV4_6Processor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 3,
    "downsample_mode": "16x",
    "max_slice_nums": 9,
    "patch_size": PATCH,
    "scale_resolution": SCALE,
    "slice_mode": True,
    "use_image_id": True,
}
VIDEO: dict[str, Any] = PREPROCESSOR | {"max_num_frames": 12, "stack_frames": 1}
TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    **TINY_DECODER,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "layer_types": list(qwen3_5.KINDS),
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": qwen3_5.KEY_DIM,
    "linear_num_key_heads": qwen3_5.KEY_HEADS,
    "linear_num_value_heads": qwen3_5.VALUE_HEADS,
    "linear_value_head_dim": qwen3_5.VALUE_DIM,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
    },
    "eos_token_id": TOKEN_IDS["<|im_end|>"],
    "tie_word_embeddings": True,
}
TEMPLATE = "{%- if enable_thinking is not defined %}{% set enable_thinking = false %}{% endif %}\n" + (
    qwen3_5.TEMPLATE.replace("<|vision_start|>", "")
    .replace("<|vision_end|>", "")
    .replace("{%- for part in content -%}", "{%- for part in content -%}\n{{- '' if loop.first else '\\n' -}}")
)
"""A template of the published form: Qwen3.5's with each part of a message in a line, and without reasoning unless it is
asked for."""


def make_minicpmv4_6_checkpoint(path: Path, *, as_saved: bool = False) -> Path:
    """Writes a checkpoint of float32 into the folder `path`, which is made if it does not exist, and returns it.

    `as_saved`: the processors' fields are where transformers 5 writes them.
    """
    torch.manual_seed(0)
    config = MiniCPMV4_6Config(
        text_config=TEXT,
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 52,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 80,
            "patch_size": PATCH,
        },
        insert_layer_id=1,
        image_token_id=TOKEN_IDS["<|image_pad|>"],
        video_token_id=TOKEN_IDS["<|video_pad|>"],
        tie_word_embeddings=True,
    )
    model = MiniCPMV4_6ForConditionalGeneration(config).float()
    draw_weights(model)
    for name, parameter in model.model.language_model.named_parameters():
        if "norm" in name and "linear_attn" not in name:
            parameter.data.sub_(1)  # as these are stored
        elif parameter.dim() == 2 and "embed" not in name:
            parameter.data.mul_(0.4)  # otherwise the delta nets magnify what is rounded
        elif "embed" in name:
            parameter.data.mul_(0.3)  # otherwise a token, by far the nearest to itself in a tied head, answers itself
    model.save_pretrained(path)
    processors: dict[str, Any] = (
        {"processor_config": {"image_processor": PREPROCESSOR, "video_processor": VIDEO}}
        if as_saved
        else {"preprocessor_config": PREPROCESSOR, "video_preprocessor_config": VIDEO}
    )
    return write_files(
        path,
        make_tokenizer((*SPECIAL_TOKENS, *MARKS)),
        tokenizer_config={"eos_token": "<|im_end|>", "chat_template": TEMPLATE},
        generation_config={"eos_token_id": TOKEN_IDS["<|im_end|>"]},
        **processors,
    )
