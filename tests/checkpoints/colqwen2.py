"""A tiny checkpoint of ColQwen2 on Qwen2-VL or Qwen2.5-VL, in the layout of published ones."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints.files import write_json
from tests.checkpoints.qwen2_vl import Family, make_checkpoint
from tests.checkpoints.weights import Draw

SIZE = 24
"""Values of a token's vector."""
_HIDDEN = 64


def make_colqwen2_checkpoint(path: Path, family: Family = "qwen2_vl") -> Path:
    """Writes the checkpoint into a folder, with the tensor names of transformers 5, and returns the folder."""
    make_checkpoint(path, family=family, nested_layout=True, hidden=_HIDDEN)
    config = json.loads((path / "config.json").read_text())
    own = {"architectures": ["ColQwen2ForRetrieval"], "model_type": "colqwen2", "embedding_dim": SIZE}
    write_json(path / "config.json", {**own, "torch_dtype": config["torch_dtype"], "vlm_config": config})
    (path / "generation_config.json").unlink()
    tokens = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    write_json(path / "tokenizer_config.json", tokens)
    write_json(path / "processor_config.json", {"processor_class": "ColQwen2Processor"})
    body = load_file(path / "model.safetensors")
    weights = {name.replace("model.", "vlm.", 1): tensor for name, tensor in body.items()}
    draw = Draw(torch.Generator().manual_seed(5))
    save_file(weights | dict(draw.linear("embedding_proj_layer", SIZE, _HIDDEN)), path / "model.safetensors")
    return path
