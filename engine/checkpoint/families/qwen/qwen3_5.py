"""Qwen3.5 and Qwen3.6: the decoder with gated delta nets, and Qwen3-VL's media."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glimpse.engine.checkpoint.families.qwen.qwen3_5_text import read_decoder
from glimpse.engine.checkpoint.families.qwen.qwen3_vl import QWEN3_VL, read_vision
from glimpse.engine.checkpoint.families.spec import FamilyConfig


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text: Mapping[str, Any] = config["text_config"]
    decoder = read_decoder(text, tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))))
    return FamilyConfig(
        text=decoder,
        # Some documents keep DeepStack's field, which the architecture ignores.
        encoder=read_vision({**config["vision_config"], "deepstack_visual_indexes": ()}, decoder.hidden_size),
        placeholder_ids={"image": config["image_token_id"], "video": config["video_token_id"]},
    )


QWEN3_5 = replace(QWEN3_VL, read_config=_read_config)
