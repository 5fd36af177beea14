"""Tiny checkpoints of Qwen3-VL with seeded random weights, in the format of published checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints.files import save_weights
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE, stored_name, write_qwen_files
from tests.checkpoints.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, ids_of, readable_token_ids
from tests.checkpoints.weights import Draw, Named

HIDDEN, LAYERS, HEAD_DIM, INNER = 64, 3, 32, 96
"""The decoder: 4 query heads and 2 key-value heads, which are wider than the hidden states."""
VISION_WIDTH, VISION_INNER, VISION_DEPTH = 48, 52, 3
"""The encoder: 2 heads of 24, which is no multiple of 16, as the 72 of published checkpoints."""
POSITION_SIDE = 6
DEEPSTACK_BLOCKS = (0, 2)
NUM_EXPERTS, EXPERT_INNER = 6, 48
ROUTING: Mapping[str, Any] = {
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_INNER,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}

TOKEN_IDS = ids_of(SPECIAL_TOKENS)

PREPROCESSOR_CONFIG: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "size": {"longest_edge": 16_777_216, "shortest_edge": 1024},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""The published values, except that small images stay small."""

VIDEO_PREPROCESSOR_CONFIG: dict[str, Any] = PREPROCESSOR_CONFIG | {
    "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"longest_edge": 25_165_824, "shortest_edge": 4096},
}
PREPROCESSORS = {"preprocessor_config": PREPROCESSOR_CONFIG, "video_preprocessor_config": VIDEO_PREPROCESSOR_CONFIG}


def make_qwen3_vl_checkpoint(
    path: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    tied: bool = True,
    flat_names: bool = False,
    experts: bool = False,
) -> Path:
    """Writes a checkpoint into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        dtype: of the stored weights, "float32" or "bfloat16".
        tied: the output head is the embedding table.
        flat_names: tensor names begin with "model." and "visual.", as those of Qwen2-VL.
        experts: layers have a mixture of experts, as those of Qwen3-VL-30B-A3B.
    """
    tokenizer = write_qwen_files(
        path, SPECIAL_TOKENS, CHAT_TEMPLATE, config=config_of(dtype, tied, experts=experts), **PREPROCESSORS
    )
    draw = Draw(torch.Generator().manual_seed(seed))
    weights = chain(
        _decoder_weights(draw, tied, readable_token_ids(tokenizer), experts), tower_weights(draw, DEEPSTACK_BLOCKS)
    )
    save_weights(path, weights, dtype, rename=str if flat_names else stored_name)
    return path


def config_of(dtype: str, tied: bool, *, experts: bool = False) -> dict[str, Any]:
    """Returns the `config.json` of Qwen3-VL."""
    kind = "qwen3_vl_moe" if experts else "qwen3_vl"
    return {
        "architectures": [f"Qwen3VL{'Moe' if experts else ''}ForConditionalGeneration"],
        "model_type": kind,
        "tie_word_embeddings": tied,
        "image_token_id": TOKEN_IDS["<|image_pad|>"],
        "video_token_id": TOKEN_IDS["<|video_pad|>"],
        "vision_start_token_id": TOKEN_IDS["<|vision_start|>"],
        "vision_end_token_id": TOKEN_IDS["<|vision_end|>"],
        "text_config": {
            "model_type": f"{kind}_text",
            **(ROUTING if experts else {}),
            "attention_bias": False,
            "bos_token_id": TOKEN_IDS["<|endoftext|>"],
            "dtype": dtype,
            "eos_token_id": TOKEN_IDS["<|im_end|>"],
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "max_position_embeddings": 4096,
            "num_attention_heads": 4,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
            "rope_theta": 5_000_000,
            "tie_word_embeddings": tied,
            "vocab_size": VOCAB_SIZE,
        },
        "vision_config": {
            "model_type": kind,
            "deepstack_visual_indexes": list(DEEPSTACK_BLOCKS),
            "depth": VISION_DEPTH,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": VISION_WIDTH,
            "in_channels": 3,
            "intermediate_size": VISION_INNER,
            "num_heads": 2,
            "num_position_embeddings": POSITION_SIDE**2,
            "out_hidden_size": HIDDEN,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def _decoder_weights(draw: Draw, tied: bool, readable: list[int], experts: bool) -> Iterator[Named]:
    yield from draw.vocabulary("model.embed_tokens", HIDDEN, readable)
    for layer in (f"model.layers.{index}" for index in range(LAYERS)):
        yield from draw.norm(f"{layer}.input_layernorm", HIDDEN)
        for name, heads, gain in (("q_proj", 4, 1.5), ("k_proj", 2, 1.5), ("v_proj", 2, 1.0)):
            yield from draw.linear(f"{layer}.self_attn.{name}", heads * HEAD_DIM, HIDDEN, gain=gain, bias=False)
        for name in ("q_norm", "k_norm"):
            yield from draw.norm(f"{layer}.self_attn.{name}", HEAD_DIM)
        yield from draw.linear(f"{layer}.self_attn.o_proj", HIDDEN, 4 * HEAD_DIM, gain=4, bias=False)
        yield from draw.norm(f"{layer}.post_attention_layernorm", HIDDEN)
        yield from expert_weights(draw, f"{layer}.mlp") if experts else draw.mlp(f"{layer}.mlp", HIDDEN, INNER)
    yield from draw.norm("model.norm", HIDDEN)
    if not tied:
        yield from draw.vocabulary("lm_head", HIDDEN, readable)


def expert_weights(draw: Draw, name: str) -> Iterator[Named]:
    """Yields the weights of experts in stacks, inputs before outputs, as they are published."""
    yield from draw.linear(f"{name}.gate", NUM_EXPERTS, HIDDEN, gain=1.5, bias=False)
    mlps = [dict(draw.mlp(name, HIDDEN, EXPERT_INNER)) for _ in range(NUM_EXPERTS)]
    gate, up, down = (
        torch.stack([mlp[f"{name}.{part}_proj.weight"].T for mlp in mlps]) for part in ("gate", "up", "down")
    )
    yield f"{name}.experts.gate_up_proj", torch.cat([gate, up], dim=-1)
    yield f"{name}.experts.down_proj", down.contiguous()


def tower_weights(draw: Draw, deepstack_blocks: Sequence[int]) -> Iterator[Named]:
    """Yields the encoder's tensors."""
    weight, bias = draw.linear("visual.patch_embed.proj", VISION_WIDTH, 3 * 2 * 16 * 16)
    yield weight[0], weight[1].view(VISION_WIDTH, 3, 2, 16, 16)
    yield bias
    yield "visual.pos_embed.weight", torch.randn(POSITION_SIDE**2, VISION_WIDTH, generator=draw.generator)
    for block in (f"visual.blocks.{index}" for index in range(VISION_DEPTH)):
        yield from draw.norm(f"{block}.norm1", VISION_WIDTH, bias=True)
        yield from draw.linear(f"{block}.attn.qkv", 3 * VISION_WIDTH, VISION_WIDTH, gain=1.5)
        yield from draw.linear(f"{block}.attn.proj", VISION_WIDTH, VISION_WIDTH)
        yield from draw.norm(f"{block}.norm2", VISION_WIDTH, bias=True)
        yield from draw.linear(f"{block}.mlp.linear_fc1", VISION_INNER, VISION_WIDTH)
        yield from draw.linear(f"{block}.mlp.linear_fc2", VISION_WIDTH, VISION_INNER)
    yield from _merger(draw, "visual.merger", VISION_WIDTH)
    for index in range(len(deepstack_blocks)):
        yield from _merger(draw, f"visual.deepstack_merger_list.{index}", 4 * VISION_WIDTH)


def _merger(draw: Draw, name: str, norm_width: int) -> Iterator[Named]:
    yield from draw.norm(f"{name}.norm", norm_width, bias=True)
    yield from draw.linear(f"{name}.linear_fc1", 4 * VISION_WIDTH, 4 * VISION_WIDTH)
    yield from draw.linear(f"{name}.linear_fc2", HIDDEN, 4 * VISION_WIDTH)
