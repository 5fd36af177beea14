"""ColQwen2 (arXiv 2407.01449): Qwen2-VL or Qwen2.5-VL with a vector for each token, for late interaction."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.families.qwen.qwen2_vl import QWEN2_5_VL, QWEN2_VL, read_media
from glimpse.engine.checkpoint.families.spec import FamilyConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig, read_json
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.media_processing import MediaProcessing

_BODIES = {"qwen2_vl": QWEN2_VL, "qwen2_5_vl": QWEN2_5_VL}
_QUERY_PREFIX, _QUERY_SUFFIX = "Query: ", "<|endoftext|>" * 10 + "\n"
_DOCUMENT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
"""The prompts of transformers' processor (models/colqwen2/processing_colqwen2.py), which repeats the padding token."""
_PROMPTS = {"query_prefix": _QUERY_PREFIX, "visual_prompt_prefix": _DOCUMENT}
_TEMPLATE = (
    f"{{%- set prefix, suffix, document = {_QUERY_PREFIX!r}, {_QUERY_SUFFIX!r}, {_DOCUMENT!r} %}}\n"
    """\
{%- for message in messages %}
{%- set text = [{'type': 'text', 'text': message.content}] %}
{%- for part in (text if message.content is string else message.content) %}
{%- if part.type == 'text' %}
{{- prefix + part.text + suffix if is_query else part.text }}
{%- elif part.type == 'image' %}
{{- document }}
{%- else %}
{{- raise_exception('this model does not support content of type ' + part.type) }}
{%- endif %}
{%- endfor %}
{%- endfor %}
"""
)
"""A document; with `is_query`, a query."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    body: Mapping[str, Any] = config["vlm_config"]
    if (kind := body.get("model_type")) not in _BODIES:
        expected = ", ".join(map(repr, _BODIES))
        raise CheckpointError(f"config.json: 'vlm_config.model_type': expected one of {expected}; got {kind!r}")
    family = _BODIES[kind].read_config(body)
    return replace(
        family,
        text=replace(family.text, tie_word_embeddings=True),  # no token is sampled: the head takes no memory
        placeholder_ids={"image": family.placeholder_ids["image"]},
        token_embedding_size=config.get("embedding_dim", 128),
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    stored = read_json(path / "processor_config.json", is_optional=True)
    for field, supported in _PROMPTS.items():
        if (value := stored.get(field) or supported) != supported:
            raise CheckpointError(f"processor_config.json: '{field}': expected {supported!r}, got {value!r}")
    return replace(read_media(path, config), videos=None)


COLQWEN2 = replace(
    QWEN2_VL,
    read_config=_read_config,
    document_template=_TEMPLATE,
    query_affixes=(_QUERY_PREFIX, _QUERY_SUFFIX),
    fallback_template=None,
    tool_template=None,
    slot_texts={MediaKind.IMAGE: QWEN2_VL.slot_texts[MediaKind.IMAGE]},
    read_media=_read_media,
    grounding=(),
)
