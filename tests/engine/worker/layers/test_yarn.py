"""YaRN: frequencies and factor are those of transformers, whatever fields a document has."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import ROPE_INIT_FUNCTIONS, LlamaConfig

from glimpse.engine.checkpoint.families.reading.fields import text_config
from glimpse.engine.checkpoint.model_config.decoder import YarnScaling
from glimpse.engine.worker.layers.rotary import inverse_wavelengths, multimodal_rotation

CPU = torch.device("cpu")


@given(
    factor=st.sampled_from([1.0, 4.0, 16.0, 40.0]),
    original=st.sampled_from([64, 4096, 16384]),
    theta=st.sampled_from([1e4, 1e6, 1e9]),
    optional=st.fixed_dictionaries(
        {},
        optional={
            "beta_fast": st.sampled_from([4.0, 32.0]),
            "beta_slow": st.sampled_from([1.0, 2.0]),
            "mscale": st.sampled_from([0.7, 1.0]),
            "mscale_all_dim": st.sampled_from([1.0, 1.3]),
            "attention_factor": st.sampled_from([1.0, 1.2]),
            "truncate": st.booleans(),
        },
    ),
)
def test_frequencies_and_factor_equal_those_of_transformers(
    factor: float, original: int, theta: float, optional: dict[str, Any]
) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original,
        **optional,
    }
    length = int(factor * original)
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=length, rope_parameters=dict(rope)
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    scaling = text_config(config.to_dict(), {}, rope).rope_scaling
    assert isinstance(scaling, YarnScaling)
    torch.testing.assert_close(inverse_wavelengths(64, theta, CPU, scaling), expected, rtol=1e-6, atol=0)
    assert scaling.attention_factor == expected_factor
    rotation = multimodal_rotation(
        torch.zeros(3, 1, dtype=torch.int64), head_dim=64, theta=theta, section=(32, 0, 0), scaling=scaling
    )
    torch.testing.assert_close(rotation.cos[0, 0, 0].item(), expected_factor)
