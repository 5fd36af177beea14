"""Tiny MiniCPM-V checkpoints with seeded random weights, in the layout of the published ones. transformers lacks the
model, but has its decoders (Qwen2, Llama, Qwen3) and the layers of its vision encoder (SigLIP)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from tests.checkpoints.files import write_files
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER

NUM_QUERIES = 4
SCALE = 56
"""Slices have about 56² pixels: 16 patches."""
HIDDEN_SIZE = 256
NUM_HEADS = 2
"""Heads of the resampler's attention."""
VISION_WIDTH = 32
SPECIAL_TOKENS = (
    "<unk>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<image>",
    "</image>",
    "<slice>",
    "</slice>",
    "<image_id>",
    "</image_id>",
)
TOKEN_IDS = ids_of(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Template of 2.6, for texts alone like all published ones."""
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Template of 4.0, and of 4.5 without tools and reasoning."""

Version = Literal["2.6", "4.0", "4.5"]
VERSIONS: tuple[Version, ...] = ("2.6", "4.0", "4.5")

PREPROCESSOR_CONFIG: dict[str, Any] = {
    "image_processor_type": "MiniCPMVImageProcessor",
    "processor_class": "MiniCPMVProcessor",
    "max_slice_nums": 9,
    "scale_resolution": SCALE,
    "patch_size": 14,
    "use_image_id": True,
    "image_feature_size": NUM_QUERIES,
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "unk": "<unk>",
    "im_id_start": "<image_id>",
    "im_id_end": "</image_id>",
    "slice_mode": True,
    "norm_mean": [0.5, 0.4, 0.5],
    "norm_std": [0.5, 0.5, 0.4],
    "version": 2.6,
}
VISION: dict[str, Any] = {
    "hidden_size": VISION_WIDTH,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 140,
    "patch_size": 14,
}
TEXT: dict[str, Any] = {
    **TINY_DECODER,
    "hidden_size": HIDDEN_SIZE,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": TOKEN_IDS["<|endoftext|>"],
    "eos_token_id": TOKEN_IDS["<|im_end|>"],
    "tie_word_embeddings": False,
}
CONFIG: dict[str, Any] = {
    **TEXT,
    "architectures": ["MiniCPMV"],
    "model_type": "minicpmv",
    "version": 2.6,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "rope_theta": 1_000_000.0,
    "use_sliding_window": False,
    "sliding_window": 131_072,
    "batch_vision_input": True,
    "drop_vision_last_layer": False,
    "image_size": 448,
    "query_num": NUM_QUERIES,
    "slice_config": {"max_slice_nums": 9, "patch_size": 14, "model_type": "minicpmv"},
    "slice_mode": True,
    "vision_config": {**VISION, "model_type": "siglip"},
}


def make_minicpmv_checkpoint(path: Path, version: Version = "2.6") -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it. It is made if it does not exist."""
    path.mkdir(parents=True, exist_ok=True)
    save_file(_weights(version), path / "model.safetensors", metadata={"format": "pt"})
    template = CHAT_TEMPLATE if version == "2.6" else PLAIN_TEMPLATE
    numbered = {"version": float(version)}
    return write_files(
        path,
        make_tokenizer(SPECIAL_TOKENS),
        tokenizer_config={"eos_token": "<|im_end|>", "unk_token": "<unk>", "chat_template": template},
        preprocessor_config=PREPROCESSOR_CONFIG | numbered,
        config=CONFIG | _DECODER_FIELDS[version] | numbered,
    )


def make_decoder(version: str) -> Any:
    """Returns the reference decoder of a version, with random weights."""
    match version:
        case "2.6":
            return Qwen2ForCausalLM(Qwen2Config(**TEXT, **_ROPE))
        case "4.0":
            return LlamaForCausalLM(LlamaConfig(**TEXT, head_dim=32, rope_parameters=_LONG_ROPE))
        case _:
            return Qwen3ForCausalLM(Qwen3Config(**TEXT, **_DECODER_FIELDS["4.5"], **_ROPE))


def decoder_of(config: Mapping[str, Any]) -> Any:
    """Returns the reference decoder of a `config.json`."""
    make, decoder = {
        "2.6": (Qwen2Config, Qwen2ForCausalLM),
        "4.0": (LlamaConfig, LlamaForCausalLM),
        "4.5": (Qwen3Config, Qwen3ForCausalLM),
    }[str(config["version"])]
    left_out = ("architectures", "model_type", "torch_dtype", "version", "vision_config")
    return decoder(make(**{name: value for name, value in config.items() if name not in left_out}))


_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
_LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "factor": 1.0,
    "short_factor": [1 + index / 8 for index in range(16)],
    "long_factor": [2 + index / 8 for index in range(16)],
    "original_max_position_embeddings": TEXT["max_position_embeddings"],
}
_DECODER_FIELDS: dict[Version, dict[str, Any]] = {
    "2.6": {},
    "4.0": {
        "head_dim": 32,
        "rope_theta": _LONG_ROPE["rope_theta"],
        "rope_scaling": {name: value for name, value in _LONG_ROPE.items() if name != "rope_theta"},
    },
    "4.5": {"head_dim": 48, "attention_bias": False},
}
"""Fields of `config.json` in which the versions differ. Heads of 4.0 are narrower than the hidden size has room for."""


def normalized(pixels: np.ndarray) -> torch.Tensor:
    """uint8 [height, width, 3] → float32 [3, height, width]"""
    mean, std = (torch.tensor(PREPROCESSOR_CONFIG[name]) for name in ("norm_mean", "norm_std"))
    return ((torch.tensor(pixels) / 255 - mean) / std).permute(2, 0, 1)


def _weights(version: Version) -> dict[str, torch.Tensor]:
    decoder = make_decoder(version)
    vision: Any = SiglipVisionModel(SiglipVisionConfig(**VISION, vision_use_head=False))
    width = HIDDEN_SIZE
    shapes = {name: tensor.shape for name, tensor in _prefixed("llm", decoder).items()}
    shapes |= {name: tensor.shape for name, tensor in _prefixed("vpm", vision).items()}
    shapes |= {
        "resampler.query": (NUM_QUERIES, width),
        "resampler.proj": (width, width),
        "resampler.kv_proj.weight": (width, VISION_WIDTH),
        "resampler.attn.in_proj_weight": (3 * width, width),
        "resampler.attn.in_proj_bias": (3 * width,),
        "resampler.attn.out_proj.weight": (width, width),
        "resampler.attn.out_proj.bias": (width,),
    }
    shapes |= {
        f"resampler.{norm}.{part}": (width,) for norm in ("ln_q", "ln_kv", "ln_post") for part in ("weight", "bias")
    }
    generator = torch.Generator().manual_seed(0)
    return {name: _draw(name, tuple(shape), generator) for name, shape in sorted(shapes.items())}


def _prefixed(prefix: str, model: Any) -> dict[str, torch.Tensor]:
    """Returns a model's tensors with their published names."""
    return {f"{prefix}.{name.removeprefix('vision_model.')}": tensor for name, tensor in model.state_dict().items()}


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draws weights so that answers depend on the whole prompt, including images."""
    drawn = torch.randn(shape, generator=generator)
    if ("norm" in name or ".ln_" in name) and name.endswith("weight"):
        return 1 + 0.2 * drawn
    if len(shape) > 1 and "embedding.weight" not in name and "embed_tokens" not in name and "query" not in name:
        return 1.5 * drawn / drawn[0].numel() ** 0.5
    return 0.3 * drawn
