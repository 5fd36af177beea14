"""The vision transformer matches transformers' CLIP and SigLIP."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import CLIPVisionConfig, CLIPVisionModel, SiglipVisionConfig, SiglipVisionModel

from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.ops import Ops, TorchOps
from glimpse.engine.worker.layers.pixels import PixelStatistics
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.native.backend import use_native
from tests.engine.levels import at_each_level

STATISTICS = PixelStatistics(mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28))
SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 45,  # not a multiple of the patches, like SigLIP's 384
    "patch_size": 14,
}
KINDS = ("clip_vision_model", "siglip_vision_model")
CLIP, SIGLIP = KINDS


def make_oracle(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == CLIP:
        model = CLIPVisionModel(CLIPVisionConfig(**SIZES))
    else:
        model = SiglipVisionModel(SiglipVisionConfig(**SIZES))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def load(oracle: Any, feature_layer: int | None, dtype: torch.dtype = torch.float32) -> VisionTransformer:
    config = vit_config(oracle.config.to_dict(), feature_layer=feature_layer)
    tower = VisionTransformer(config, STATISTICS).to(dtype)
    # Published checkpoints have the names without the prefix that transformers 5 may add.
    stored = {name.removeprefix("vision_model."): tensor for name, tensor in oracle.state_dict().items()}
    for name, tensor in tower.named_weights():
        tensor.copy_(stored.pop(name))
    assert [name for name in stored if not tower.is_unused(name)] == []
    return tower


def random_images(count: int) -> Tensor:
    shape = (count, SIZES["image_size"], SIZES["image_size"], 3)
    return torch.from_numpy(np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8))


@torch.inference_mode()
def reference(oracle: Any, images: Tensor, feature_layer: int | None) -> Tensor:
    normalized = (images.float() / 255 - torch.tensor(STATISTICS.mean)) / torch.tensor(STATISTICS.std)
    output = oracle(pixel_values=normalized.permute(0, 3, 1, 2), output_hidden_states=True)
    return output.last_hidden_state if feature_layer is None else output.hidden_states[feature_layer]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("kind", "feature_layer"),
    [(CLIP, -2), (CLIP, -1), (CLIP, 1), (SIGLIP, -2), (SIGLIP, -1), (SIGLIP, None)],
)
@torch.inference_mode()
def test_features_match_the_reference(kind: str, feature_layer: int | None, count: int) -> None:
    oracle, images = make_oracle(kind), random_images(count)
    features = load(oracle, feature_layer)(images, TorchOps())
    assert features.shape == (count, 9 + (kind == CLIP), 32)
    torch.testing.assert_close(features, reference(oracle, images, feature_layer), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@at_each_level
@torch.inference_mode()
def test_native_kernels_stay_near_float32(kind: str, dtype: torch.dtype, tolerance: float, level: Any) -> None:
    oracle, images = make_oracle(kind), random_images(2)
    tower = load(oracle, -2, dtype)
    ops: Ops = use_native(tower, level, dtype)
    expected = reference(oracle, images, -2)
    assert (tower(images, ops) - expected).square().mean().sqrt() < tolerance * expected.std()


@pytest.mark.parametrize(
    ("change", "feature_layer", "message"),
    [
        ({"hidden_act": "gelu"}, -2, "'vision_config.hidden_act': expected 'quick_gelu' or 'gelu_pytorch_tanh'"),
        ({"num_channels": 1}, -2, "'vision_config.num_channels': expected 3, got 1"),
        ({"model_type": "dinov2"}, -2, "'vision_config.model_type': expected one of clip_vision_model"),
        ({}, -5, "'vision_feature_layer': expected an integer from -4 to 3, got -5"),
    ],
)
def test_refuses_unsupported_configurations(change: dict[str, object], feature_layer: int, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        vit_config({"model_type": "clip_vision_model", **SIZES, **change}, feature_layer=feature_layer)


def test_fields_that_published_configurations_leave_out_have_the_defaults_of_transformers() -> None:
    first, second = (vit_config({"model_type": kind, "hidden_size": 64}) for kind in KINDS)
    assert (first.activation, first.norm_eps, first.patch_size) == ("quick_gelu", 1e-5, 32)
    assert (second.activation, second.norm_eps, second.patch_size) == ("gelu_tanh", 1e-6, 16)
    assert (first.num_positions, second.num_positions) == (50, 196)
