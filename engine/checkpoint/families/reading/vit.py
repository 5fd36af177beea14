"""Reads the configuration of a vision transformer, `vision_config` of many families."""

from collections.abc import Mapping
from typing import Any, Literal

from glimpse.engine.checkpoint.families.reading.fields import require
from glimpse.engine.checkpoint.model_config.encoders import VitConfig
from glimpse.engine.errors import CheckpointError

_ACTIVATIONS: Mapping[str, Literal["quick_gelu", "gelu_tanh"]] = {
    "quick_gelu": "quick_gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}

_SIGLIP: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "clip_vision_model": {**_SIGLIP, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    "siglip_vision_model": _SIGLIP,
    "idefics3_vision": {**_SIGLIP, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32},
    "smolvlm_vision": {**_SIGLIP, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32},
}
"""`model_type` → values of fields that a document may leave out, as in transformers' configurations."""


def vit_config(vision: Mapping[str, Any], *, feature_layer: int | None = None) -> VitConfig:
    """Reads the encoder.

    Args:
        vision: the encoder's fields.
        feature_layer: the layer whose output the model takes: 0 for the embeddings, 1 for the first layer, -1 for the
            last. None: the last one, and the norm after it.

    Raises:
        KeyError: a field is missing.
        CheckpointError: a value is not supported.
    """
    kind = vision["model_type"]
    if kind not in _DEFAULTS:
        raise CheckpointError(
            f"config.json: 'vision_config.model_type': expected one of {', '.join(_DEFAULTS)}; got {kind!r}"
        )
    fields = {**_DEFAULTS[kind], **vision}
    require("vision_config.num_channels", fields.get("num_channels", 3), 3)
    if fields["hidden_act"] not in _ACTIVATIONS:
        raise CheckpointError(
            "config.json: 'vision_config.hidden_act': expected 'quick_gelu' or 'gelu_pytorch_tanh',"
            f" got {fields['hidden_act']!r}"
        )
    class_token = kind == "clip_vision_model"
    return VitConfig(
        width=fields["hidden_size"],
        intermediate_size=fields["intermediate_size"],
        num_layers=_num_layers(fields["num_hidden_layers"], feature_layer),
        num_heads=fields["num_attention_heads"],
        image_size=fields["image_size"],
        patch_size=fields["patch_size"],
        activation=_ACTIVATIONS[fields["hidden_act"]],
        norm_eps=fields["layer_norm_eps"],
        class_token=class_token,
        patch_bias=not class_token,
        pre_norm=class_token,
        post_norm=feature_layer is None,
    )


def _num_layers(num_layers: int, feature_layer: int | None) -> int:
    """Returns how many layers the output needs."""
    if feature_layer is None:
        return num_layers
    needed = feature_layer if feature_layer >= 0 else num_layers + 1 + feature_layer
    if not 0 <= needed <= num_layers:
        raise CheckpointError(
            f"config.json: 'vision_feature_layer': expected an integer from {-num_layers - 1} to {num_layers},"
            f" got {feature_layer}"
        )
    return needed
