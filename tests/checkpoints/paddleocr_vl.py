"""Tiny checkpoints of PaddleOCR-VL with seeded random weights, written by transformers, in the layout of published
ones."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PaddleOCRVLConfig, PaddleOCRVLForConditionalGeneration

from tests.checkpoints.files import write_files
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER, draw_weights

SPECIAL_TOKENS = ("<s>", "</s>", "<|begin_of_sentence|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>")
TOKEN_IDS = ids_of(SPECIAL_TOKENS)
CHAT_TEMPLATE = """\
{%- if not cls_token is defined %}{% set cls_token = '<|begin_of_sentence|>' %}{% endif -%}
{{ cls_token }}
{%- for message in messages %}
{{- 'User: ' if message.role == 'user' else 'Assistant:\\n' if message.role == 'assistant' else '' }}
{%- for part in message.content if part.type == 'image' %}<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>{% endfor %}
{%- for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}
{{- eos_token if message.role == 'assistant' else '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"""
PREPROCESSOR_CONFIG = {
    "image_processor_type": "PaddleOCRVLImageProcessor",
    "processor_class": "PaddleOCRVLProcessor",
    "min_pixels": 147_384,
    "max_pixels": 2_822_400,
    "patch_size": 14,
    "temporal_patch_size": 1,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def make_paddleocr_vl_checkpoint(path: Path) -> Path:
    """Writes a checkpoint of float32 into the folder `path`, which is made if it does not exist, and returns it."""
    torch.manual_seed(0)
    config = PaddleOCRVLConfig(
        text_config={
            **TINY_DECODER,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0, "mrope_section": [4, 6, 6]},
        },
        vision_config={
            "num_hidden_layers": 2,
            "hidden_size": 48,
            "num_attention_heads": 2,
            "intermediate_size": 52,
            "image_size": 84,
        },
        image_token_id=TOKEN_IDS["<|IMAGE_PLACEHOLDER|>"],
    )
    model = PaddleOCRVLForConditionalGeneration(config).float()
    draw_weights(model)
    model.save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    weights["visual.vision_model.head.probe"] = torch.zeros(1, 1, 48)
    weights["visual.vision_model.embeddings.packing_position_embedding.weight"] = torch.zeros(8, 48)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    tokens = {"eos_token": "</s>", "cls_token": "<|begin_of_sentence|>"}
    return write_files(
        path,
        make_tokenizer(SPECIAL_TOKENS),
        preprocessor_config=PREPROCESSOR_CONFIG,
        tokenizer_config=tokens | {"chat_template": CHAT_TEMPLATE},
        generation_config={"eos_token_id": TOKEN_IDS["</s>"]},
    )
