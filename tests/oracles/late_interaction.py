"""The oracle of late interaction: transformers' ColQwen2 and ColPali with their processors."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from transformers import (
    ColPaliForRetrieval,
    ColPaliProcessor,
    ColQwen2ForRetrieval,
    ColQwen2Processor,
    Qwen2VLImageProcessorPil,
    SiglipImageProcessorPil,
    TokenizersBackend,
)


@cache
def _is_colpali(path: Path) -> bool:
    return json.loads((path / "config.json").read_text())["model_type"] == "colpali"


@cache
def processor(path: Path) -> Any:
    return processor_of(path, ColPaliProcessor if _is_colpali(path) else ColQwen2Processor)


@cache
def processor_of(path: Path, kind: Any) -> Any:
    """Returns the reference's processor of a kind, with the tokenizer and the preprocessor in a checkpoint's folder."""
    tokens = json.loads((path / "tokenizer_config.json").read_text())
    special = {name: tokens[name] for name in ("bos_token", "eos_token", "pad_token") if name in tokens}
    tokenizer = TokenizersBackend(tokenizer_file=str(path / "tokenizer.json"), **special)
    if kind is ColQwen2Processor:
        return kind(Qwen2VLImageProcessorPil.from_pretrained(path), tokenizer)
    # Of published checkpoints' tokenizer class, `add_bos_token = False` does this.
    tokenizer.backend_tokenizer.post_processor = None
    return kind(SiglipImageProcessorPil.from_pretrained(path), tokenizer)


@cache
def _load(path: Path) -> Any:
    kind: Any = ColPaliForRetrieval if _is_colpali(path) else ColQwen2ForRetrieval
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()


def queries(path: Path, texts: Sequence[str]) -> list[tuple[list[int], Tensor]]:
    """Returns the token ids and the vectors, [tokens, size], of each query."""
    return [_vectors(path, processor(path)(text=[text], return_tensors="pt")) for text in texts]


def documents(path: Path, images: Sequence[PIL.Image.Image]) -> list[tuple[list[int], Tensor]]:
    """Does what `queries` does, for images of documents."""
    return [_vectors(path, processor(path)(images=[image], return_tensors="pt")) for image in images]


@torch.inference_mode()
def _vectors(path: Path, inputs: Any) -> tuple[list[int], Tensor]:
    compute: Callable[..., Any] = _colpali if _is_colpali(path) else _colqwen2
    return inputs["input_ids"][0].tolist(), compute(_load(path), **inputs).embeddings[0]


def _colpali(model: Any, **inputs: Any) -> Any:
    assert not inputs["token_type_ids"].any()  # the whole prompt is a prefix, so that it attends to all of itself
    return model(**inputs)


def _colqwen2(model: Any, *, input_ids: Tensor, attention_mask: Tensor, **media: Any) -> Any:
    # As it was trained: given token ids, transformers 4 computed these positions.
    types = (input_ids == model.config.vlm_config.image_token_id).long()
    grid = media.get("image_grid_thw")
    positions, _ = model.vlm.get_rope_index(input_ids, types, image_grid_thw=grid, attention_mask=attention_mask)
    media = {name: tensor for name, tensor in media.items() if name in ("pixel_values", "image_grid_thw")}
    return model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, **media)


def score(path: Path, query: Tensor, document: Tensor) -> float:
    """Returns the processor's score of a pair."""
    return processor(path).score_retrieval([query], [document]).item()
