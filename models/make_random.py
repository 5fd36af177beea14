"""Makes a small Qwen2-VL checkpoint with seeded random weights, in the layout of the published ones.

It stands in for a trained model: everything works but the answers mean nothing. They are readable, though, and differ
between pictures and between questions. `python models/make_random.py --help` tells more.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from engine.checkpoint import DEFAULT_MODEL, UNTRAINED_MARK
from engine.text.template import QWEN2_VL_TEMPLATE

PROTOS = Path(__file__).resolve().parents[1] / "api" / "glimpse"
"""English of our own, for the tokenizer to learn from."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen2-VL's, in its order."""

VOCAB_SIZE = 1024
NUM_TOKENS = 1000
"""Tokens of the tokenizer; as in the published checkpoints, the embedding table has more rows."""

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen2's tokenizer cuts text before it merges bytes; transformers builds this into its class for the family."""

TEXT: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 384,
    "max_position_embeddings": 8192,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    "rope_theta": 1_000_000.0,
    "use_sliding_window": False,
    "vocab_size": VOCAB_SIZE,
}

VISION: dict[str, Any] = {
    "depth": 2,
    "embed_dim": 128,
    "hidden_size": 128,
    "in_chans": 3,
    "mlp_ratio": 4,
    "num_heads": 4,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "temporal_patch_size": 2,
}

PREPROCESSOR = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "max_pixels": 1003520,
    "merge_size": 2,
    "min_pixels": 3136,
    "patch_size": 14,
    "processor_class": "Qwen2VLProcessor",
    "temporal_patch_size": 2,
}


def make_checkpoint(path: Path, seed: int) -> None:
    """Writes the checkpoint into the folder `path`, which is made if it does not exist."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    ids = _special_ids(tokenizer)
    _write_json(path / "config.json", _config(ids))
    _write_json(path / "generation_config.json", _generation_config(ids))
    _write_json(path / "preprocessor_config.json", PREPROCESSOR)
    _write_json(path / "tokenizer_config.json", _tokenizer_config(ids))
    _write_json(path / "chat_template.json", {"chat_template": QWEN2_VL_TEMPLATE})
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in _weights(seed, _visible_ids(tokenizer))}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE like Qwen2's, of NUM_TOKENS tokens in all, the special ones last."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=NUM_TOKENS - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [file.read_text(encoding="utf-8") for file in sorted(PROTOS.rglob("*.proto"))]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {token: token_id for token, token_id in tokenizer.get_vocab().items() if token in SPECIAL_TOKENS}


def _config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        UNTRAINED_MARK: True,
        **TEXT,
        "vision_config": VISION,
    }


def _generation_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }


def _tokenizer_config(ids: dict[str, int]) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(token_id): {"content": token, **flags} for token, token_id in sorted(ids.items())},
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": TEXT["max_position_embeddings"],
        "pad_token": "<|endoftext|>",
        "processor_class": "Qwen2VLProcessor",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _visible_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens that a person can read, and the end of an answer."""
    texts = {token_id: tokenizer.decode([token_id]) for token_id in range(NUM_TOKENS)}
    readable = [token_id for token_id, text in texts.items() if text and text.isascii() and text.isprintable()]
    return [*readable, _special_ids(tokenizer)["<|im_end|>"]]


def _weights(seed: int, visible_ids: list[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors by the names of the published checkpoints.

    The gains let what attention brings outweigh the last token, so that an answer depends on the whole prompt.
    """
    generator = torch.Generator().manual_seed(seed)
    yield from _decoder(generator, visible_ids)
    yield from _vision_tower(generator)


def _decoder(generator: torch.Generator, visible_ids: list[int]) -> Iterator[tuple[str, torch.Tensor]]:
    hidden, middle = TEXT["hidden_size"], TEXT["intermediate_size"]
    keys = hidden * TEXT["num_key_value_heads"] // TEXT["num_attention_heads"]
    scale = torch.full((VOCAB_SIZE, 1), 0.02)  # what cannot be read has small logits
    scale[visible_ids] = 0.5
    yield "model.embed_tokens.weight", torch.randn(VOCAB_SIZE, hidden, generator=generator) * scale
    for layer in (f"model.layers.{index}" for index in range(TEXT["num_hidden_layers"])):
        yield f"{layer}.input_layernorm.weight", torch.ones(hidden)
        yield from _linear(generator, f"{layer}.self_attn.q_proj", hidden, hidden, gain=2)
        yield from _linear(generator, f"{layer}.self_attn.k_proj", keys, hidden, gain=2)
        yield from _linear(generator, f"{layer}.self_attn.v_proj", keys, hidden)
        yield from _linear(generator, f"{layer}.self_attn.o_proj", hidden, hidden, gain=4, bias=False)
        yield f"{layer}.post_attention_layernorm.weight", torch.ones(hidden)
        yield from _linear(generator, f"{layer}.mlp.gate_proj", middle, hidden, bias=False)
        yield from _linear(generator, f"{layer}.mlp.up_proj", middle, hidden, bias=False)
        yield from _linear(generator, f"{layer}.mlp.down_proj", hidden, middle, gain=2, bias=False)
    yield "model.norm.weight", torch.ones(hidden)


def _vision_tower(generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    width, merged = VISION["embed_dim"], VISION["embed_dim"] * VISION["spatial_merge_size"] ** 2
    patch = (VISION["in_chans"], VISION["temporal_patch_size"], VISION["patch_size"], VISION["patch_size"])
    embedding = torch.randn(width, *patch, generator=generator) / math.sqrt(math.prod(patch))
    yield "visual.patch_embed.proj.weight", embedding
    for block in (f"visual.blocks.{index}" for index in range(VISION["depth"])):
        yield from _layer_norm(f"{block}.norm1", width)
        yield from _linear(generator, f"{block}.attn.qkv", 3 * width, width, gain=2)
        yield from _linear(generator, f"{block}.attn.proj", width, width)
        yield from _layer_norm(f"{block}.norm2", width)
        yield from _linear(generator, f"{block}.mlp.fc1", VISION["mlp_ratio"] * width, width)
        yield from _linear(generator, f"{block}.mlp.fc2", width, VISION["mlp_ratio"] * width)
    yield from _layer_norm("visual.merger.ln_q", width)
    yield from _linear(generator, "visual.merger.mlp.0", merged, merged)
    yield from _linear(generator, "visual.merger.mlp.2", VISION["hidden_size"], merged)


def _linear(
    generator: torch.Generator, name: str, rows: int, columns: int, *, gain: float = 1.0, bias: bool = True
) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", torch.randn(rows, columns, generator=generator) * gain / math.sqrt(columns)
    if bias:
        yield f"{name}.bias", torch.randn(rows, generator=generator) * 0.1


def _layer_norm(name: str, width: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", torch.ones(width)
    yield f"{name}.bias", torch.zeros(width)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make a small Qwen2-VL checkpoint with seeded random weights.")
    parser.add_argument("--out", type=Path, default=DEFAULT_MODEL, help="folder to write (default: models/nano)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    arguments = parser.parse_args()
    make_checkpoint(arguments.out, arguments.seed)


if __name__ == "__main__":
    main()
