"""LLaVA-1.5 (arXiv 2310.03744)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.grounding import TextForm
from glimpse.engine.checkpoint.families.reading.fields import require
from glimpse.engine.checkpoint.families.reading.preprocessor import check_square
from glimpse.engine.checkpoint.families.reading.rows import only_grid
from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.text import nested_decoder, nested_eos_token_ids
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, one_run
from glimpse.engine.checkpoint.model_config.encoders import LlavaConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import PREPROCESSOR, check_processor, read_image_processor
from glimpse.media.processing.sizing.fixed_size import FixedSize

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

VICUNA_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role != 'system' %}
{{- message.role|upper + ': ' }}
{%- endif %}
{%- for part in message.content if part.type != 'text' %}
{%- if part.type != 'image' %}
{{- raise_exception('this model does not support content of type ' + part.type) }}
{%- endif %}
{{- '<image>\\n' }}
{%- endfor %}
{%- for part in message.content if part.type == 'text' %}
{{- part.text + ' ' }}
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- 'ASSISTANT:' }}
{%- endif %}
"""
"""Vicuna's chat format, with a message's images before its texts."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    return FamilyConfig(
        text=nested_decoder(config),
        encoder=llava_encoder(config, feature_layer=-2, strategy="default"),
        placeholder_ids={"image": token_id(config, "image")},
        eos_token_ids=nested_eos_token_ids(config),
    )


def llava_encoder(config: Mapping[str, Any], *, feature_layer: int, strategy: str) -> LlavaConfig:
    """Reads the encoder.

    Args:
        feature_layer: default of `vision_feature_layer`.
        strategy: default of `vision_feature_select_strategy`.
    """
    require("projector_hidden_act", config.get("projector_hidden_act", "gelu"), "gelu")
    layer = config.get("vision_feature_layer", feature_layer)
    if not isinstance(layer, int):
        raise CheckpointError(f"config.json: 'vision_feature_layer': expected an integer, got {layer!r}")
    select = config.get("vision_feature_select_strategy", strategy)
    if select not in ("default", "full"):
        raise CheckpointError(
            f"config.json: 'vision_feature_select_strategy': expected 'default' or 'full', got {select!r}"
        )
    vit = vit_config(config["vision_config"], feature_layer=layer)
    if select == "default" and not vit.class_token:
        raise CheckpointError(
            "config.json: 'vision_feature_select_strategy': expected 'full' for an encoder without class token,"
            " got 'default'"
        )
    return LlavaConfig(
        vit=vit, drops_first=select == "default", projector_bias=config.get("multimodal_projector_bias", True)
    )


def token_id(config: Mapping[str, Any], kind: str) -> int:
    """Returns the placeholder token of a kind of media; transformers renamed the field."""
    return config[f"{kind}_token_id"] if f"{kind}_token_id" in config else config[f"{kind}_token_index"]


def read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images: of one size, which is the encoder's."""
    encoder = config.encoder_as(LlavaConfig)
    processor = read_image_processor(path)
    check_processor(processor)
    if processor.get("do_pad"):
        raise ValueError(f"{PREPROCESSOR}: 'do_pad': expected false, got {processor['do_pad']!r}")
    return MediaProcessing(images=ImageProcessing(sizing=_sizing(processor, encoder.vit.image_size)))


def _sizing(processor: Mapping[str, Any], side: int) -> FixedSize:
    size = processor.get("size")
    shortest = size if isinstance(size, int) else (size or {}).get("shortest_edge")
    if shortest is None:
        check_square(processor, "size", side)
        return FixedSize(side=side)
    if processor.get("do_center_crop", True) is not True:
        raise ValueError(f"{PREPROCESSOR}: 'do_center_crop': expected true, got {processor['do_center_crop']!r}")
    check_square(processor, "crop_size", side)
    if not isinstance(shortest, int) or shortest < side:
        raise ValueError(
            f"{PREPROCESSOR}: 'size.shortest_edge': expected at least the encoder's {side} pixels, got {shortest!r}"
        )
    return FixedSize(side=side, shortest_edge=shortest)


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image, which are always as many."""
    encoder = context.model.encoder_as(LlavaConfig)
    return one_run(medium.kind, encoder.num_tokens)


def _embedding_grid(config: ModelConfig, _kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    encoder = config.encoder_as(LlavaConfig)
    return only_grid(num_rows, encoder.num_tokens)


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    encoder = config.encoder_as(LlavaConfig)
    return LargestMedium.of_images(encoder.vit, encoder.num_tokens, num_tokens)


_GROUNDING = (TextForm(pattern=re.compile(r"\[(?P<box>\s*[01]\.\d{1,4}(?:\s*,\s*[01]\.\d{1,4}){3}\s*)\]"), scale=1),)
"""Fractions of the square that the encoder gets, as in the training data (haotian-liu/LLaVA issue 606)."""
LLAVA = FamilySpec(
    read_config=_read_config,
    module="llava.llava",
    fallback_template=VICUNA_TEMPLATE,
    read_media=read_media,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
    grounding=_GROUNDING,
)
