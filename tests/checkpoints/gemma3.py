"""Tiny Gemma 3 checkpoints with images and seeded random weights, written by transformers, in the layout of published
ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig

from tests.checkpoints.files import write_json
from tests.checkpoints.llava import Names, save_model, siglip_config
from tests.checkpoints.text import GEMMA3_TRAITS
from tests.checkpoints.weights import draw_weights

SIDE = 60
"""Side of an image in pixels: 6 patches, which are averaged to 3 tokens."""
NUM_IMAGE_TOKENS = 9

_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
_ADDED = ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>")
_MERGES = ("▁ t", "h e", "▁t he", "i n", "a n", "▁ a", "▁ ▁", "\n \n", "\n\n \n")
_CHARACTERS = [chr(code) for code in range(33, 127)]
_TOKENS = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "\n", *_CHARACTERS]
PLAIN = (*_TOKENS, *(merge.replace(" ", "") for merge in _MERGES))
TOKEN_IDS = {token: index for index, token in enumerate((*PLAIN, *_ADDED))}
VOCAB_SIZE = 384
"""Rows of the embedding table: more than the tokenizer's tokens, as in published checkpoints."""

CHAT_TEMPLATE = """\
{{ bos_token }}\
{%- set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' -%}\
{%- if system is not string -%}{%- set system = system[0]['text'] -%}{%- endif -%}\
{%- set rest = messages[1:] if messages[0]['role'] == 'system' else messages -%}\
{%- for message in rest -%}\
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\
{{ raise_exception('Roles alternate between user and assistant') }}\
{%- endif -%}\
{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}\
{%- if loop.first and system -%}{{ system + '\n\n' }}{%- endif -%}\
{%- if message['content'] is string -%}{{ message['content'] | trim }}\
{%- else -%}\
{%- for part in message['content'] -%}\
{%- if part['type'] == 'image' -%}{{ '<start_of_image>' }}\
{%- elif part['type'] == 'text' -%}{{ part['text'] | trim }}{%- endif -%}\
{%- endfor -%}\
{%- endif -%}\
{{ '<end_of_turn>\n' }}\
{%- endfor -%}\
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}\
"""
"""A template of the published one's form: the system message belongs to the first turn."""

PREPROCESSOR_CONFIG: Mapping[str, Any] = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_pan_and_scan": None,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Gemma3ImageProcessor",
    "image_seq_length": NUM_IMAGE_TOKENS,
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": SIDE, "width": SIDE},
}

_TOKENIZER: Mapping[str, Any] = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "processor_class": "Gemma3Processor",
}


def make_gemma3_checkpoint(path: Path, *, names: Names = "published") -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        names: of the tensors.
    """
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    config = Gemma3Config(
        text_config=Gemma3TextConfig(**{**sizes, **GEMMA3_TRAITS}),
        vision_config=siglip_config(image_size=SIDE, patch_size=10),
        mm_tokens_per_image=NUM_IMAGE_TOKENS,
        boi_token_index=TOKEN_IDS["<start_of_image>"],
        eoi_token_index=TOKEN_IDS["<end_of_image>"],
        image_token_index=TOKEN_IDS["<image_soft_token>"],
    )
    model = Gemma3ForConditionalGeneration(config).float()
    draw_weights(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and "vision_tower" not in name:  # stored minus 1
                parameter.sub_(1)
    save_model(model, path, names)
    write_json(path / "generation_config.json", {"eos_token_id": [1, TOKEN_IDS["<end_of_turn>"]]})
    write_json(path / "preprocessor_config.json", dict(PREPROCESSOR_CONFIG))
    write_json(path / "chat_template.json", {"chat_template": CHAT_TEMPLATE})
    save_tokenizer(path, _ADDED, _TOKENIZER)
    return path


def save_tokenizer(path: Path, added: Sequence[str], document: Mapping[str, Any]) -> None:
    """Writes a tokenizer with these special tokens after the plain ones, and its `tokenizer_config.json`."""
    vocab = {token: index for index, token in enumerate(PLAIN)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in _MERGES)]
    model = models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*_SPECIAL, *added)])
    tokenizer.save(str(path / "tokenizer.json"))
    write_json(path / "tokenizer_config.json", dict(document))
