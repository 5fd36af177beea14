"""A whole Qwen2-VL on the CUDA backend's operations. Without a GPU the kernels are interpreted."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from glimpse.engine.cuda.cuda_ops import CudaOps, TritonAttention
from tests.engine.harness import Harness, Prompt, ScriptedSequence, make_prompt

SHARED_TOKENS = 16
PICTURES = make_prompt(2, 5, (56, 56), 9, (28, 56), 4)
VIDEO = make_prompt(3, 3, (4, 28, 56), 6)


def answer_all(harness: Harness) -> list[ScriptedSequence]:
    """Prompts whole, in chunks, and with a cached prefix; then all of them decoding beside another prompt."""
    first = harness.begin(PICTURES)
    harness.step((first, len(PICTURES.token_ids)))
    longer = Prompt(token_ids=(*PICTURES.token_ids, 7, 8, 9), spans=PICTURES.spans, images=PICTURES.images)
    second = harness.begin(longer, cached=first, num_cached=SHARED_TOKENS)
    clip = harness.begin(VIDEO)
    harness.step((second, len(longer.token_ids) - SHARED_TOKENS), (first, 1), (clip, 4))
    harness.step((first, 1), (second, 1), (clip, len(VIDEO.token_ids) - 4))
    for _ in range(2):
        harness.step((first, 1), (second, 1), (clip, 1))
    return [first, second, clip]


def test_quantized_weights_are_computed_with(tiny_checkpoint: Path):
    ops = CudaOps(TritonAttention())
    harnesses = [Harness(tiny_checkpoint, quantization="int8"), Harness(tiny_checkpoint, quantization="int8", ops=ops)]
    plain, sequence = (harness.answer(harness.begin(make_prompt(1, 6)), 2) for harness in harnesses)
    torch.testing.assert_close(torch.stack(sequence.logits), torch.stack(plain.logits), rtol=1e-4, atol=1e-4)


def test_logits_and_answers_are_torchs(tiny_checkpoint: Path):
    expected = answer_all(Harness(tiny_checkpoint))
    for sequence, plain in zip(
        answer_all(Harness(tiny_checkpoint, ops=CudaOps(TritonAttention()))), expected, strict=True
    ):
        assert sequence.answer == plain.answer
        torch.testing.assert_close(torch.stack(sequence.logits), torch.stack(plain.logits), rtol=1e-4, atol=1e-4)
