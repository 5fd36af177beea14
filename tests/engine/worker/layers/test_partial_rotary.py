"""Heads that rotate only in part: queries and keys have the products that the checkpoint's order gives."""

import pytest
import torch

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.worker.layers.rotary import multimodal_rotation, rotate
from glimpse.engine.worker.models.decoder_weights import arrange, reorder_heads

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
    reordered = (reorder_heads(weight, head_dim=HEAD_DIM, rotary_dim=ROTARY_DIM) for weight in weights)
    products = torch.einsum("qhd,khd->hqk", *(rotate(heads(weight), rotation) for weight in reordered))
    assert torch.allclose(products, expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("name", ["q_proj.weight", "k_proj.scale", "q_norm.weight"])
def test_reorders_what_belongs_to_rows(name: str) -> None:
    config = TextConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        layer_kinds=("full",),
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
    stored, tensor = f"model.layers.0.self_attn.{name}", torch.randn(2 * HEAD_DIM, 3)
    ((found_name, found),) = arrange(stored, tensor, config)
    assert found_name == stored
    assert torch.equal(found, reorder_heads(tensor, head_dim=HEAD_DIM, rotary_dim=ROTARY_DIM))
    ((_, unchanged),) = arrange(stored.replace("self_attn", "mlp").replace(name, "up_proj.weight"), tensor, config)
    assert unchanged is tensor
