"""The encoders of Gemma 4: of images, and in small models of audio too."""

from collections.abc import Mapping
from typing import Any

from glimpse.engine.checkpoint.gguf.architectures import MAX_LAYERS, Change
from glimpse.engine.checkpoint.gguf.encoder import MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.vit import PREPROCESSOR

_LAYER = "vision_tower.encoder.layers.{}."
_LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_AUDIO_LAYER = "audio_tower.layers.{}."
_AUDIO_LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.post",
    "ffn_up": "feed_forward1.ffw_layer_1",
    "ffn_down": "feed_forward1.ffw_layer_2",
    "ffn_up_1": "feed_forward2.ffw_layer_1",
    "ffn_down_1": "feed_forward2.ffw_layer_2",
    "conv_pw1": "lconv1d.linear_start",
    "conv_pw2": "lconv1d.linear_end",
}
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def _linear_names(prefix: str, layer: str, linears: Mapping[str, str]) -> dict[str, str]:
    """Returns names of weights, and of bounds of what goes in and comes out."""
    return {
        **{f"{prefix}{name}.weight": f"{layer}{own}.linear.weight" for name, own in linears.items()},
        **{f"{prefix}{name}.{bound}": f"{layer}{own}.{bound}" for name, own in linears.items() for bound in _BOUNDS},
    }


_AUDIO_NAMES: Mapping[str, str] = {
    **{f"a.conv1d.{index}": f"audio_tower.subsample_conv_projection.layer{index}.conv" for index in (0, 1)},
    **{f"a.conv1d.{index}.norm": f"audio_tower.subsample_conv_projection.layer{index}.norm" for index in (0, 1)},
    "a.input_projection": "audio_tower.subsample_conv_projection.input_proj_linear",
    **_linear_names("a.", _AUDIO_LAYER, _AUDIO_LINEARS),
    "a.attn_k_rel": f"{_AUDIO_LAYER}self_attn.relative_k_proj",
    "a.per_dim_scale.weight": f"{_AUDIO_LAYER}self_attn.per_dim_scale",
    "a.attn_pre_norm": f"{_AUDIO_LAYER}norm_pre_attn",
    "a.attn_post_norm": f"{_AUDIO_LAYER}norm_post_attn",
    "a.ffn_norm": f"{_AUDIO_LAYER}feed_forward1.pre_layer_norm",
    "a.ffn_post_norm": f"{_AUDIO_LAYER}feed_forward1.post_layer_norm",
    "a.ffn_norm_1": f"{_AUDIO_LAYER}feed_forward2.pre_layer_norm",
    "a.ffn_post_norm_1": f"{_AUDIO_LAYER}feed_forward2.post_layer_norm",
    "a.conv_norm": f"{_AUDIO_LAYER}lconv1d.pre_layer_norm",
    "a.conv_dw": f"{_AUDIO_LAYER}lconv1d.depthwise_conv1d",
    "a.norm_conv": f"{_AUDIO_LAYER}lconv1d.conv_norm",
    "a.ln2": f"{_AUDIO_LAYER}norm_out",
    "a.pre_encode.out": "audio_tower.output_proj",
    "mm.a.input_projection": "embed_audio.embedding_projection",
}


def _audio(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the encoder of audio, if there is one."""
    if not encoder.keys.get("has_audio_encoder"):
        return {}
    fields = {
        "hidden_size": encoder.keys.size("audio.embedding_length"),
        "num_hidden_layers": encoder.keys.size("audio.block_count", most=MAX_LAYERS),
        "num_attention_heads": encoder.keys.size("audio.attention.head_count"),
        "subsampling_conv_channels": [encoder.shape(f"a.conv1d.{index}.weight", 4)[0] for index in (0, 1)],
        "conv_kernel_size": encoder.shape("a.blk.0.conv_dw.weight", 2)[1],
        "output_proj_dims": encoder.shape("a.pre_encode.out.weight", 2)[0],
        "use_clipped_linears": "a.blk.0.attn_q.input_min" in encoder.gguf.tensors,
    }
    return {"audio_config": fields}


def _gemma4(encoder: MmprojEncoder) -> dict[str, Any]:
    has = encoder.gguf.tensors.__contains__
    return {
        "hidden_size": encoder.width,
        "intermediate_size": encoder.intermediate_size,
        "num_hidden_layers": encoder.depth,
        "num_attention_heads": encoder.num_heads,
        "head_dim": encoder.shape("v.blk.0.attn_q.weight", 2)[0] // encoder.num_heads,
        "patch_size": encoder.patch_size,
        "pooling_kernel_size": encoder.merge,
        "position_embedding_size": encoder.shape("v.position_embd.weight", 3)[1],
        "rms_norm_eps": encoder.norm_eps,
        "use_clipped_linears": has("v.blk.0.attn_q.input_min"),
        "standardize": has("v.std_bias"),
    }


GEMMA4 = Projector(
    architectures={"gemma4": "Gemma4ForConditionalGeneration"},
    names={
        "v.patch_embd": "vision_tower.patch_embedder.input_proj",
        "v.position_embd.weight": "vision_tower.patch_embedder.position_embedding_table",
        "v.std_bias": "vision_tower.std_bias",
        "v.std_scale": "vision_tower.std_scale",
        **_linear_names("", _LAYER, _LINEARS),
        "attn_q_norm": f"{_LAYER}self_attn.q_norm",
        "attn_k_norm": f"{_LAYER}self_attn.k_norm",
        "ln1": f"{_LAYER}input_layernorm",
        "attn_post_norm": f"{_LAYER}post_attention_layernorm",
        "ln2": f"{_LAYER}pre_feedforward_layernorm",
        "ffn_post_norm": f"{_LAYER}post_feedforward_layernorm",
        "mm.input_projection": "embed_vision.embedding_projection",
        **_AUDIO_NAMES,
    },
    changes={
        "v.patch_embd": Change.PATCHES,
        "per_dim_scale": Change.SOFTPLUS,
        "conv_dw": Change.SQUEEZED,
        **dict.fromkeys(_BOUNDS, Change.SCALAR),
    },
    output=("mm.input_projection.weight", 0),
    squares=None,
    merge_key="vision.projector.scale_factor",
    merge=3,
    encoder_config=_gemma4,
    config=_audio,
    files=lambda encoder: {
        PREPROCESSOR: {"patch_size": encoder.patch_size, "pooling_kernel_size": encoder.merge, "resample": 3}
    },
    placeholders={
        "image_token_id": ("<|image|>",),
        "boi_token_id": ("<|image>",),
        "eoi_token_id": ("<image|>",),
        "video_token_id": ("<|video|>", ""),
        "audio_token_id": ("<|audio|>", ""),
        "boa_token_id": ("<|audio>", ""),
        "eoa_token_id": ("<audio|>", ""),
    },
)
