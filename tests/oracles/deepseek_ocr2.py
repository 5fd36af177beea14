"""The oracle of tests: transformers' DeepSeek-OCR-2. The engine never imports this."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    DeepseekOcr2Config,
    DeepseekOcr2ForConditionalGeneration,
    DeepseekOcr2ImageProcessorPil,
    DeepseekOcr2Processor,
    TokenizersBackend,
)

from glimpse.engine.protocol.media import MediaSpan
from tests.oracles.answers import Answer, generate, load_oracle

TILE, OVERVIEW = 48, 64
"""Sides in patches."""


def squares_of(patches: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tiles of an image and its overview, uint8 [squares, side, side, 3] each, of patches as in
    `PageTiles`."""
    size = patches.shape[1]
    of_tiles, overview = np.split(patches, [len(patches) - OVERVIEW**2])
    cut = of_tiles.reshape(rows, TILE, columns, TILE, size, size, 3).transpose(0, 2, 1, 4, 3, 5, 6)
    whole = overview.reshape(OVERVIEW, OVERVIEW, size, size, 3).swapaxes(1, 2)
    return cut.reshape(-1, TILE * size, TILE * size, 3), whole.reshape(1, OVERVIEW * size, OVERVIEW * size, 3)


def greedy_answer(
    path: Path, prompt: Sequence[int], spans: Sequence[MediaSpan], images: Sequence[np.ndarray], num_tokens: int
) -> Answer:
    """Continues a prompt with images."""
    key = (path, tuple(prompt), tuple(span.key for span in spans), num_tokens)
    if key not in _ANSWERS:
        _ANSWERS[key] = _greedy_answer(path, prompt, spans, images, num_tokens)
    return _ANSWERS[key]


_ANSWERS: dict[Any, Answer] = {}
"""Answers to prompts, since attention to all patches takes seconds."""


@torch.inference_mode()
def _greedy_answer(
    path: Path, prompt: Sequence[int], spans: Sequence[MediaSpan], images: Sequence[np.ndarray], num_tokens: int
) -> Answer:
    media: dict[str, Any] = {}
    if images:
        squares = [squares_of(image, *span.grid) for image, span in zip(images, spans, strict=True)]
        media["pixel_values"] = torch.cat([_pixels(overview) for _, overview in squares])
        media["num_local_patches"] = [len(tiles) for tiles, _ in squares]
        if any(media["num_local_patches"]):
            media["pixel_values_local"] = torch.cat([_pixels(tiles) for tiles, _ in squares])
    return generate(load_oracle(path), prompt, num_tokens, **media)


def _pixels(squares: np.ndarray) -> Tensor:
    return (torch.from_numpy(squares.copy()).float() / 127.5 - 1).movedim(-1, 1)


@cache
def processor(path: Path) -> Any:
    """Returns the reference processor, without the token that starts texts."""
    tokenizer = TokenizersBackend(
        tokenizer_object=Tokenizer.from_file(str(path / "tokenizer.json")),
        extra_special_tokens={"image_token": "<image>"},
    )
    images: Any = DeepseekOcr2ImageProcessorPil.from_pretrained(path)
    return DeepseekOcr2Processor(images, tokenizer, patch_size=images.tile_size // TILE)


def make_network(config: Mapping[str, Any]) -> Any:
    """Returns transformers' model of a published `config.json`, whose sizes of the second encoder are in code."""
    sam, width = config["vision_config"]["width"]["sam_vit_b"], config["projector_config"]["input_dim"]
    text: Mapping[str, Any] = config["language_config"]
    num_sparse = text["num_hidden_layers"] - text["first_k_dense_replace"]
    kinds = ["dense"] * text["first_k_dense_replace"] + ["sparse"] * num_sparse
    sizes = {"hidden_size": sam["width"], "num_hidden_layers": sam["layers"], "num_attention_heads": sam["heads"]}
    encoder = {
        "hidden_size": width,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    }
    document = DeepseekOcr2Config(
        text_config={**text, "mlp_layer_types": kinds},
        vision_config={
            "sam_config": {**sizes, "global_attn_indexes": sam["global_attn_indexes"]},
            "encoder_config": encoder,
        },
    )
    return DeepseekOcr2ForConditionalGeneration(document)
