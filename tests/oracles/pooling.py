"""The oracle of embeddings: transformers' hidden states, pooled as sentence-transformers documents it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel, AutoModelForCausalLM

from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from tests.oracles.qwen_vl import image_processor, load_oracle


@cache
def _load_text_model(path: Path) -> Any:
    return AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()


@torch.inference_mode()
def text_states(path: Path, token_ids: Sequence[int]) -> Tensor:
    """Returns the hidden states of a text after the final norm, float32 [tokens, hidden_size]."""
    return _load_text_model(path)(torch.tensor([list(token_ids)])).last_hidden_state[0]


@torch.inference_mode()
def image_states(path: Path, token_ids: Sequence[int], images: Sequence[np.ndarray], image_token_id: int) -> Tensor:
    """Does what `text_states` does, for Qwen2-VL and images that need no resizing, uint8 [height, width, 3]."""
    ids = torch.tensor([list(token_ids)])
    media = image_processor(path)(list(images), return_tensors="pt")
    types = (ids == image_token_id).long()
    return load_oracle(path).model(ids, mm_token_type_ids=types, **media).last_hidden_state[0]


def pooled(states: Tensor, params: PoolingParams) -> np.ndarray:
    """Returns the embedding of a prompt, float32 [dimensions]."""
    vector = states[-1] if params.mode is PoolingMode.LAST_TOKEN else states.mean(dim=0)
    vector = vector[: params.dimensions]
    return (functional.normalize(vector, dim=0) if params.normalize else vector).numpy()


@cache
def _load_causal_model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()


@torch.inference_mode()
def next_token_logits(path: Path, token_ids: Sequence[int]) -> Tensor:
    """Returns the logits of the token after a text, float32 [vocab_size]."""
    return _load_causal_model(path)(torch.tensor([list(token_ids)])).logits[0, -1]
