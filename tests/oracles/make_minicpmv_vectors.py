"""Makes `minicpmv_vllm.npz` where vLLM is installed: `python -m tests.oracles.make_minicpmv_vectors`."""

# pyright: basic, reportMissingImports=false

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import SiglipVisionConfig
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.models.idefics2_vision_model import Idefics2VisionTransformer
from vllm.model_executor.models.minicpmv import MiniCPMV2_6, Resampler2_5

from tests.checkpoints.minicpmv import (
    HIDDEN_SIZE,
    NUM_HEADS,
    NUM_QUERIES,
    VISION,
    make_minicpmv_checkpoint,
    normalized,
)
from tests.oracles.minicpmv_vectors import SIZES, VECTORS, images


def _encoder(stored: dict[str, Tensor]) -> Any:
    """Returns what `get_vision_hidden_states` needs of the model."""
    config: Any = SiglipVisionConfig(**VISION)
    vision = Idefics2VisionTransformer(config, apply_encoder_attention_mask=True, prefix="vpm")
    resampler = Resampler2_5(NUM_QUERIES, HIDDEN_SIZE, NUM_HEADS, kv_dim=config.hidden_size, prefix="resampler")
    loaded = vision.load_weights(_own(stored, "vpm.").items())
    assert loaded == {name for name, _ in vision.named_parameters()}
    resampler.load_state_dict(_own(stored, "resampler."))
    for layer in (*vision.modules(), *resampler.modules()):
        if (method := getattr(layer, "quant_method", None)) is not None:
            method.process_weights_after_loading(layer)
    return SimpleNamespace(vpm=vision, resampler=resampler)


def _own(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


def _unfolded(pixels: Tensor) -> Tensor:
    """[3, height, width] → [3, 14, patches · 14], as the published image processor arranges patches."""
    channels, height, width = pixels.shape
    patches = pixels.view(channels, height // 14, 14, width // 14, 14)
    return patches.permute(0, 2, 1, 3, 4).reshape(channels, 14, -1)


@torch.inference_mode()
def _make() -> None:
    # Where torch has no CUDA, it has no such function.
    torch.cuda.is_current_stream_capturing = lambda: False
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29591")
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, "env://", 0, "gloo")
        initialize_model_parallel(1, 1)
        encoder = _encoder(load_file(make_minicpmv_checkpoint(Path(folder)) / "model.safetensors"))
        inputs: Any = {
            "pixel_values": [_unfolded(normalized(image)) for image in images()],
            "tgt_sizes": torch.tensor([[height // 14, width // 14] for height, width in SIZES]),
        }
        outputs = MiniCPMV2_6.get_vision_hidden_states(encoder, inputs)
    VECTORS.parent.mkdir(exist_ok=True)
    np.savez_compressed(VECTORS, **{str(index): output.numpy() for index, output in enumerate(outputs)})


if __name__ == "__main__":
    _make()
