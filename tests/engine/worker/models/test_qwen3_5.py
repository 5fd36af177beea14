"""Qwen3.5: logits and greedy answers match transformers, with gated delta nets, gated attention and partial M-RoPE."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import models

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.decoder import DeltaNetSizes
from glimpse.engine.worker.layers.delta_net import DeltaNet, chunked_delta_rule, delta_net, plan_states
from glimpse.engine.worker.tensors.batch import StateRows
from glimpse.engine.worker.tensors.kv_cache import LayerStates
from tests.checkpoints.files import write_json
from tests.checkpoints.quantized import WeightFormat, quantize_checkpoint
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import Harness
from tests.engine.qwen3_vl_prompts import make_qwen3_prompt
from tests.engine.worker.models.steps import AccurateSteps, LevelSteps, agreement
from tests.oracles.qwen_vl import greedy_answer

torch_recurrent_gated_delta_rule = models.qwen3_5.modeling_qwen3_5.torch_recurrent_gated_delta_rule

CHECKPOINT = make_qwen3_5_checkpoint
NUM_TOKENS = 8
PROMPTS = {
    "text": make_qwen3_prompt(1, 150),
    "image": make_qwen3_prompt(2, 5, (96, 64), 9),
    "images": make_qwen3_prompt(3, 3, (32, 32), 1, (64, 224), 1, (288, 32), 4),
    "all": make_qwen3_prompt(6, 3, (4, 64, 96), 2, (96, 64), 1, (2, 32, 128), 4, (64, 64), 6),
}


assert_agrees = agreement(greedy_answer, "spans", "images")


class TestSteps(AccurateSteps, LevelSteps):
    agrees = staticmethod(assert_agrees)
    divided, accurate, cached = "all", "all", ("all", "text")
    blocks = (1, 3)


def test_an_untied_head(tmp_path: Path) -> None:
    path = make_qwen3_5_checkpoint(tmp_path / "own", seed=7, tied=False)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(PROMPTS["image"]), NUM_TOKENS), path)


@pytest.mark.parametrize(
    "weights",
    [WeightFormat(method="awq"), WeightFormat(method="gptq", desc_act=True), WeightFormat(method="fp8 blocks")],
    ids=["awq", "gptq", "fp8 blocks"],
)
def test_quantized_checkpoints(checkpoint: Path, tmp_path: Path, weights: WeightFormat) -> None:
    quantized, dequantized = quantize_checkpoint(checkpoint, tmp_path, weights)
    found, expected = (
        torch.stack(each.answer(each.begin(PROMPTS["image"]), 2).logits)
        for each in (Harness(quantized), Harness(dequantized))
    )
    assert (found - expected).abs().max() <= 1e-4


def test_fp8_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    quantized, _ = quantize_checkpoint(checkpoint, tmp_path, WeightFormat(method="fp8"))
    found, expected = (
        torch.stack(each.answer(each.begin(PROMPTS["image"]), 2).logits)
        for each in (Harness(quantized), Harness(checkpoint, quantization="fp8"))
    )
    assert (found - expected).abs().max() <= 1e-4


@settings(max_examples=20)
@given(num_tokens=st.integers(1, 140), seed=st.integers(0, 99), fastest=st.sampled_from([0.01, 1.0, 30.0]))
def test_chunks_of_tokens_update_a_state_as_single_ones_do(num_tokens: int, seed: int, fastest: float) -> None:
    random = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(num_tokens, 2, 8, generator=random) for _ in range(2))
    query, key = query / query.norm(dim=-1, keepdim=True) * 8**-0.5, key / key.norm(dim=-1, keepdim=True)
    value, state = torch.randn(num_tokens, 6, 12, generator=random), torch.randn(6, 8, 12, generator=random)
    decay, beta = -fastest * torch.rand(num_tokens, 6, generator=random), torch.rand(num_tokens, 6, generator=random)
    expected, last = torch_recurrent_gated_delta_rule(
        query[None] * 8**0.5, key[None], value[None], decay[None], beta[None], state[None], output_final_state=True
    )
    found, found_last = chunked_delta_rule(query, key, value, decay, beta, state)
    assert last is not None
    assert torch.allclose(found, expected[0], atol=2e-5, rtol=1e-4)
    assert torch.allclose(found_last, last[0], atol=2e-5, rtol=1e-4)


@settings(max_examples=20)
@given(ends=st.sets(st.integers(1, 149), max_size=5), seed=st.integers(0, 99))
def test_chunks_hand_over_a_state_without_loss(ends: set[int], seed: int) -> None:
    """In float64, where rounding hides nothing."""
    sizes = DeltaNetSizes(num_key_heads=2, num_value_heads=4, key_head_dim=12, value_head_dim=16, conv_size=4)
    random = torch.Generator().manual_seed(seed)
    projected = torch.randn(150, sizes.conv_width + sizes.value_width, generator=random, dtype=torch.float64)
    rates = torch.randn(150, 8, generator=random, dtype=torch.float64)

    def compute(net: DeltaNet, *chunks: int) -> tuple[Tensor, ...]:
        states = LayerStates(torch.zeros(1, 3, sizes.conv_width).double(), torch.zeros(1, 4, 12, 16).double())
        outputs: list[Tensor] = []
        for start, end in pairwise((0, *chunks, 150)):
            plan = plan_states([StateRows(0, end - start, 0 if start else -1, 0, False)], torch.device("cpu"))
            outputs.append(delta_net(projected[start:end], rates[start:end], net, states, plan))
        return torch.cat(outputs), *states

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        net = DeltaNet(sizes, 64, eps=1e-6).double()
        for parameter in net.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=random))
        for whole, divided in zip(compute(net), compute(net, *sorted(ends)), strict=True):
            assert (whole - divided).abs().max() <= 1e-9


def test_layers_without_a_list_follow_the_interval(tmp_path: Path, checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    del config["text_config"]["layer_types"]
    config["text_config"] |= {"num_hidden_layers": 6, "full_attention_interval": 3}
    write_json(tmp_path / "config.json", config)
    kinds = load_model_config(tmp_path).text.layer_kinds
    assert kinds == ("delta_net", "delta_net", "full") * 2


test_refuses_unsupported_configurations = refused(
    ({"text_config": {"hidden_act": "gelu"}}, "'text_config.hidden_act': expected 'silu', got 'gelu'"),
    ({"text_config": {"attn_output_gate": False}}, "'text_config.attn_output_gate': expected True, got False"),
    (
        {"text_config": {"layer_types": ["mamba"] * 4}},
        "'text_config.layer_types': expected full_attention or .* got 'mamba'",
    ),
    ({"text_config": {"layer_types": ["linear_attention"] * 4}}, "expected a 'full_attention' among them"),
    ({"text_config": {"linear_num_value_heads": 3}}, "expected a multiple of the 2 heads of keys, got 3"),
    (
        {"text_config": {"rope_parameters": {"rope_theta": 1e7}}},
        r"expected three numbers that add up to 4, .* got \[11, 11, 10\]",
    ),
    (
        {"text_config": {"model_type": "qwen3_5_moe_text", "shared_expert_intermediate_size": 0}},
        "'text_config': expected experts in all layers, one of them shared",
    ),
)
