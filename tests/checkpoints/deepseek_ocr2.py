"""Tiny checkpoints of DeepSeek-OCR-2 with seeded random weights, written by transformers, in the layout of published
ones."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekOcr2Config, DeepseekOcr2ForConditionalGeneration

from tests.checkpoints.files import write_files, write_json
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import draw_weights

PATCH = 2
"""Side of a patch in pixels: tiles have 96 pixels, and overviews 128."""
NUM_TILE_TOKENS, NUM_OVERVIEW_TOKENS = 144, 256
SPECIAL_TOKENS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<image>",
    "<|grounding|>",
    "<|ref|>",
    "<|/ref|>",
    "<|det|>",
    "<|/det|>",
)
TOKEN_IDS = ids_of(SPECIAL_TOKENS)
PREPROCESSOR_CONFIG: dict[str, Any] = {
    "background_color": [127, 127, 127],
    "crop_to_patches": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "DeepseekOcr2ImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "max_patches": 6,
    "min_patches": 2,
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 64 * PATCH, "width": 64 * PATCH},
    "tile_size": 48 * PATCH,
}
PROCESSOR_CONFIG = {
    "downsample_ratio": 4,
    "image_processor": PREPROCESSOR_CONFIG,
    "patch_size": PATCH,
    "processor_class": "DeepseekOcr2Processor",
}
_TEXT: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "bos_token_id": TOKEN_IDS["<｜begin▁of▁sentence｜>"],
    "eos_token_id": TOKEN_IDS["<｜end▁of▁sentence｜>"],
}
_SAM: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "output_channels": 12,
    "global_attn_indexes": [1],
    "image_size": 64 * PATCH,
    "patch_size": PATCH,
}
_ENCODER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}


def make_deepseek_ocr2_checkpoint(path: Path) -> Path:
    """Writes a checkpoint of float32 into the folder `path`, which is made if it does not exist, and returns it."""
    _write(path, sam_config={**_SAM, "downsample_channels": [20, 32]}, encoder_config=_ENCODER)
    write_json(path / "processor_config.json", PROCESSOR_CONFIG)
    return path


def make_original_checkpoint(path: Path) -> Path:
    """Likewise, as `DeepseekOCR2ForCausalLM`, whose documents do not say some sizes: those of published ones."""
    encoder = {
        **_ENCODER,
        "hidden_size": 28,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    }
    sam = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "global_attn_indexes": [1],
        "downsample_channels": [512, 28],
    }
    _write(path, sam_config=sam, encoder_config=encoder)
    document = json.loads((path / "config.json").read_text())
    write_json(path / "config.json", original_config(document))
    statistics = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    write_json(
        path / "processor_config.json",
        {"candidate_resolutions": [[1024, 1024]], "downsample_ratio": 4, "patch_size": 16, **statistics},
    )
    return path


def original_config(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document of `DeepseekOcr2ForConditionalGeneration` as `DeepseekOCR2ForCausalLM` has it."""
    text, vision = document["text_config"], document["vision_config"]
    sam, width = vision["sam_config"], vision["encoder_config"]["hidden_size"]
    kept = ("eos_token_id", "hidden_size", "intermediate_size", "max_position_embeddings", "moe_intermediate_size")
    counts = ("n_routed_experts", "n_shared_experts", "num_attention_heads", "num_experts_per_tok", "num_hidden_layers")
    return {
        "architectures": ["DeepseekOCR2ForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "torch_dtype": "float32",
        "language_config": {
            **{name: text[name] for name in (*kept, *counts, "num_key_value_heads", "vocab_size")},
            "first_k_dense_replace": text["mlp_layer_types"].count("dense"),
            "topk_method": "greedy",
            "use_mla": False,
            "kv_lora_rank": None,
        },
        "projector_config": {"input_dim": width, "n_embed": text["hidden_size"], "projector_type": "linear"},
        "vision_config": {
            "image_size": 1024,
            "width": {
                "qwen2-0-5b": {"dim": width},
                "sam_vit_b": {
                    "downsample_channels": [512, 1024],
                    "global_attn_indexes": sam["global_attn_indexes"],
                    "heads": sam["num_attention_heads"],
                    "layers": sam["num_hidden_layers"],
                    "width": sam["hidden_size"],
                },
            },
        },
    }


def _write(path: Path, **vision: Any) -> None:
    torch.manual_seed(0)
    kinds = ["dense", *["sparse"] * (_TEXT["num_hidden_layers"] - 1)]
    config = DeepseekOcr2Config(
        text_config={**_TEXT, "mlp_layer_types": kinds},
        vision_config=vision,
        image_token_id=TOKEN_IDS["<image>"],
    )
    model: Any = DeepseekOcr2ForConditionalGeneration(config).float()
    draw_weights(model)
    model.save_pretrained(path)
    tokens = {"bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[1]}
    kind = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "add_eos_token": False}
    write_files(path, make_tokenizer(SPECIAL_TOKENS), tokenizer_config=tokens | kind)
