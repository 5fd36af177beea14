"""Tiny checkpoints of PaliGemma and ColPali, written by transformers, in the layout of published ones."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    ColPaliConfig,
    ColPaliForRetrieval,
    GemmaConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
)

from tests.checkpoints.colqwen2 import SIZE
from tests.checkpoints.files import write_json
from tests.checkpoints.gemma3 import PLAIN, PREPROCESSOR_CONFIG, SIDE, VOCAB_SIZE, save_tokenizer
from tests.checkpoints.llava import Names, name_in_publications, save_model, siglip_config
from tests.checkpoints.weights import draw_weights

IMAGE_TOKEN_ID = len(PLAIN)
_PATCH = 10
NUM_IMAGE_TOKENS = (SIDE // _PATCH) ** 2
_HIDDEN = 64
_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}


def make_paligemma_checkpoint(path: Path, names: Names = "published") -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it. `path`: made if it does not exist."""
    torch.manual_seed(0)
    model: Any = PaliGemmaForConditionalGeneration(_config()).float()
    _draw_weights(model, model.model.language_model)
    save_model(model, path, names)
    return _write_files(path)


def make_colpali_checkpoint(path: Path) -> Path:
    """Does what `make_paligemma_checkpoint` does, for ColPali."""
    torch.manual_seed(0)
    config = ColPaliConfig(vlm_config=_config().to_dict(), embedding_dim=SIZE)
    model: Any = ColPaliForRetrieval(config).float()
    _draw_weights(model, model.vlm.language_model)
    model.save_pretrained(path)
    save_file({_published(name): each for name, each in model.state_dict().items()}, path / "model.safetensors")
    return _write_files(path)


def _published(name: str) -> str:
    part, _, own = name.partition("vlm.")
    return part or f"vlm.{name_in_publications(f'model.{own}')}"


def _config() -> PaliGemmaConfig:
    decoder = GemmaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=_HIDDEN,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
    )
    vision = siglip_config(image_size=SIDE, patch_size=_PATCH)
    return PaliGemmaConfig(
        text_config=decoder, vision_config=vision, projection_dim=_HIDDEN, image_token_index=IMAGE_TOKEN_ID
    )


def _draw_weights(model: nn.Module, decoder: nn.Module) -> None:
    draw_weights(model)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if "norm" in name:  # stored minus 1
                parameter.sub_(1)


def _write_files(path: Path) -> Path:
    own = {"image_processor_type": "SiglipImageProcessor", "image_seq_length": NUM_IMAGE_TOKENS, "resample": 3}
    write_json(path / "preprocessor_config.json", {**PREPROCESSOR_CONFIG, **own})
    save_tokenizer(path, ("<image>",), {**_TOKENS, "tokenizer_class": "PreTrainedTokenizerFast"})
    return path
