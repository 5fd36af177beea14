"""Makes Qwen2-VL, Qwen3 and Qwen3.5 checkpoints of any size with seeded random weights, in the layout of the published
ones.

    python -m bench.make_checkpoint OUT --preset mid

Any server of these families loads them. Their answers are meaningless and never end by themselves, so only the request
determines an answer's length. Weights are written as they are drawn, so a checkpoint may be larger than memory. They
come from a table of random numbers that each tensor reads from another offset: drawing billions would take minutes.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from bench.random_model import Shape, readable_ids, train_tokenizer, weights, write_metadata
from bench.serving.words import invented_texts

_TABLE_SIZE = (1 << 22) - 3
"""An odd number, so that the rows of a matrix differ."""
_HEADER_BYTES = 1 << 20
"""Reserved for names and shapes, which are known only at the end; the format allows trailing spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a checkpoint."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    num_tokens: int
    """Size of the tokenizer's vocabulary."""
    vocab_size: int
    """Rows of the embedding table: slightly more than the tokenizer has, or as in the published checkpoint."""
    context: int
    vision_width: int = 0
    """0: the model reads text alone."""
    vision_depth: int = 0
    vision_heads: int = 0
    untied: int = 0
    """1: the output head has weights of its own."""
    head_dim: int = 0
    """0: `hidden` / `heads`."""
    head_norms: int = 0
    """1: Qwen3's layout, whose heads have norms and whose linears have no biases."""
    experts: int = 0
    """Experts of each layer, with `intermediate` features; 8 of them compute a token. 0: layers have one MLP."""
    delta_nets: int = 0
    """1: Qwen3.5's layout: three gated delta nets for each layer of attention, of 16 heads."""


PRESETS: Mapping[str, Sizes] = {
    "tiny": Sizes(
        hidden=128,
        layers=2,
        heads=4,
        kv_heads=2,
        intermediate=256,
        num_tokens=2000,
        vocab_size=2048,
        vision_width=64,
        vision_depth=2,
        vision_heads=2,
        context=8192,
    ),
    "mid": Sizes(
        hidden=896,
        layers=24,
        heads=14,
        kv_heads=2,
        intermediate=4864,
        num_tokens=32000,
        vocab_size=32768,
        vision_width=640,
        vision_depth=12,
        vision_heads=8,
        context=32768,
    ),
    "2B": Sizes(
        hidden=1536,
        layers=28,
        heads=12,
        kv_heads=2,
        intermediate=8960,
        num_tokens=32000,
        vocab_size=151936,
        vision_width=1280,
        vision_depth=32,
        vision_heads=16,
        context=32768,
    ),
    "7B": Sizes(
        hidden=3584,
        layers=28,
        heads=28,
        kv_heads=4,
        intermediate=18944,
        num_tokens=32000,
        vocab_size=152064,
        vision_width=1280,
        vision_depth=32,
        vision_heads=16,
        context=32768,
        untied=1,
    ),
    "0.6B": Sizes(
        hidden=1024,
        layers=28,
        heads=16,
        kv_heads=8,
        intermediate=3072,
        num_tokens=32000,
        vocab_size=151936,
        context=40960,
        head_dim=128,
        head_norms=1,
    ),
    "moe": Sizes(
        hidden=1024,
        layers=8,
        heads=16,
        kv_heads=4,
        intermediate=512,
        num_tokens=32000,
        vocab_size=32256,
        context=40960,
        head_dim=128,
        head_norms=1,
        experts=64,
    ),
    "delta": Sizes(
        hidden=1024,
        layers=24,
        heads=8,
        kv_heads=2,
        intermediate=3584,
        num_tokens=32000,
        vocab_size=32256,
        context=40960,
        head_dim=256,
        delta_nets=1,
    ),
}
"""mid: 0.45 B parameters, 14 query and 2 key-value heads of 64. A decode step reads 0.77 GB.
2B and 7B: the shapes of Qwen2-VL-2B-Instruct and Qwen2-VL-7B-Instruct.
0.6B: the shape of Qwen3-0.6B.
moe: 0.9 B parameters, of which a token reads 0.19 B: 8 of 64 experts in each of 8 layers.
delta: the shape of Qwen3.5-0.8B, with fewer tokens: 0.53 B parameters."""


def make_checkpoint(path: Path, sizes: Sizes, *, seed: int) -> int:
    """Writes a checkpoint in bfloat16 into the folder `path` and returns the number of its parameters."""
    tokenizer = train_tokenizer(invented_texts(0, 2 * sizes.num_tokens), sizes.num_tokens)
    shape = make_shape(sizes)
    write_metadata(path, shape, tokenizer)
    table = Table(seed)
    drawn = _delta_nets(shape, table) if sizes.delta_nets else weights(shape, table, readable_ids(tokenizer))
    return write_weights(path / "model.safetensors", drawn)


def _delta_nets(shape: Shape, table: "Table") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of transformers' Qwen3.5."""
    with torch.device("meta"):
        stored: Mapping[str, torch.Tensor] = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape.text)).state_dict()
    for name, tensor in stored.items():
        if name == "lm_head.weight":  # it is the embedding table
            continue
        drawn = table(tensor.shape)
        yield name, drawn / tensor[0].numel() ** 0.5 if tensor.dim() > 1 else 0.1 * drawn


class Table:
    """Numbers from the standard normal distribution, drawn once and reused."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(_TABLE_SIZE, generator=generator)
        self._values = torch.cat([drawn, drawn])
        self._generator = generator

    def __call__(self, shape: Sequence[int]) -> torch.Tensor:
        """Returns a float32 tensor of this shape."""
        num_values = math.prod(shape)
        start = int(torch.randint(_TABLE_SIZE, (), generator=self._generator))
        part = self._values[start : start + _TABLE_SIZE]
        whole, rest = divmod(num_values, _TABLE_SIZE)
        return torch.cat([*(part for _ in range(whole)), part[:rest]]).view(*shape)


def make_shape(sizes: Sizes) -> Shape:
    """Returns the `config.json` of a model of these sizes."""
    text: dict[str, Any] = {
        "head_dim": sizes.head_dim or sizes.hidden // sizes.heads,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "max_position_embeddings": sizes.context,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": not sizes.untied,
        "use_sliding_window": False,
        "vocab_size": sizes.vocab_size,
    }
    if sizes.delta_nets:
        rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}
        heads = {"linear_num_key_heads": 16, "linear_num_value_heads": 16}
        architecture = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
        text = {**text, **architecture, **heads, "rope_parameters": rope}
        return Shape(text=text, vision=None)
    if sizes.head_norms:
        text |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
        if sizes.experts:
            text |= {
                "architectures": ["Qwen3MoeForCausalLM"],
                "model_type": "qwen3_moe",
                "moe_intermediate_size": sizes.intermediate,
                "norm_topk_prob": True,
                "num_experts": sizes.experts,
                "num_experts_per_tok": 8,
            }
        return Shape(text=text, vision=None)
    half = text["head_dim"] // 2
    section = [half // 4, (half - half // 4) // 2, half - half // 4 - (half - half // 4) // 2]
    text["rope_scaling"] = {"type": "mrope", "mrope_section": section}
    vision = {
        "depth": sizes.vision_depth,
        "embed_dim": sizes.vision_width,
        "hidden_size": sizes.hidden,
        "in_chans": 3,
        "mlp_ratio": 4,
        "num_heads": sizes.vision_heads,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    }
    return Shape(text=text, vision=vision)


def write_weights(path: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
    """Writes tensors in bfloat16 to one safetensors file; returns the number of values."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    with path.open("wb") as file:
        file.seek(8 + _HEADER_BYTES)
        for name, tensor in tensors:
            values = tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
            file.write(values.data)
            end = start + values.nbytes
            header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [start, end]}
            start = end
            _show(f"writing weights: {start / 1e9:.2f} GB")
        text = json.dumps(header).encode()
        if len(text) > _HEADER_BYTES:
            raise ValueError(f"{len(header)} tensors are more than the header has room for")
        file.seek(0)
        file.write(_HEADER_BYTES.to_bytes(8, "little") + text.ljust(_HEADER_BYTES))
    _show("")
    return start // 2


def _show(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="mid", help="sizes to begin from (default: mid)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    for name in Sizes.__dataclass_fields__:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="in place of the preset's")
    arguments = vars(parser.parse_args())
    preset = PRESETS[arguments["preset"]]
    sizes = Sizes(**{name: arguments[name] or getattr(preset, name) for name in Sizes.__dataclass_fields__})
    begun = time.perf_counter()
    num_parameters = make_checkpoint(arguments["out"], sizes, seed=arguments["seed"])
    print(f"{arguments['out']}: {num_parameters / 1e6:.1f} M parameters, {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
