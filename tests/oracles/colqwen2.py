"""The oracle of late interaction: transformers' ColQwen2 and its processor."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import PIL.Image
import torch
from torch import Tensor
from transformers.models.colqwen2.modeling_colqwen2 import ColQwen2ForRetrieval
from transformers.models.colqwen2.processing_colqwen2 import ColQwen2Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.tokenization_utils_tokenizers import TokenizersBackend


@cache
def processor(path: Path) -> Any:
    tokenizer = TokenizersBackend(
        tokenizer_file=str(path / "tokenizer.json"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    return ColQwen2Processor(Qwen2VLImageProcessorPil.from_pretrained(path), tokenizer)


@cache
def _load(path: Path) -> Any:
    return ColQwen2ForRetrieval.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()


def queries(path: Path, texts: Sequence[str]) -> list[tuple[list[int], Tensor]]:
    """Returns the token ids and the vectors, [tokens, size], of each query."""
    return [_vectors(path, **processor(path)(text=[text], return_tensors="pt")) for text in texts]


def documents(path: Path, images: Sequence[PIL.Image.Image]) -> list[tuple[list[int], Tensor]]:
    """Does what `queries` does, for images of documents."""
    return [_vectors(path, **processor(path)(images=[image], return_tensors="pt")) for image in images]


@torch.inference_mode()
def _vectors(path: Path, *, input_ids: Tensor, attention_mask: Tensor, **media: Any) -> tuple[list[int], Tensor]:
    model = _load(path)
    # As it was trained: given token ids, transformers 4 computed these positions.
    types = (input_ids == model.config.vlm_config.image_token_id).long()
    grid = media.get("image_grid_thw")
    positions, _ = model.vlm.get_rope_index(input_ids, types, image_grid_thw=grid, attention_mask=attention_mask)
    media = {name: tensor for name, tensor in media.items() if name in ("pixel_values", "image_grid_thw")}
    output = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, **media)
    return input_ids[0].tolist(), output.embeddings[0]


def score(path: Path, query: Tensor, document: Tensor) -> float:
    """Returns the processor's score of a pair."""
    return processor(path).score_retrieval([query], [document]).item()
