"""Heads that rotate only in part: queries and keys have the products that the checkpoint's order gives."""

import pytest
import torch

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.rotary import multimodal_rotation, reorder_partial_heads, rotate
from glimpse.engine.worker.models.text import TextModel

HEAD_DIM, ROTARY_DIM, TOKENS = 16, 12, 5
POSITIONS = torch.arange(TOKENS).expand(3, -1)


def partially_rotated(x: torch.Tensor) -> torch.Tensor:
    """By definition: the first ROTARY_DIM values of each head rotate, in pairs half of them apart."""
    section = (ROTARY_DIM // 2, 0, 0)
    rotation = multimodal_rotation(POSITIONS, head_dim=ROTARY_DIM, theta=100.0, section=section)
    return torch.cat([rotate(x[..., :ROTARY_DIM], rotation), x[..., ROTARY_DIM:]], dim=-1)


def test_products_of_reordered_heads_are_those_of_the_checkpoint() -> None:
    torch.manual_seed(0)
    hidden, weights = torch.randn(TOKENS, 32), torch.randn(2, 3 * HEAD_DIM, 32)
    section = (HEAD_DIM // 2, 0, 0)
    rotation = multimodal_rotation(POSITIONS, head_dim=HEAD_DIM, theta=100.0, section=section, rotary_dim=ROTARY_DIM)

    def heads(weight: torch.Tensor) -> torch.Tensor:
        return (hidden @ weight.T).unflatten(1, (3, HEAD_DIM))

    expected = torch.einsum("qhd,khd->hqk", *(partially_rotated(heads(weight)) for weight in weights))
    reordered = (reorder_partial_heads(weight, head_dim=HEAD_DIM, rotary_dim=ROTARY_DIM) for weight in weights)
    products = torch.einsum("qhd,khd->hqk", *(rotate(heads(weight), rotation) for weight in reordered))
    assert torch.allclose(products, expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("name", ["q_proj.qweight", "qkv_proj.weight_scale", "k_proj.scales"])
def test_refuses_quantized_projections_whose_rows_cannot_be_reordered(name: str) -> None:
    config = TextConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        mrope_section=(HEAD_DIM // 2, 0, 0),
        max_position_embeddings=64,
        tie_word_embeddings=False,
        partial_rotary_factor=0.75,
    )
    stored = f"model.layers.0.self_attn.{name}"
    with pytest.raises(CheckpointError, match="expected an unquantized weight, as heads rotate only in part"):
        TextModel(config).split_weight(stored, torch.zeros(32, 32), config)
