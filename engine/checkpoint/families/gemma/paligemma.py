"""PaliGemma (arXiv 2407.07726): Gemma's first decoder after SigLIP, whose prompts attend to themselves in both
directions; and ColPali (arXiv 2407.01449), which has a vector for each token, for late interaction."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.grounding import LOCATION_TOKENS
from glimpse.engine.checkpoint.families.reading.fields import require, rope_of, text_config
from glimpse.engine.checkpoint.families.reading.late_interaction import RetrievalPrompts, retriever
from glimpse.engine.checkpoint.families.reading.preprocessor import check_square
from glimpse.engine.checkpoint.families.reading.rows import only_grid
from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import VitConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import check_processor, read_image_processor
from glimpse.media.processing.sizing.fixed_size import FixedSize

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 257_152,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 8192,
}
"""Values of fields that documents leave out, as in transformers' models/gemma/configuration_gemma.py and, for sizes,
models/paligemma/configuration_paligemma.py."""
_ACTIVATIONS = ("gelu", "gelu_pytorch_tanh")
"""Values that mean the second; see transformers pull request 29402."""
_BOS = "<bos>"
_TEMPLATE = """\
{%- if messages | length != 1 or messages[0].role != 'user' %}
{{- raise_exception('this model answers one message of a user') }}
{%- endif %}
{%- set content = messages[0].content %}
{%- set parts = [{'type': 'text', 'text': content}] if content is string else content %}
{%- for part in parts if part.type != 'text' %}
{%- if part.type != 'image' %}
{{- raise_exception('this model does not support content of type ' + part.type) }}
{%- endif %}
{{- '<image>' }}
{%- endfor %}
{{- '<bos>' }}
{%- for part in parts if part.type == 'text' %}
{{- part.text }}
{%- endfor %}
{{- '\\n' }}
"""
"""The prompt of transformers' models/paligemma/processing_paligemma.py."""


def _read_decoder(config: Mapping[str, Any], num_image_tokens: int) -> TextConfig:
    """Reads the decoder's fields.

    Raises:
        CheckpointError: a value is not supported, such as the decoder of PaliGemma 2.
    """
    text = {**_DEFAULTS, **config["text_config"]}
    require("text_config.model_type", text.get("model_type", "gemma"), "gemma")
    require("text_config.attention_bias", text.get("attention_bias", False), False)
    require("text_config.use_bidirectional_attention", text.get("use_bidirectional_attention") in (None, True), True)
    for name in ("hidden_act", "hidden_activation"):
        if (value := text.get(name) or _ACTIVATIONS[1]) not in _ACTIVATIONS:
            raise CheckpointError(
                f"config.json: 'text_config.{name}': expected {' or '.join(map(repr, _ACTIVATIONS))}, got {value!r}"
            )
    return text_config(
        text,
        {"tie_word_embeddings": config.get("tie_word_embeddings", True)},
        rope_of(text),
        qkv_bias=False,
        activation="gelu_tanh",
        embedding_factor=text["hidden_size"] ** 0.5,
        zero_centered_norms=True,
        bidirectional_run=num_image_tokens,
        bidirectional_prompt=True,
    )


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    encoder = vit_config(config["vision_config"])
    image = config.get("image_token_id", config.get("image_token_index", 256_000))
    return FamilyConfig(
        text=_read_decoder(config, encoder.num_positions),
        encoder=encoder,
        placeholder_ids={"image": image},
        eos_token_ids=(1,),
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images, which are stretched to the encoder's size."""
    processor = read_image_processor(path)
    check_processor(processor)
    side = config.encoder_as(VitConfig).image_size
    check_square(processor, "size", side)
    return MediaProcessing(images=ImageProcessing(sizing=FixedSize(side=side)))


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image. Nothing stands before it: the token that starts texts stands behind it."""
    start = tuple(context.encode(_BOS))
    return TokenLayout(kind=medium.kind, pieces=(context.model.encoder_as(VitConfig).num_positions,), prefix=start)


def _embedding_grid(config: ModelConfig, _kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    return only_grid(num_rows, config.encoder_as(VitConfig).num_positions)


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    encoder = config.encoder_as(VitConfig)
    return LargestMedium.of_images(encoder, encoder.num_positions, num_tokens)


PALIGEMMA = FamilySpec(
    read_config=_read_config,
    module="gemma.paligemma",
    fallback_template=_TEMPLATE,
    slots_in_lines=False,
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
    grounding=(LOCATION_TOKENS,),
)
_PROMPTS = RetrievalPrompts(
    query=(f"{_BOS}Question: ", "<pad>" * 10 + "\n"),
    image=f"<image>{_BOS}Describe the image.\n",
    fields={"query_prefix": "Question: ", "visual_prompt_prefix": "Describe the image."},
)
"""The prompts of transformers' models/colpali/processing_colpali.py."""
COLPALI = retriever(PALIGEMMA, _PROMPTS, {"paligemma": _read_config})
