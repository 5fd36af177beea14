"""The oracle of tests: transformers' Qwen2-Audio and its feature extractor. The engine never imports this."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import Qwen2AudioForConditionalGeneration, WhisperFeatureExtractor

from tests.oracles.answers import Answer, generate


@cache
def load_oracle(path: Path) -> Any:
    """Returns the reference model in float32."""
    model = Qwen2AudioForConditionalGeneration.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    return model.eval()


@torch.inference_mode()
def greedy_answer(
    path: Path, prompt: Sequence[int], audio_inputs: Sequence[npt.NDArray[np.float32]], num_tokens: int
) -> Answer:
    """Continues a prompt with placeholders for the audio inputs, [samples] at 16 kHz each."""
    media: dict[str, Any] = {}
    if audio_inputs:
        extractor = WhisperFeatureExtractor.from_pretrained(path)
        features = extractor(list(audio_inputs), sampling_rate=16_000, return_attention_mask=True, return_tensors="pt")
        media = {"input_features": features.input_features, "feature_attention_mask": features.attention_mask}
    return generate(load_oracle(path), prompt, num_tokens, **media)


def embeddings(path: Path, prompt: Sequence[int], audio: npt.NDArray[np.float32], placeholder_id: int) -> torch.Tensor:
    """Returns the output of the reference encoder and projector for a prompt's only audio input, [tokens, hidden]."""
    projected: list[torch.Tensor] = []
    model = load_oracle(path)
    (projector,) = (module for name, module in model.named_modules() if name.endswith("multi_modal_projector"))
    hook = projector.register_forward_hook(lambda module, args, output: projected.append(output[0]))
    try:
        greedy_answer(path, prompt, [audio], 1)
    finally:
        hook.remove()
    return projected[0][: list(prompt).count(placeholder_id)]
