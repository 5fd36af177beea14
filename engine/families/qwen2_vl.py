"""Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from glimpse.engine.errors import CheckpointError
from glimpse.engine.families.chatml import QWEN2_VL_TEMPLATE
from glimpse.engine.families.fields import require, text_config
from glimpse.engine.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.model_config import VisionConfig, WindowConfig


def _read_config(
    config: Mapping[str, Any], read_vision: Callable[[Mapping[str, Any], Mapping[str, Any]], VisionConfig]
) -> FamilyConfig:
    """Reads text fields from the top level (published checkpoints) or from `text_config` (transformers 5)."""
    text: Mapping[str, Any] = config.get("text_config") or config
    # transformers 5: `rope_parameters`, with theta in it. Published checkpoints: `rope_scaling` and `rope_theta`.
    rope: Mapping[str, Any] = text.get("rope_parameters") or text["rope_scaling"]
    return FamilyConfig(
        text=text_config(text, config, rope, mrope_section=tuple(rope["mrope_section"])),
        encoder=read_vision(config["vision_config"], text),
        placeholder_ids={"image": config["image_token_id"], "video": config["video_token_id"]},
    )


def _qwen2_vision(vision: Mapping[str, Any], text: Mapping[str, Any]) -> VisionConfig:
    return VisionConfig(
        embed_dim=vision["embed_dim"],
        hidden_size=vision.get("hidden_size", text["hidden_size"]),
        intermediate_size=int(vision["embed_dim"] * vision.get("mlp_ratio", 4)),
        **_shared_fields(vision),
    )


def _qwen2_5_vision(vision: Mapping[str, Any], text: Mapping[str, Any]) -> VisionConfig:
    require("vision_config.hidden_act", vision.get("hidden_act", "silu"), "silu")
    shared = _shared_fields(vision)
    token_side = shared["patch_size"] * shared["spatial_merge_size"]
    if (window_size := vision.get("window_size", 112)) < token_side:
        raise CheckpointError(
            f"config.json: 'vision_config.window_size': expected at least {token_side}, got {window_size}"
        )
    return VisionConfig(
        embed_dim=vision["hidden_size"],
        hidden_size=vision.get("out_hidden_size", text["hidden_size"]),
        intermediate_size=vision["intermediate_size"],
        gated=True,
        windows=WindowConfig(
            side=window_size // token_side,
            full_attention_blocks=frozenset(vision.get("fullatt_block_indexes", (7, 15, 23, 31))),
        ),
        tokens_per_second=vision.get("tokens_per_second", 4),
        **shared,
    )


def _shared_fields(vision: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "depth": vision["depth"],
        "num_heads": vision["num_heads"],
        # Published checkpoints write `in_chans`, transformers writes `in_channels`.
        "in_channels": vision.get("in_channels", vision.get("in_chans", 3)),
        "patch_size": vision.get("patch_size", vision.get("spatial_patch_size", 14)),
        "spatial_merge_size": vision.get("spatial_merge_size", 2),
        "temporal_patch_size": vision.get("temporal_patch_size", 2),
    }


QWEN2_VL = FamilySpec(
    read_config=partial(_read_config, read_vision=_qwen2_vision),
    module="qwen2_vl",
    fallback_template=QWEN2_VL_TEMPLATE,
)
QWEN2_5_VL = FamilySpec(
    read_config=partial(_read_config, read_vision=_qwen2_5_vision),
    module="qwen2_vl",
    fallback_template=QWEN2_VL_TEMPLATE,
)
