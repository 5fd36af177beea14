"""Names and fields that encoders like CLIP's and SigLIP's share."""

from functools import partial
from typing import Any

from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder

PREPROCESSOR, VIDEO_PREPROCESSOR = "preprocessor_config.json", "video_preprocessor_config.json"


def vit_names(tower: str) -> dict[str, str]:
    """Returns names of CLIP and SigLIP behind that of the tower."""
    return {
        "v.class_embd": f"{tower}.embeddings.class_embedding",
        "v.patch_embd": f"{tower}.embeddings.patch_embedding",
        "v.position_embd": f"{tower}.embeddings.position_embedding",
        "v.pre_ln": f"{tower}.pre_layrnorm",  # so published
        "ln1": f"{tower}.encoder.layers.{{}}.layer_norm1",
        "ln2": f"{tower}.encoder.layers.{{}}.layer_norm2",
        "attn_q": f"{tower}.encoder.layers.{{}}.self_attn.q_proj",
        "attn_k": f"{tower}.encoder.layers.{{}}.self_attn.k_proj",
        "attn_v": f"{tower}.encoder.layers.{{}}.self_attn.v_proj",
        "attn_out": f"{tower}.encoder.layers.{{}}.self_attn.out_proj",
        "ffn_up": f"{tower}.encoder.layers.{{}}.mlp.fc1",
        "ffn_down": f"{tower}.encoder.layers.{{}}.mlp.fc2",
        "v.post_ln": f"{tower}.post_layernorm",
    }


def vit(encoder: MmprojEncoder, *, model_type: str, hidden_act: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": encoder.width,
        "intermediate_size": encoder.intermediate_size,
        "num_hidden_layers": encoder.depth,
        "num_attention_heads": encoder.num_heads,
        "image_size": encoder.image_size,
        "patch_size": encoder.patch_size,
        "hidden_act": hidden_act,
        "layer_norm_eps": encoder.norm_eps,
    }


siglip = partial(vit, model_type="siglip_vision_model", hidden_act="gelu_pytorch_tanh")


def square_files(encoder: MmprojEncoder, **fields: Any) -> Files:
    size = {"height": encoder.image_size, "width": encoder.image_size}
    return {PREPROCESSOR: {"size": size, **fields, **encoder.statistics}}
