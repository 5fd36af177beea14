"""Tiny LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision checkpoints with seeded random weights, written by transformers, in
the layout of published ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, normalizers, processors
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    MistralConfig,
    Qwen2Config,
    SiglipVisionConfig,
)

from tests.checkpoints.files import write_files, write_json
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import draw_weights, temper_attention

SIDE = 56
"""Side of an image in pixels: 16 patches."""
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
_MERGES = ("▁ t", "h e", "▁t he", "i n", "a n", "▁ a", "▁ ▁", "U S", "E R")
_CHARACTERS = [chr(code) for code in range(33, 127)]
_TOKENS = [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *_CHARACTERS]
PLAIN_TOKENS = (*_TOKENS, *(merge.replace(" ", "") for merge in _MERGES))
IMAGE_TOKEN_ID = len(PLAIN_TOKENS)
VOCAB_SIZE = 384
"""Rows of the embedding table: more than the tokenizer's tokens, as in published checkpoints."""

CHAT_TEMPLATE = """\
{% for message in messages %}\
{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}\
{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}\
{% if message['role'] != 'assistant' %}\
{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}\
{% else %}\
{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}\
{% generation %}{{ part['text'] + ' ' }}{% endgeneration %}\
{% endfor %}\
{% endif %}\
{% endfor %}\
{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}\
"""
"""Iterates over parts alone, and marks answers for training, like the published one."""

PREPROCESSOR_CONFIG: Mapping[str, Any] = {
    "crop_size": {"height": SIDE, "width": SIDE},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "CLIPImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": SIDE},
}
PROCESSOR_CONFIG: Mapping[str, Any] = {
    "image_token": "<image>",
    "num_additional_image_tokens": 1,
    "patch_size": 14,
    "processor_class": "LlavaProcessor",
    "vision_feature_select_strategy": "default",
}

Names = Literal["published", "saved", "nested"]
"""Names of tensors: in published checkpoints, as transformers 5 saves them, or as inside transformers 5."""

_SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DECODERS: Mapping[str, Any] = {
    "llama": lambda: LlamaConfig(**_SIZES, num_key_value_heads=4),
    "mistral": lambda: MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**_SIZES, num_key_value_heads=2, tie_word_embeddings=True),
}
DECODERS = tuple(_DECODERS)


def make_llava_checkpoint(
    path: Path, *, decoder: str = "llama", names: Names = "published", strategy: str = "default", layer: int = -2
) -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it. `path`: made if it does not exist."""
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=_vision_config(),
        text_config=_DECODERS[decoder](),
        image_token_index=IMAGE_TOKEN_ID,
        image_seq_length=16,
        vision_feature_select_strategy=strategy,
        vision_feature_layer=layer,
    )
    model = LlavaForConditionalGeneration(config).float()
    draw_weights(model)
    temper_attention(model)
    save_model(model, path, names)
    write_json(path / "preprocessor_config.json", dict(PREPROCESSOR_CONFIG))
    write_json(path / "processor_config.json", {**PROCESSOR_CONFIG, "vision_feature_select_strategy": strategy})
    write_json(path / "chat_template.json", {"chat_template": CHAT_TEMPLATE})
    save_tokenizer(path)
    return path


def _vision_config() -> Any:
    return CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=52,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=14,
    )


def siglip_config(*, image_size: int, patch_size: int) -> SiglipVisionConfig:
    return SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=52,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=image_size,
        patch_size=patch_size,
        vision_use_head=False,
    )


def save_model(model: Any, path: Path, names: Names) -> None:
    """Writes weights and configuration with tensor names as in published checkpoints, or as inside transformers 5."""
    model.save_pretrained(path)
    tied = model.config.tie_word_embeddings
    state = {name: tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    if names != "saved":
        rename = name_in_publications if names == "published" else str
        save_file(
            {rename(name): tensor for name, tensor in state.items()}, path / "model.safetensors", {"format": "pt"}
        )


def name_in_publications(name: str) -> str:
    """Returns the name in published checkpoints of a tensor inside transformers 5."""
    for inside, published in (
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
        ("model.vision_tower.", "vision_tower.vision_model."),
        ("model.", ""),
    ):
        if name.startswith(inside):
            return published + name.removeprefix(inside)
    return name


def save_tokenizer(path: Path, added_tokens: Sequence[str] = ("<image>", "<pad>")) -> None:
    """Writes a BPE in SentencePiece's way, as of Llama 2, which starts each text with `<s>`."""
    vocab = {token: index for index, token in enumerate(PLAIN_TOKENS)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in _MERGES)]
    model = models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    special = [AddedToken(token, special=True, normalized=False) for token in (*SPECIAL_TOKENS, *added_tokens)]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(path / "tokenizer.json"))
    document = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "LlavaProcessor",
    }
    write_json(path / "tokenizer_config.json", document)


NEXT_RESOLUTIONS = tuple((height * SIDE, width * SIDE) for height, width in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3)))
"""Resolutions of LLaVA-NeXT: the published ones, in tiles."""
NEXT_TEMPLATE = """\
{% for message in messages %}\
{% if message['role'] == 'system' %}{{ '<<SYS>>\n' + message['content'][0]['text'] + '\n<</SYS>>\n\n' }}\
{% elif message['role'] == 'user' %}{{ '[INST] ' }}\
{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}\
{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}\
{{ ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'][0]['text'] + '</s> ' }}\
{% else %}{{ raise_exception('expected a system, user or assistant message') }}{% endif %}\
{% endfor %}\
"""
"""Template of the published checkpoint with Mistral's decoder; the one with Vicuna's has LLaVA-1.5's."""


def make_next_checkpoint(path: Path, *, decoder: str = "mistral", names: Names = "published") -> Path:
    """Writes a LLaVA-NeXT checkpoint of float32 into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
    """
    torch.manual_seed(2)
    pinpoints = [list(each) for each in NEXT_RESOLUTIONS]
    config = LlavaNextConfig(
        vision_config=_vision_config(),
        text_config=_DECODERS[decoder](),
        image_token_index=IMAGE_TOKEN_ID,
        image_grid_pinpoints=pinpoints,
    )
    model = LlavaNextForConditionalGeneration(config).float()
    draw_weights(model)
    temper_attention(model)
    save_model(model, path, names)
    images = {"do_pad": True, "image_grid_pinpoints": pinpoints, "image_processor_type": "LlavaNextImageProcessor"}
    write_json(path / "preprocessor_config.json", {**PREPROCESSOR_CONFIG, **images})
    write_json(path / "processor_config.json", {**PROCESSOR_CONFIG, "processor_class": "LlavaNextProcessor"})
    write_json(path / "chat_template.json", {"chat_template": NEXT_TEMPLATE})
    save_tokenizer(path)
    return path


ONEVISION_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")
ONEVISION_TOKEN_IDS = ids_of(ONEVISION_SPECIAL_TOKENS)
TILE = 47
"""Side of a tile of LLaVA-OneVision's in pixels: 3 by 3 patches, and a rest as with the published 384 pixels."""
RESOLUTIONS = tuple((height * TILE, width * TILE) for height in (1, 2, 3) for width in (1, 2, 3))

ONEVISION_TEMPLATE = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}\
{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}\
{% for part in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>' }}{% endfor %}\
{% if message['role'] != 'assistant' %}\
{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\\n' + part['text'] }}{% endfor %}\
{% else %}\
{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}\
{% generation %}{{ '\\n' + part['text'] }}{% endgeneration %}\
{% endfor %}\
{% endif %}{{ '<|im_end|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\
"""


def make_onevision_checkpoint(path: Path, *, names: Names = "published", max_tiles: int = 4) -> Path:
    """Writes a LLaVA-OneVision checkpoint of float32 into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
    """
    torch.manual_seed(1)
    sizes = {**_SIZES, "bos_token_id": None, "eos_token_id": ONEVISION_TOKEN_IDS["<|im_end|>"]}
    text = Qwen2Config(**{**sizes, "max_position_embeddings": 2048}, num_key_value_heads=2, tie_word_embeddings=True)
    config = LlavaOnevisionConfig(
        vision_config=siglip_config(image_size=TILE, patch_size=14),
        text_config=text,
        image_token_index=ONEVISION_TOKEN_IDS["<image>"],
        video_token_index=ONEVISION_TOKEN_IDS["<video>"],
        image_grid_pinpoints=[list(each) for each in RESOLUTIONS],
        vision_aspect_ratio=f"anyres_max_{max_tiles}",
    )
    model = LlavaOnevisionForConditionalGeneration(config).float()
    draw_weights(model)
    temper_attention(model)
    save_model(model, path, names)
    size = {"height": TILE, "width": TILE}
    common = {name: PREPROCESSOR_CONFIG[name] for name in ("image_mean", "image_std", "resample", "rescale_factor")}
    images = {
        **common,
        "size": size,
        "do_pad": True,
        "image_grid_pinpoints": [list(each) for each in RESOLUTIONS],
        "image_processor_type": "LlavaOnevisionImageProcessor",
    }
    processor = {
        "num_image_tokens": 9,
        "processor_class": "LlavaOnevisionProcessor",
        "vision_aspect_ratio": f"anyres_max_{max_tiles}",
        "vision_feature_select_strategy": "full",
    }
    return write_files(
        path,
        make_tokenizer(ONEVISION_SPECIAL_TOKENS),
        preprocessor_config=images,
        video_preprocessor_config={**common, "size": size},
        processor_config=processor,
        chat_template={"chat_template": ONEVISION_TEMPLATE},
        tokenizer_config={
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "processor_class": "LlavaOnevisionProcessor",
        },
    )
