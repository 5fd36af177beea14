"""Writes a training checkpoint in Hugging Face's format: `python -m models.training.export DIR models/nano`.

The result loads in transformers unchanged and in the engine.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from glimpse.engine.checkpoint.text.tokenizer import Tokenizer, load_tokenizer
from models.family import SPECIAL_TOKENS, common_config, tokenizer_config
from models.training.batching.tokenizer import MARKUP
from models.training.learning.blocks import make_compute
from models.training.learning.history import History
from models.training.learning.learner import Learner
from models.training.learning.network import Network, Sizes
from models.training.learning.pixels import SIDE
from models.training.learning.shared import allocate, attach_weights, num_values, slots
from models.training.learning.state import State, load_state
from models.training.resized import SIZING

PREPROCESSOR = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "max_pixels": SIZING.max_pixels,
    "merge_size": 2,
    "min_pixels": SIZING.min_pixels,
    "patch_size": SIDE,
    "processor_class": "Qwen2VLProcessor",
    "resample": 3,
    "temporal_patch_size": 2,
}
"""Images are resized to training's range."""

VIDEO_PREPROCESSOR = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_pixels": 112 * 112,
    "merge_size": 2,
    "min_pixels": 56 * 56,
    "patch_size": SIDE,
    "processor_class": "Qwen2VLProcessor",
    "temporal_patch_size": 2,
    "video_processor_type": "Qwen2VLVideoProcessor",
}


def export(source: Path, target: Path) -> None:
    """Writes the checkpoint of the training folder `source` into the folder `target`, creating it if necessary."""
    state = load_state(source)
    network = restore_network(state)
    target.mkdir(parents=True, exist_ok=True)
    write_metadata(source, target, state.sizes)
    History.of(source, state).save(target)
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in published_weights(network)}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)


def restore_network(state: State) -> Network:
    """Returns the network with a state's weights, on the CPU."""
    learner = Learner(state.sizes, make_compute(torch.float32, compiled=False))
    memory = allocate(num_values(learner), 1, 1, torch.device("cpu"))
    state.restore(memory)
    attach_weights(learner, slots(learner, memory))
    return learner.network


def published_weights(network: Network) -> Iterator[tuple[str, Tensor]]:
    """Returns every weight by its checkpoint name, in float32."""
    yield "visual.patch_embed.proj.weight", network.visual.patch_embed.stored()
    for name, parameter in network.named_parameters():
        if not name.startswith("visual.patch_embed."):
            yield name, parameter.detach()


def write_metadata(source: Path, target: Path, sizes: Sizes) -> None:
    """Writes everything but the weights; tokenizer and chat template come from the training folder."""
    tokenizer = load_tokenizer(source)
    template = (source / "chat_template.jinja").read_text(encoding="utf-8")
    (target / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    ids = {token: _one(tokenizer, token) for token in (*SPECIAL_TOKENS, *MARKUP)}
    documents = {
        "config.json": _config(ids, sizes),
        "generation_config.json": _generation_config(ids),
        "preprocessor_config.json": PREPROCESSOR,
        "video_preprocessor_config.json": VIDEO_PREPROCESSOR,
        "tokenizer_config.json": tokenizer_config(ids, sizes.max_position_embeddings) | {"chat_template": template},
        "chat_template.json": {"chat_template": template},
    }
    for name, document in documents.items():
        (target / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _one(tokenizer: Tokenizer, text: str) -> int:
    (token_id,) = tokenizer.encode(text)
    return token_id


def _config(ids: dict[str, int], sizes: Sizes) -> dict[str, Any]:
    return {
        **common_config(ids),
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": sizes.intermediate_size,
        "max_position_embeddings": sizes.max_position_embeddings,
        "max_window_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_hidden_layers": sizes.num_layers,
        "num_key_value_heads": sizes.num_kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {"type": "mrope", "mrope_section": list(sizes.mrope_section)},
        "rope_theta": sizes.rope_theta,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": sizes.vocab_size,
        "vision_config": _vision_config(sizes),
    }


def _vision_config(sizes: Sizes) -> dict[str, Any]:
    return {
        "depth": sizes.vision_depth,
        "embed_dim": sizes.vision_width,
        "hidden_act": "quick_gelu",
        "hidden_size": sizes.hidden_size,
        "in_channels": 3,
        "in_chans": 3,
        "mlp_ratio": sizes.vision_mlp_ratio,
        "model_type": "qwen2_vl",
        "num_heads": sizes.vision_heads,
        "patch_size": SIDE,
        "spatial_merge_size": 2,
        "spatial_patch_size": SIDE,
        "temporal_patch_size": 2,
    }


def _generation_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "bos_token_id": ids["<|endoftext|>"],
        "do_sample": False,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write a training checkpoint in Hugging Face's format.")
    parser.add_argument("source", type=Path, help="folder of the training")
    parser.add_argument("target", type=Path, help="folder to write")
    arguments = parser.parse_args()
    export(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
