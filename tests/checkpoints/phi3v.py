"""A tiny Phi-3.5-vision checkpoint with seeded random weights, in the layout of the published one."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.checkpoints.files import write_json
from tests.checkpoints.llava import VOCAB_SIZE, save_tokenizer
from tests.checkpoints.weights import draw_weights, temper_attention
from tests.oracles.phi3v import make_network

SIDE = 56
"""Side of a tile in pixels: 16 patches, which are 4 tokens."""
MAX_TILES = 4
PLACEHOLDER_ID = VOCAB_SIZE - 1
"""The tokenizer has fewer tokens than the embedding table, and the published id is beyond both."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>", "<|image|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}"
    "{{- '<|assistant|>\\n' -}}{% endif %}"
)
"""The published template, whose contents are texts."""

PREPROCESSOR_CONFIG: dict[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "Phi3VImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "num_crops": MAX_TILES,
    "num_img_tokens": 4,
    "processor_class": "Phi3VProcessor",
}
CONFIG: dict[str, Any] = {
    "architectures": ["Phi3VForCausalLM"],
    "model_type": "phi3_v",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "embd_layer": {
        "embedding_cls": "image",
        "hd_transform_order": "sub_glb",
        "projection_cls": "mlp",
        "use_hd_transform": True,
        "with_learnable_separator": True,
    },
    "img_processor": {
        "image_dim_out": 32,
        "model_name": "openai/clip-vit-large-patch14-336",
        "name": "clip_vision_model",
        "num_img_tokens": 4,
        "hidden_size": 32,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": SIDE,
    },
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "original_max_position_embeddings": 4,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "type": "su",
        "short_factor": [1 + index / 10 for index in range(8)],
        "long_factor": [1.5 + index for index in range(8)],
    },
    "rope_theta": 10_000.0,
    "sliding_window": 2048,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB_SIZE,
}
"""The published encoder is known by its name; fields of `img_processor` make it smaller here."""


def make_phi3v_checkpoint(path: Path) -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it. It is made if it does not exist."""
    path.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    network = make_network(CONFIG).float()
    draw_weights(network)
    temper_attention(network)
    with torch.no_grad():  # the encoder output is about as large as the embeddings of tokens
        network.model.vision_embed_tokens.img_projection[2].weight.mul_(0.02)
    save_file(network.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(path, SPECIAL_TOKENS)
    tokenizer = {"bos_token": "<s>", "eos_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    write_json(path / "tokenizer_config.json", tokenizer)
    write_json(path / "preprocessor_config.json", PREPROCESSOR_CONFIG)
    write_json(path / "config.json", CONFIG)
    return path
