"""A tiny ColPali checkpoint, written by transformers, in the layout of published ones."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import SiglipVisionConfig
from transformers.models.colpali.configuration_colpali import ColPaliConfig
from transformers.models.colpali.modeling_colpali import ColPaliForRetrieval
from transformers.models.gemma.configuration_gemma import GemmaConfig
from transformers.models.paligemma.configuration_paligemma import PaliGemmaConfig

from tests.checkpoints.colqwen2 import SIZE
from tests.checkpoints.gemma3 import PLAIN, PREPROCESSOR_CONFIG, SIDE, VOCAB_SIZE, save_tokenizer
from tests.checkpoints.llava import draw_weights, name_in_publications
from tests.checkpoints.qwen2_vl import write_json

_HIDDEN = 64
_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}


def make_colpali_checkpoint(path: Path) -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it. `path`: made if it does not exist."""
    torch.manual_seed(0)
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
    vision = SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=52,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=10,
        vision_use_head=False,
    )
    body = PaliGemmaConfig(
        text_config=decoder, vision_config=vision, projection_dim=_HIDDEN, image_token_index=len(PLAIN)
    )
    model: Any = ColPaliForRetrieval(ColPaliConfig(vlm_config=body.to_dict(), embedding_dim=SIZE)).float()
    draw_weights(model)
    with torch.no_grad():
        for name, parameter in model.vlm.language_model.named_parameters():
            if "norm" in name:  # stored minus 1
                parameter.sub_(1)
    model.save_pretrained(path)
    save_file({_published(name): each for name, each in model.state_dict().items()}, path / "model.safetensors")
    num_tokens = (SIDE // vision.patch_size) ** 2
    own = {"image_processor_type": "SiglipImageProcessor", "image_seq_length": num_tokens, "resample": 3}
    write_json(path / "preprocessor_config.json", {**PREPROCESSOR_CONFIG, **own})
    save_tokenizer(path, ("<image>",), {**_TOKENS, "tokenizer_class": "PreTrainedTokenizerFast"})
    return path


def _published(name: str) -> str:
    part, _, own = name.partition("vlm.")
    return part or f"vlm.{name_in_publications(f'model.{own}')}"
