"""How far a backend's or a quantization's answers are from float32's: by logits, on prompts of random tokens.

    python -m bench.divergence CHECKPOINT [--prompts 8] [--tokens 256]

Every token of a prompt is scored, by each variant on the same tokens. Shown are the root mean square difference of the
logits in standard deviations of the exact ones, the mean Kullback-Leibler divergence from the exact distribution, and
how often both put the same token first. Needs the memory of a float32 model.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from bench.figures import significant, table
from engine.batch import make_batch
from engine.config import ModelConfig, load_model_config
from engine.kv_cache import allocate_kv_cache
from engine.layers.linear import quantize
from engine.load import load_model
from engine.models.families import Model
from engine.native.backend import use_native, why_not_native
from engine.plan import SequenceChunk

_CPU = torch.device("cpu")
_BLOCK_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Of one variant from float32, over all tokens."""

    rms: float
    """Of the logits' difference, in standard deviations of the exact logits."""
    kl_nats: float
    same_first: float
    """Share of the tokens after which both put the same token first."""


def divergence(exact: Tensor, logits: Tensor) -> Divergence:
    """float32 [tokens, vocabulary] each."""
    log_exact, log_other = functional.log_softmax(exact, dim=-1), functional.log_softmax(logits, dim=-1)
    return Divergence(
        rms=((logits - exact).square().mean().sqrt() / exact.std()).item(),
        kl_nats=(log_exact.exp() * (log_exact - log_other)).sum(dim=-1).mean().item(),
        same_first=(exact.argmax(dim=-1) == logits.argmax(dim=-1)).float().mean().item(),
    )


def _plain(_model: Model) -> None:
    pass


def _native(model: Model) -> None:
    model.ops = use_native(model)


def _int8(model: Model) -> None:
    quantize(model.decoder.layers)


def _native_int8(model: Model) -> None:
    _int8(model)
    _native(model)


_VARIANTS: dict[str, Callable[[Model], None]] = {
    "torch bfloat16": _plain,
    "native bfloat16": _native,
    "torch int8": _int8,
    "native int8": _native_int8,
}


def score(
    path: Path, dtype: torch.dtype, prepare: Callable[[Model], None], prompts: Sequence[tuple[int, ...]]
) -> Tensor:
    """float32 [all tokens, vocabulary]: a model's logits after each token of each prompt."""
    config = load_model_config(path)
    model = load_model(path, config, _CPU, dtype, lambda _stage, _fraction: None)
    prepare(model)
    with torch.inference_mode():
        return torch.cat([_score(model, config, dtype, prompt) for prompt in prompts])


def _score(model: Model, config: ModelConfig, dtype: torch.dtype, prompt: tuple[int, ...]) -> Tensor:
    num_blocks = -(-len(prompt) // _BLOCK_SIZE)
    cache = allocate_kv_cache(
        num_layers=config.text.num_layers,
        num_blocks=num_blocks,
        block_size=_BLOCK_SIZE,
        num_kv_heads=config.text.num_kv_heads,
        head_dim=config.text.head_dim,
        dtype=dtype,
        device=_CPU,
    )
    chunk = SequenceChunk(
        sequence_id=0,
        start=0,
        token_ids=prompt,
        block_table=tuple(range(num_blocks)),
        samples=True,
        num_guesses=len(prompt) - 1,  # every token is scored, as if the next one had been guessed
    )
    layouts = {0: model.layout(len(prompt), ())}
    return model(make_batch([chunk], layouts, block_size=_BLOCK_SIZE, device=_CPU), cache, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256, help="of each prompt (default: 256)")
    arguments = parser.parse_args()
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(256) for _ in range(arguments.tokens)) for _ in range(arguments.prompts)]
    variants = _VARIANTS
    if why := why_not_native(_CPU, torch.bfloat16):
        print(f"without the native backend: {why}")
        variants = {name: prepare for name, prepare in _VARIANTS.items() if not name.startswith("native")}
    exact = score(arguments.checkpoint, torch.float32, _plain, prompts)
    rows: list[list[str]] = []
    for name, prepare in variants.items():
        found = divergence(exact, score(arguments.checkpoint, torch.bfloat16, prepare, prompts))
        rows.append([name, significant(found.rms), significant(found.kl_nats), f"{100 * found.same_first:.1f} %"])
    print(table(["variant", "rms of logits, sd", "KL, nats", "same first token"], rows))


if __name__ == "__main__":
    main()
