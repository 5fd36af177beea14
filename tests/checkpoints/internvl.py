"""Tiny InternVL3 and InternVL3.5 checkpoints with seeded random weights, written by transformers, in the layout of
published ones."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

from tests.checkpoints.files import write_files, write_json
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER

Variant = Literal["300M", "6B", "llama"]
"""The vision encoder: InternViT-300M, before Qwen2's decoder, or InternViT-6B, before Qwen3's; or the first before
Llama's."""

SIDE = 56
"""Side of a tile in pixels: 16 patches."""
NUM_TILE_TOKENS = 4
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
)
TOKEN_IDS = ids_of(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n'}}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\\n' }}"
    "{% elif content['type'] == 'video' %}{{ '<video>\\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{'<|im_end|>\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\\n' }}{% endif %}"
)
"""The published template."""

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
PREPROCESSOR_CONFIG: dict[str, Any] = {
    "crop_to_patches": False,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": list(MEAN),
    "image_processor_type": "GotOcr2ImageProcessorFast",
    "image_std": list(STD),
    "max_patches": 12,
    "min_patches": 1,
    "processor_class": "InternVLProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": SIDE, "width": SIDE},
}

_TEXT: dict[str, Any] = {
    **TINY_DECODER,
    "max_position_embeddings": 2048,
    "bos_token_id": TOKEN_IDS["<|endoftext|>"],
    "eos_token_id": TOKEN_IDS["<|im_end|>"],
}
_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1_000_000.0}
"""Rotary scaling of InternVL3."""


def make_internvl_checkpoint(path: Path, variant: Variant = "300M") -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it. It is made if it does not exist."""
    torch.manual_seed(0)
    model: Any = InternVLForConditionalGeneration(_config(variant)).float()
    _draw_weights(model)
    model.save_pretrained(path)
    return write_files(
        path,
        make_tokenizer(SPECIAL_TOKENS),
        tokenizer_config={"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE},
        preprocessor_config=PREPROCESSOR_CONFIG,
    )


ORIGINAL_TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Template of `InternVLChatModel`, which reads texts alone."""


def make_original_checkpoint(source: Path, path: Path) -> Path:
    """Writes a checkpoint of `make_internvl_checkpoint` as `InternVLChatModel` into the folder `path`; returns it."""
    path.mkdir(parents=True, exist_ok=True)
    document = json.loads((source / "config.json").read_text())
    text, vision = document["text_config"], document["vision_config"]
    vision |= {"image_size": SIDE, "patch_size": 14, "model_type": "intern_vit_6b"}
    vision |= {"qkv_bias": vision.pop("attention_bias"), "qk_normalization": vision.pop("use_qk_norm")}
    config = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "torch_dtype": "float32",
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": SIDE,
        "llm_config": {**text, "eos_token_id": TOKEN_IDS["<|endoftext|>"]},
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "pad2square": False,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "use_thumbnail": True,
        "vision_config": vision,
    }
    write_json(path / "config.json", config)
    write_json(path / "generation_config.json", {"_from_model_config": True})
    write_json(path / "tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": ORIGINAL_TEMPLATE})
    shutil.copy(source / "tokenizer.json", path)
    save_file(_original_tensors(load_file(source / "model.safetensors")), path / "model.safetensors", {"format": "pt"})
    return path


def _original_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors as `InternVLChatModel` names them, queries, keys and values of its encoder in one."""
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if module.startswith("vision_tower.encoder.") and module.endswith(("k_proj", "v_proj")):
            continue
        if module.startswith("vision_tower.encoder.") and module.endswith("q_proj"):
            parts = [tensors[f"{module.removesuffix('q_proj')}{each}_proj.{kind}"] for each in "qkv"]
            tensor = torch.cat(parts)
        stored[_original_name(name)] = tensor.contiguous()
    return stored


def _original_name(name: str) -> str:
    for pattern, original in _ORIGINAL_NAMES.items():
        name = re.sub(pattern, original, name)
    return name


_ORIGINAL_NAMES = {
    r"^vision_tower\.encoder\.layer\.": "vision_model.encoder.layers.",
    r"^(vision_model\..*)\.attention\.q_proj\.": r"\1.attn.qkv.",
    r"^(vision_model\..*)\.attention\.projection_layer\.": r"\1.attn.proj.",
    r"^(vision_model\..*)\.attention\.([qk]_norm)\.": r"\1.attn.\2.",
    r"^(vision_model\..*)\.layernorm_before\.": r"\1.norm1.",
    r"^(vision_model\..*)\.layernorm_after\.": r"\1.norm2.",
    r"^(vision_model\..*)\.lambda_([12])$": r"\1.ls\2",
    r"^vision_tower\.embeddings\.cls_token$": "vision_model.embeddings.class_embedding",
    r"^vision_tower\.embeddings\.position_embeddings$": "vision_model.embeddings.position_embedding",
    r"^vision_tower\.embeddings\.patch_embeddings\.projection\.": "vision_model.embeddings.patch_embedding.",
    r"^multi_modal_projector\.layer_norm\.": "mlp1.0.",
    r"^multi_modal_projector\.linear_1\.": "mlp1.1.",
    r"^multi_modal_projector\.linear_2\.": "mlp1.3.",
}


def _config(variant: Variant) -> Any:
    is_large = variant == "6B"
    vision = InternVLVisionConfig(
        hidden_size=32,
        intermediate_size=52,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=[SIDE, SIDE],
        attention_bias=not is_large,
        use_qk_norm=is_large,
        norm_type="rms_norm" if is_large else "layer_norm",
    )
    text: Any = {
        "300M": lambda: Qwen2Config(**_TEXT, rope_parameters=_DYNAMIC),
        "6B": lambda: Qwen3Config(**_TEXT, head_dim=24, tie_word_embeddings=True),
        "llama": lambda: LlamaConfig(**_TEXT),
    }[variant]()
    return InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=TOKEN_IDS["<IMG_CONTEXT>"],
        image_seq_length=NUM_TILE_TOKENS,
        tie_word_embeddings=is_large,
    )


def _draw_weights(model: torch.nn.Module) -> None:
    """Draws weights so that answers depend on the whole prompt, including images."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lambda" in name or ("norm" in name and name.endswith("weight")):
                parameter.uniform_(0.5, 1.5)
            elif "embed_tokens" in name:  # small, so that tied weights do not predict the last token again
                parameter.normal_(std=0.05)
            elif parameter.dim() > 1 and "embed" not in name:
                parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5)
            else:
                parameter.normal_(std=0.3)
