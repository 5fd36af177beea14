"""Greedy answers of the reference models, as the oracles of all families make them. The engine never imports this."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A greedy answer of a reference model."""

    token_ids: list[int]
    logits: Tensor
    """float32 [answer tokens, vocab_size]"""


@cache
def load_oracle(path: Path) -> Any:
    """Returns the reference model of images, videos and text, in float32."""
    return AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()


@torch.inference_mode()
def generate(model: Any, prompt: Sequence[int], num_tokens: int, **inputs: Any) -> Answer:
    """Continues a prompt.

    Args:
        prompt: token ids, with placeholders for media.
        inputs: further arguments of the model. `inputs_embeds` takes the place of the token ids.
    """
    input_ids = torch.tensor([list(prompt)])
    output = model.generate(
        **({} if "inputs_embeds" in inputs else {"input_ids": input_ids}),
        **inputs,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return Answer(token_ids=output.sequences[0, -num_tokens:].tolist(), logits=torch.cat(output.logits).float())
