"""Operations between products on CUDA, compared with the reference implementations. Interpreted without a GPU."""

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton is not installed")

from glimpse.engine.checkpoint.model_config.decoder import ExpertsConfig
from glimpse.engine.worker.cuda.cuda_ops import CudaOps, TritonAttention
from glimpse.engine.worker.cuda.rotary import rotate, rotate_and_store
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GatedMLP, PlainMLP
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops, TorchOps
from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.layers.rotary import rotate as plain_rotate
from tests.engine.worker.cuda.steps import DEVICE, make_cache

OPS = CudaOps(TritonAttention())
either_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def random_rotation(num_tokens: int, head_dim: int) -> Rotation:
    angles = 100 * torch.rand(num_tokens, 1, head_dim // 2, device=DEVICE)
    return Rotation(angles.cos(), angles.sin())


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Tolerates several roundings of the dtype."""
    tolerance = 1e-5 if actual.dtype is torch.float32 else 2**-7
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@either_dtype
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "head_dim", "block_size"), [(1, 12, 64, 16), (5, 7, 80, 32), (3, 1, 128, 16)]
)
def test_rotate_and_store_matches_the_reference_implementation(
    dtype: torch.dtype, num_tokens: int, num_heads: int, head_dim: int, block_size: int
):
    num_kv_heads, num_blocks = 2, 5
    qkv = random(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype)
    rotation = random_rotation(num_tokens, head_dim)
    slots = torch.randperm(num_blocks * block_size)[:num_tokens].to(DEVICE)
    cache, expected = (make_cache(num_blocks, block_size, num_kv_heads, head_dim, dtype) for _ in range(2))
    query, key, value = qkv.unflatten(1, (-1, head_dim)).split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    expected.write(slots, plain_rotate(key, rotation), value)
    assert_near(rotate_and_store(qkv, rotation, cache, slots), plain_rotate(query, rotation))
    assert_near(cache.keys, expected.keys)
    assert torch.equal(cache.values, expected.values)


@either_dtype
def test_rotate_and_store_rounds_to_8_bits_as_the_reference_implementation(dtype: torch.dtype):
    qkv, rotation, slots = random(5, 8 * 80, dtype=dtype), random_rotation(5, 80), torch.tensor([3, 40, 17, 0, 5])
    qkv[2] = 0
    cache, expected = (make_cache(2, 32, 2, 80, dtype, is_int8=True) for _ in range(2))
    _, key, value = qkv.unflatten(1, (-1, 80)).split([4, 2, 2], dim=1)
    expected.write(slots.to(DEVICE), plain_rotate(key, rotation), value)
    rotate_and_store(qkv, rotation, cache, slots.to(DEVICE))
    for ours, theirs in zip(cache, expected, strict=True):
        steps = (ours[..., :80].int() - theirs[..., :80].int()).abs()  # a product may be fused with a sum
        assert steps.max() <= 1
        assert (steps > 0).double().mean() < 0.01
        scales, own = (each[..., 80:].contiguous().view(torch.float32) for each in (ours, theirs))
        torch.testing.assert_close(scales, own, rtol=2**-7 if dtype is torch.bfloat16 else 1e-5, atol=0)


def test_does_not_store_tokens_without_a_slot():
    cache = make_cache(2, 16, 1, 64, torch.float32)
    qkv = random(2, 4 * 64, dtype=torch.float32)
    rotation = random_rotation(2, 64)
    query = rotate_and_store(qkv, rotation, cache, torch.tensor([-1, 17], device=DEVICE))
    assert_near(query, plain_rotate(qkv.view(2, 4, 64)[:, :2], rotation))
    for stored in cache:
        assert stored.count_nonzero() == stored[1, 1].count_nonzero() == 64


def test_rotate_keeps_other_heads():
    x = random(3, 9, 80, dtype=torch.bfloat16)
    rotation = random_rotation(3, 80)
    expected = torch.cat([plain_rotate(x[:, :6], rotation), x[:, 6:]], dim=1)
    rotate(x, rotation, num_heads=6)
    assert_near(x, expected)


EXPERTS = ExpertsConfig(
    num_experts=3, num_chosen=3, intermediate_size=70, renormalized=True, layers=frozenset({0}), shared_size=90
)


class Layer(nn.Module):
    """All operations without a KV cache, with a width that is not a multiple of a tile."""

    def __init__(self, norm: RMSNorm | nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm
        self.plain = Linear(100, 100, bias=False)
        self.biased = Linear(100, 100, bias=True)
        self.gated = GatedMLP(100, 70)
        self.quick = PlainMLP(100, 1100, activation="quick_gelu")
        self.gelu = PlainMLP(100, 1100, activation="gelu_tanh")
        self.experts = ExpertsMLP(100, EXPERTS)
        self.ungated = ExpertsMLP(100, replace(EXPERTS, shared_gate=False))

    def outputs(self, ops: Ops, x: Tensor, hidden: Tensor) -> list[Tensor]:
        return [
            ops.norm_linear(hidden, self.norm, self.biased),
            ops.logits(hidden, self.norm, self.plain),
            ops.linear_add(x, self.plain, None),
            *(ops.linear_add(x, linear, hidden.clone()) for linear in (self.plain, self.biased)),
            *(
                ops.norm_mlp_add(hidden.clone(), self.norm, mlp)
                for mlp in (self.gated, self.quick, self.gelu, self.experts, self.ungated)
            ),
            ops.norm_mlp_add(hidden, self.norm, self.gated, residual=False),
            ops.norm_mlp_add(hidden, self.norm, self.experts, residual=False),
        ]


def make_layer(norm: Any, dtype: torch.dtype) -> Layer:
    layer = Layer(norm(100, eps=1e-6)).requires_grad_(False)
    for seed, parameter in enumerate(layer.parameters()):
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5
        parameter.data = random(*parameter.shape, dtype=dtype, seed=seed) * scale
    return layer


@pytest.mark.parametrize("norm", [RMSNorm, nn.LayerNorm])
def test_operations_match_torch(norm: Any):
    layer = make_layer(norm, torch.float32)
    x, hidden = (random(3, 100, dtype=torch.float32, seed=seed) for seed in (8, 9))
    expected = layer.outputs(TorchOps(), x, hidden)
    for actual, plain in zip(layer.outputs(OPS, x, hidden), expected, strict=True):
        assert_near(actual, plain)


@pytest.mark.parametrize("norm", [RMSNorm, nn.LayerNorm])
def test_bfloat16_operations_are_as_accurate_as_torch(norm: Any):
    layer = make_layer(norm, torch.bfloat16)
    wide = copy.deepcopy(layer).float()
    x, hidden = (random(3, 100, dtype=torch.bfloat16, seed=seed) for seed in (8, 9))
    for actual, plain, exact in zip(
        layer.outputs(OPS, x, hidden),
        layer.outputs(TorchOps(), x, hidden),
        wide.outputs(TorchOps(), x.float(), hidden.float()),
        strict=True,
    ):
        assert actual.dtype == plain.dtype
        assert (actual - exact).abs().max() <= 1.5 * (plain - exact).abs().max() + 1e-3


@either_dtype
@pytest.mark.parametrize("rotated", [False, True])
def test_patches_attend_to_their_own_segment(dtype: torch.dtype, rotated: bool):
    qkv, rotation = random(12, 3, 2, 80, dtype=dtype), random_rotation(12, 80) if rotated else None
    expected = TorchOps().attend_segments(qkv.clone(), rotation, 3)
    assert_near(OPS.attend_segments(qkv, rotation, 3), expected)


def test_kernels_compile_for_the_reference_gpu(tmp_path: Path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.engine.worker.cuda.compile_kernels"]
    compiled = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    products: dict[str, list[str]] = {}
    for kernel in compiled:  # float32 is computed without such instructions
        products[kernel["name"]] = kernel["products"] or products.get(kernel["name"], [])
    assert {name: used for name, used in products.items() if used} == {
        "attend_split": ["mma.sync"],
        "attend_chunks": ["wgmma"],
        "_multiply_quantized": ["mma.sync"],
    }
    rows = {"_rms_norm", "_gated_silu", "_gelu"}
    others = {"merge_splits", "_rotate_and_store", "_rotate", "_add_splits", "_dequantize", "survey_rows", "draw_rows"}
    assert {name for name, used in products.items() if not used} == rows | others
    assert max(kernel["shared_bytes"] for kernel in compiled) <= 99 << 10, "what an L4 or RTX 4090 has"
    assert max(kernel["stack_bytes"] for kernel in compiled) <= 64, "registers suffice, almost"
