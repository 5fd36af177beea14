"""LoRA adapters with seeded random weights, as PEFT saves them, and checkpoints with such adapters merged into them."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints.files import write_json

PROJECTIONS = (
    r".*layers\.\d+\.((self_attn|mlp)\.(q|k|v|o|out|qkv|gate|up|gate_up|down)_proj"
    r"|conv\.(in|out)_proj|linear_attn\.(in_proj_\w+|out_proj)|feed_forward\.w\d)"
)
"""All linears of attention, of delta nets, of short convolutions and of MLPs, stacked or not."""


def make_adapter(
    folder: Path,
    checkpoint: Path,
    *,
    seed: int = 0,
    targets: str = PROJECTIONS,
    module_of: Callable[[str], str] = str,
    strength: float = 1.0,
    **fields: Any,
) -> Path:
    """Writes an adapter for the linears of a checkpoint whose names match `targets`, and returns its folder.

    Args:
        module_of: the name that the model has for a linear, by its name in the checkpoint.
        strength: size of what the adapter adds.
        fields: replace those of the configuration.
    """
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": targets} | fields
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        if re.fullmatch(rf"{targets}\.weight", name):
            module = module_of(name.removesuffix(".weight"))
            rank, (outputs, inputs) = rank_of(config, module), weight.shape
            down = torch.randn(rank, inputs, generator=random) / math.sqrt(inputs)
            up = torch.randn(outputs, rank, generator=random) * (strength * float(weight.std()) / 8)
            tensors |= {
                f"base_model.model.{module}.lora_A.weight": down,
                f"base_model.model.{module}.lora_B.weight": up,
            }
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write_json(folder / "adapter_config.json", config)
    return folder


def merged(folder: Path, checkpoint: Path, adapter: Path, *, module_of: Callable[[str], str] = str) -> Path:
    """Writes a checkpoint whose weights are W + scale · B A, as PEFT's `merge_and_unload` has them, and returns it."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((adapter / "adapter_config.json").read_bytes())
    added, weights = load_file(adapter / "adapter_model.safetensors"), load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        module = module_of(name.removesuffix(".weight"))
        if (up := added.get(f"base_model.model.{module}.lora_B.weight")) is not None:
            down = added[f"base_model.model.{module}.lora_A.weight"]
            weights[name] = weight + scale_of(config, module) * (up @ down)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def rank_of(config: dict[str, Any], module: str) -> int:
    return next((rank for end, rank in config.get("rank_pattern", {}).items() if module.endswith(end)), config["r"])


def scale_of(config: dict[str, Any], module: str) -> float:
    """Returns what PEFT's `LoraLayer.scaling` is for a module. Patterns are the ends of names."""
    patterns, rank = config.get("alpha_pattern", {}), rank_of(config, module)
    alpha = next((alpha for end, alpha in patterns.items() if module.endswith(end)), config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
