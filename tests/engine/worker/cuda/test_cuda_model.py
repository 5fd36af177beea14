"""A whole Qwen2-VL model on the CUDA backend. Interpreted without a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.cuda.cuda_ops import CudaOps, TritonAttention
from glimpse.engine.worker.loading.load_engine import load_shard
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.engine.harness import Harness, Prompt, ScriptedSequence, make_prompt
from tests.engine.idefics3_prompts import tiled_prompt
from tests.engine.qwen3_vl_prompts import make_qwen3_prompt
from tests.engine.worker.cuda.steps import DEVICE
from tests.engine.worker.native.test_native_programs import decode_step, random_cache, tensors_of

SHARED_TOKENS = 16
IMAGES = make_prompt(2, 5, (56, 56), 9, (28, 56), 4)
VIDEO = make_prompt(3, 3, (4, 28, 56), 6)


def answer_all(harness: Harness) -> list[ScriptedSequence]:
    """Computes prompts at once, in chunks and with a cached prefix, and decodes them together with another prompt."""
    first = harness.begin(IMAGES)
    harness.step((first, len(IMAGES.token_ids)))
    longer = Prompt(token_ids=(*IMAGES.token_ids, 7, 8, 9), spans=IMAGES.spans, images=IMAGES.images)
    second = harness.begin(longer, cached=first, num_cached=SHARED_TOKENS)
    video = harness.begin(VIDEO)
    harness.step((second, len(longer.token_ids) - SHARED_TOKENS), (first, 1), (video, 4))
    harness.step((first, 1), (second, 1), (video, len(VIDEO.token_ids) - 4))
    for _ in range(2):
        harness.step((first, 1), (second, 1), (video, 1))
    return [first, second, video]


def test_qwen3_vl_matches_torch(tmp_path: Path):
    path = make_qwen3_vl_checkpoint(tmp_path)
    prompt = make_qwen3_prompt(8, 3, (32, 64), 2, (2, 32, 32), 2)
    plain, found = (Harness(path), Harness(path, ops=CudaOps(TritonAttention())))
    expected, sequence = (each.answer(each.begin(prompt), 2, chunks=[7]) for each in (plain, found))
    assert sequence.answer == expected.answer
    torch.testing.assert_close(torch.stack(sequence.logits), torch.stack(expected.logits), rtol=1e-4, atol=1e-4)


def test_qwen3_5_matches_torch(tmp_path: Path):
    path = make_qwen3_5_checkpoint(tmp_path)
    prompt = make_qwen3_prompt(8, 3, (32, 64), 2)
    plain, found = (Harness(path), Harness(path, ops=CudaOps(TritonAttention())))
    expected, sequence = (each.answer(each.begin(prompt), 3, chunks=[1, 7]) for each in (plain, found))
    assert sequence.answer == expected.answer
    torch.testing.assert_close(torch.stack(sequence.logits), torch.stack(expected.logits), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_draft_tokens_over_states_match_torch(tmp_path: Path):
    """Verifies draft tokens of two sequences, and computes the layer of multi-token prediction for them."""
    options: dict[str, Any] = {"device": DEVICE.type, "dtype": "float32", "backend": "torch", "speculative": "mtp"}
    config = EngineConfig(model_path=str(make_qwen3_5_checkpoint(tmp_path)), **options)
    shard = load_shard(config, rank=0, on_progress=lambda *_: None)
    step = decode_step([34, 5], 0, num_draft_tokens=1, keeps_states=True, device=DEVICE)
    following, found = step.token_ids.flip(0), list[list[torch.Tensor]]()
    for ops in (shard.model.ops, CudaOps(TritonAttention())):
        shard.model.ops, cache = ops, random_cache(shard)
        hidden = shard.model.decoder.norm(shard.model.hidden_states(step, cache, {}))
        found.append([hidden, shard.model.draft_states(step, following, hidden, cache, {}), *tensors_of(cache)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_smolvlm_matches_torch(tmp_path: Path):
    path = make_idefics3_checkpoint(tmp_path)
    prompt = tiled_prompt(8, "smolvlm", 3, (2,), 2, (1,), 2)
    plain, found = (Harness(path), Harness(path, ops=CudaOps(TritonAttention())))
    expected, sequence = (each.answer(each.begin(prompt), 2, chunks=[6]) for each in (plain, found))
    assert sequence.answer == expected.answer
    torch.testing.assert_close(torch.stack(sequence.logits), torch.stack(expected.logits), rtol=1e-4, atol=1e-4)


def test_int8_logits_match_torch(tiny_checkpoint: Path):
    ops = CudaOps(TritonAttention())
    harnesses = [Harness(tiny_checkpoint, quantization="int8"), Harness(tiny_checkpoint, quantization="int8", ops=ops)]
    plain, sequence = (harness.answer(harness.begin(make_prompt(1, 6)), 2) for harness in harnesses)
    torch.testing.assert_close(torch.stack(sequence.logits), torch.stack(plain.logits), rtol=1e-4, atol=1e-4)


def test_logits_and_answers_match_torch(tiny_checkpoint: Path):
    expected = answer_all(Harness(tiny_checkpoint))
    for sequence, plain in zip(
        answer_all(Harness(tiny_checkpoint, ops=CudaOps(TritonAttention()))), expected, strict=True
    ):
        assert sequence.answer == plain.answer
        torch.testing.assert_close(torch.stack(sequence.logits), torch.stack(plain.logits), rtol=1e-4, atol=1e-4)
