"""The encoders of GLM-4.1V, GLM-4.6V-Flash and GLM-OCR."""

from functools import partial
from typing import Any

from glimpse.engine.checkpoint.gguf.encoder import MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.qwen import qwen_files
from glimpse.engine.checkpoint.gguf.header import Gguf

_HEAD_NORM, _POSITIONS = "v.blk.0.attn_q_norm.weight", "v.position_embd.weight"


def _variant(text: Gguf, mmproj: Gguf) -> str | None:
    if _HEAD_NORM in mmproj.tensors:
        return "GlmOcrForConditionalGeneration"
    # Only its name tells it.
    is_later = any("4.6v" in str(each.get("general.name")).lower() for each in (text, mmproj))
    return "Glm46VForConditionalGeneration" if is_later else None


def _glm4v(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the encoder, of which GLM-OCR's has no learned positions."""
    has_positions = _POSITIONS in encoder.gguf.tensors
    # Of GLM-4.1V they have the merger's width here.
    inner = encoder.shape("mm.up.weight", 2)[0] if has_positions else encoder.intermediate_size
    return {
        "depth": encoder.depth,
        "hidden_size": encoder.width,
        "num_heads": encoder.num_heads,
        "out_hidden_size": encoder.output_width,
        "intermediate_size": inner,
        "image_size": encoder.position_side if has_positions else encoder.image_size,
        "patch_size": encoder.patch_size,
        "spatial_merge_size": encoder.merge,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "rms_norm_eps": encoder.norm_eps,
        "attention_bias": "v.blk.0.attn_qkv.bias" in encoder.gguf.tensors,
    }


GLM4V = Projector(
    architectures={"glm4": "Glm4vForConditionalGeneration"},
    variant=_variant,
    names={
        "v.patch_embd": "visual.patch_embed.proj",
        "v.norm_embd": "visual.post_conv_layernorm",
        "v.position_embd": "visual.embeddings.position_embedding",
        "ln1": "visual.blocks.{}.norm1",
        "ln2": "visual.blocks.{}.norm2",
        "attn_qkv": "visual.blocks.{}.attn.qkv",
        "attn_q_norm": "visual.blocks.{}.attn.q_norm",
        "attn_k_norm": "visual.blocks.{}.attn.k_norm",
        "attn_out": "visual.blocks.{}.attn.proj",
        "ffn_gate": "visual.blocks.{}.mlp.gate_proj",
        "ffn_up": "visual.blocks.{}.mlp.up_proj",
        "ffn_down": "visual.blocks.{}.mlp.down_proj",
        "v.post_ln": "visual.post_layernorm",
        "mm.patch_merger": "visual.downsample",
        "mm.model.fc": "visual.merger.proj",
        "mm.post_norm": "visual.merger.post_projection_norm",
        "mm.gate": "visual.merger.gate_proj",
        "mm.up": "visual.merger.up_proj",
        "mm.down": "visual.merger.down_proj",
    },
    output=("mm.model.fc.weight", 0),
    squares=None,
    encoder_config=_glm4v,
    activation="use_silu",
    files=partial(
        qwen_files,
        min_pixels=12_544,
        max_pixels=9_633_792,
        videos={"size": {"shortest_edge": 12_544, "longest_edge": 47_040_000}},
    ),
    placeholders={"image_token_id": ("<|image|>",), "video_token_id": ("<|video|>",)},
    has_mrope=True,
)
