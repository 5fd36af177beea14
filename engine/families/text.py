"""Models that read text alone: Qwen2, Qwen2.5, Qwen3, Llama, SmolLM2, Mistral and Phi-3."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from glimpse.engine.errors import CheckpointError
from glimpse.engine.families.fields import require, rope_of, text_config
from glimpse.engine.families.spec import FamilyConfig, FamilySpec

_MODULE = "text"
_NO_DEFAULTS: Mapping[str, Any] = {}


def _read_config(
    config: Mapping[str, Any],
    *,
    qkv_bias: bool = False,
    head_norms: bool = False,
    defaults: Mapping[str, Any] = _NO_DEFAULTS,
) -> FamilyConfig:
    """
    Args:
        config: the document.
        qkv_bias: as in `TextConfig`.
        head_norms: as in `TextConfig`.
        defaults: values of fields that the document may leave out.
    """
    require("hidden_act", config.get("hidden_act", "silu"), "silu")
    for field in ("mlp_bias", "attention_bias"):
        if config.get(field):
            raise CheckpointError(f"config.json: '{field}': expected false, got true")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(
            f"config.json: 'partial_rotary_factor': expected 1.0, got {config['partial_rotary_factor']}"
        )
    text = {"rope_theta": 10_000.0, **defaults, **config}
    return FamilyConfig(
        text=text_config(text, config, rope_of(config), qkv_bias=qkv_bias, head_norms=head_norms),
        placeholder_ids={},
    )


QWEN2 = FamilySpec(read_config=partial(_read_config, qkv_bias=True), module=_MODULE)
QWEN3 = FamilySpec(read_config=partial(_read_config, head_norms=True), module=_MODULE)
LLAMA = FamilySpec(read_config=_read_config, module=_MODULE)
# Their `sliding_window` counts without a field that turns it on. Mistral's default is that of transformers.
PHI3 = FamilySpec(read_config=partial(_read_config, defaults={"use_sliding_window": True}), module=_MODULE)
MISTRAL = FamilySpec(
    read_config=partial(_read_config, defaults={"use_sliding_window": True, "sliding_window": 4096}), module=_MODULE
)
