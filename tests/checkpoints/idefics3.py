"""Tiny SmolVLM and Idefics3 checkpoints with seeded random weights, in the format of published checkpoints."""

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from tests.checkpoints.files import write_files
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER, temper_attention

Family = Literal["smolvlm", "idefics3"]

MAX_TILES = 4
"""Tiles along the longer side of an image."""
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
)
TOKEN_IDS = ids_of(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""The published template, which shows no videos."""

_TEXT = {
    "model_type": "llama",
    **TINY_DECODER,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "pad_token_id": 2,
    "initializer_range": 0.3,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "layer_norm_eps": 1e-6,
    "initializer_range": 0.3,
}
_SIZES: dict[Family, dict[str, int]] = {
    "smolvlm": {"image_size": 32, "patch_size": 8},
    # Two rows and columns of pixels are left of each tile, as of the 384 pixels of SmolVLM2-2.2B.
    "idefics3": {"image_size": 44, "patch_size": 7},
}
_SHUFFLE: dict[Family, int] = {"smolvlm": 2, "idefics3": 3}


def tile_side(family: Family) -> int:
    """Returns the side of a tile in pixels."""
    return _SIZES[family]["image_size"]


def make_idefics3_checkpoint(path: Path, family: Family = "smolvlm") -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it."""
    torch.manual_seed(0)
    model = _model(family).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith(".weight"):  # 1 by default, which would hide a norm that is left out
                parameter.uniform_(0.5, 1.5)
            elif name.endswith(".bias"):
                parameter.normal_(std=0.3)
    temper_attention(model)
    model.save_pretrained(path)
    return write_files(
        path,
        make_tokenizer(SPECIAL_TOKENS),
        tokenizer_config={"eos_token": "<end_of_utterance>", "chat_template": CHAT_TEMPLATE},
        generation_config={"eos_token_id": [TOKEN_IDS["<end_of_utterance>"]]},
        preprocessor_config=preprocessor_config(family),
    )


def preprocessor_config(family: Family) -> dict[str, Any]:
    """Returns the document, with the fields of published checkpoints."""
    name = "SmolVLM" if family == "smolvlm" else "Idefics3"
    side = tile_side(family)
    videos = {"video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": side}}}
    return {
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": f"{name}ImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": side},
        "processor_class": f"{name}Processor",
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": MAX_TILES * side},
        **(videos if family == "smolvlm" else {}),
    }


def _model(family: Family) -> Any:
    fields: dict[str, Any] = {
        "text_config": _TEXT,
        "vision_config": _VISION | _SIZES[family],
        "scale_factor": _SHUFFLE[family],
        "image_token_id": TOKEN_IDS["<image>"],
        "tie_word_embeddings": False,
        "bos_token_id": TOKEN_IDS["<|im_start|>"],
        "eos_token_id": TOKEN_IDS["<end_of_utterance>"],
        "pad_token_id": 2,
    }
    if family == "smolvlm":
        return SmolVLMForConditionalGeneration(SmolVLMConfig(**fields))
    return Idefics3ForConditionalGeneration(Idefics3Config(**fields))
