"""The reference: transformers' Qwen2-Audio and its feature extractor. The engine never imports this."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import Qwen2AudioForConditionalGeneration, WhisperFeatureExtractor

from tests.oracle import Answer


@cache
def load_oracle(path: Path) -> Any:
    """The reference model in float32."""
    model = Qwen2AudioForConditionalGeneration.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    return model.eval()


@torch.inference_mode()
def greedy_answer(
    path: Path, prompt: Sequence[int], sounds: Sequence[npt.NDArray[np.float32]], num_tokens: int
) -> Answer:
    """Continues a prompt in which each sound, [samples] at 16 kHz, has as many placeholders as it takes."""
    media: dict[str, Any] = {}
    if sounds:
        extractor = WhisperFeatureExtractor.from_pretrained(path)
        features = extractor(list(sounds), sampling_rate=16_000, return_attention_mask=True, return_tensors="pt")
        media = {"input_features": features.input_features, "feature_attention_mask": features.attention_mask}
    input_ids = torch.tensor([list(prompt)])
    output = load_oracle(path).generate(
        input_ids,
        **media,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return Answer(token_ids=output.sequences[0, len(prompt) :].tolist(), logits=torch.cat(output.logits).float())


def embeddings(path: Path, prompt: Sequence[int], sound: npt.NDArray[np.float32], placeholder_id: int) -> torch.Tensor:
    """What the reference's encoder and projector make of the only sound of a prompt: [tokens, hidden]."""
    projected: list[torch.Tensor] = []
    model = load_oracle(path)
    (projector,) = (module for name, module in model.named_modules() if name.endswith("multi_modal_projector"))
    hook = projector.register_forward_hook(lambda module, args, output: projected.append(output[0]))
    try:
        greedy_answer(path, prompt, [sound], 1)
    finally:
        hook.remove()
    return projected[0][: list(prompt).count(placeholder_id)]
