"""The encoders of Pixtral, Mistral Small 3.1 and later, Ministral 3 and LightOnOCR."""

from collections.abc import Mapping
from typing import Any

from glimpse.engine.checkpoint.gguf.architectures import Change
from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.vit import (
    PREPROCESSOR,
    vit,
)

_PIXTRAL_NAMES: Mapping[str, str] = {
    "v.patch_embd": "vision_tower.patch_conv",
    "v.pre_ln": "vision_tower.ln_pre",
    "ln1": "vision_tower.transformer.layers.{}.attention_norm",
    "ln2": "vision_tower.transformer.layers.{}.ffn_norm",
    "attn_q": "vision_tower.transformer.layers.{}.attention.q_proj",
    "attn_k": "vision_tower.transformer.layers.{}.attention.k_proj",
    "attn_v": "vision_tower.transformer.layers.{}.attention.v_proj",
    "attn_out": "vision_tower.transformer.layers.{}.attention.o_proj",
    "ffn_gate": "vision_tower.transformer.layers.{}.feed_forward.gate_proj",
    "ffn_up": "vision_tower.transformer.layers.{}.feed_forward.up_proj",
    "ffn_down": "vision_tower.transformer.layers.{}.feed_forward.down_proj",
    "mm.input_norm": "multi_modal_projector.norm",
    "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
    "mm.1": "multi_modal_projector.linear_1",
    "mm.2": "multi_modal_projector.linear_2",
}
_MERGER = "mm.patch_merger.weight"


def pixtral(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of Pixtral's encoder, whose norms add a constant."""
    encoder.keys.require("vision.attention.layer_norm_epsilon", encoder.norm_eps, 1e-5)
    return vit(encoder, model_type="pixtral", hidden_act="silu")


def pixtral_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the projector, which Pixtral's documents leave to LLaVA's defaults."""
    return {
        "model_type": "mistral3" if "mm.patch_merger.weight" in encoder.gguf.tensors else "llava",
        "spatial_merge_size": encoder.merge,
        "multimodal_projector_bias": "mm.1.bias" in encoder.gguf.tensors,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }


def longest_edge_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file."""
    token = encoder.patch_size * encoder.merge
    longest = encoder.keys.size("vision.preproc_image_size", encoder.image_size)
    size = {"patch_size": {"height": token, "width": token}, "size": {"longest_edge": longest}}
    return {PREPROCESSOR: size | encoder.statistics}


# Pixtral, Mistral Small 3.1 and later, Ministral 3.
PIXTRAL = Projector(
    architectures={
        "llama": "PixtralForConditionalGeneration",
        "mistral3": "Mistral3ForConditionalGeneration",
    },
    variant=lambda _, mmproj: "Mistral3ForConditionalGeneration" if _MERGER in mmproj.tensors else None,
    names=_PIXTRAL_NAMES,
    unused="v.token_embd.img_break",
    changes={"attn_q": Change.PERMUTED, "attn_k": Change.PERMUTED},
    squares=None,
    merge=1,
    encoder_config=pixtral,
    config=pixtral_config,
    activation="use_silu",
    files=longest_edge_files,
    placeholders={"image_token_index": ("[IMG]",)},
)
LIGHTON_OCR = Projector(
    architectures={"qwen3": "LightOnOcrForConditionalGeneration"},
    names=_PIXTRAL_NAMES,
    changes={"attn_q": Change.PERMUTED, "attn_k": Change.PERMUTED},
    squares=None,
    merge=1,
    encoder_config=pixtral,
    config=lambda encoder: {**pixtral_config(encoder), "model_type": "lighton_ocr"},
    activation="use_silu",
    files=longest_edge_files,
    placeholders={"image_token_id": ("<|image_pad|>",)},
)
