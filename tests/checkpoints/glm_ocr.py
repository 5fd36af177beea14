"""Tiny checkpoints of GLM-OCR with seeded random weights, written by transformers, in the layout of published ones."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.models.glm_ocr.configuration_glm_ocr import GlmOcrConfig
from transformers.models.glm_ocr.modeling_glm_ocr import GlmOcrForConditionalGeneration

from tests.checkpoints.llava import draw_weights
from tests.checkpoints.qwen2_vl import PLAIN_TOKENS, make_tokenizer, write_json
from tests.checkpoints.qwen2_vl import PREPROCESSOR_CONFIG as QWEN_PREPROCESSOR_CONFIG

SPECIAL_TOKENS = (
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|image|>"),
)
TOKEN_IDS = {token: index for index, token in enumerate(SPECIAL_TOKENS, len(PLAIN_TOKENS))}
LAYERS = 2
CHAT_TEMPLATE = """\
[gMASK]<sop>
{%- for message in messages %}<|{{ message.role }}|>
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content %}
{{- '<|begin_of_image|><|image|><|end_of_image|>' if part.type == 'image' else part.text }}
{%- endfor -%}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""


def make_glm_ocr_checkpoint(path: Path) -> Path:
    """Writes a checkpoint of float32 into the folder `path`, which is made if it does not exist, and returns it."""
    torch.manual_seed(0)
    config = GlmOcrConfig(
        text_config={
            "vocab_size": 384,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "intermediate_size": 52,
        },
        image_token_id=TOKEN_IDS["<|image|>"],
        tie_word_embeddings=False,
    )
    model = GlmOcrForConditionalGeneration(config).float()
    draw_weights(model)
    model.save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    weights[f"model.language_model.layers.{LAYERS}.eh_proj.weight"] = torch.zeros(64, 128)  # a part of its draft head
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    size = {"shortest_edge": 12_544, "longest_edge": 9_633_792}
    bounds = ("min_pixels", "max_pixels")
    processor = {name: value for name, value in QWEN_PREPROCESSOR_CONFIG.items() if name not in bounds}
    processor |= {"size": size, "image_processor_type": "Glm46VImageProcessor", "processor_class": "Glm46VProcessor"}
    write_json(path / "preprocessor_config.json", processor)
    make_tokenizer(SPECIAL_TOKENS).save(str(path / "tokenizer.json"))
    write_json(path / "tokenizer_config.json", {"eos_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE})
    write_json(path / "generation_config.json", {"eos_token_id": [TOKEN_IDS["<|endoftext|>"], TOKEN_IDS["<|user|>"]]})
    return path
