"""LLaVA-NeXT, which is also called LLaVA-1.6: LLaVA-1.5 with the tiles of each image of a prompt."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from glimpse.engine.checkpoint.families.llava.llava import llava_encoder, token_id
from glimpse.engine.checkpoint.families.llava.llava_onevision import (
    embedding_grid,
    largest_image,
    read_resolutions,
    read_tiles,
    tokens_of_tiles,
)
from glimpse.engine.checkpoint.families.reading.preprocessor import PREPROCESSOR, check_square
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.families.text import nested_decoder, nested_eos_token_ids
from glimpse.engine.checkpoint.model_config.encoders import LlavaOneVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import read_json

DEFAULT_RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    tower = llava_encoder(config, feature_layer=-2, strategy="default")
    tile = tower.vit.image_size
    if tower.num_tokens != tower.vit.side**2:
        raise CheckpointError(
            "config.json: 'vision_feature_select_strategy': expected 'default', since tiles have no class token,"
            " got 'full'"
        )
    resolutions = read_resolutions(config, DEFAULT_RESOLUTIONS, tile=tile)
    # Features are never reduced: no image has more tiles than the largest resolution.
    max_tiles = max(map(math.prod, resolutions)) // tile**2
    # Unlike in LLaVA-1.5 and LLaVA-OneVision, `text_config` alone does not tie the weights in transformers.
    text = {**config["text_config"], "tie_word_embeddings": False}
    return FamilyConfig(
        text=nested_decoder({**config, "text_config": text}),
        encoder=LlavaOneVisionConfig(tower=tower, resolutions=resolutions, max_tiles=max_tiles),
        placeholder_ids={"image": token_id(config, "image")},
        eos_token_ids=nested_eos_token_ids(config),
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images, which are cut into tiles, also those of a prompt with several."""
    processor = read_json(path / PREPROCESSOR)
    sizing = read_tiles(processor, config, DEFAULT_RESOLUTIONS)
    if processor.get("size") != {"shortest_edge": sizing.tile}:  # of the overview, which is stretched to a square
        check_square(processor, "size", sizing.tile)
    check_square(processor, "crop_size", sizing.tile)
    return MediaProcessing(images=ImageProcessing(sizing=structs.replace(sizing, tiles_several=True)))


LLAVA_NEXT = FamilySpec(
    read_config=_read_config,
    module="llava_onevision",
    read_media=_read_media,
    layout=tokens_of_tiles,
    largest_medium=largest_image,
    embedding_grid=embedding_grid,
)
