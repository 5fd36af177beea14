"""What rounding costs a trained model, by method: the perplexity of this project's documents before and after.

    python -m bench.engine.rounding MODEL

MODEL is the folder of a checkpoint whose weights are not quantized, or a GGUF file in F16 or the like. "nearest" rounds
to the nearest value of each group's range, "searched" to that of the range that loses least, and "compensated" is what
`glimpse quantize` does.
"""

import argparse
from pathlib import Path

import torch

from bench.figures import table
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.worker.loading.build_model import empty_model
from glimpse.engine.worker.loading.weight_files import is_gguf, weight_files
from glimpse.engine.worker.quantize.__main__ import default_text
from glimpse.engine.worker.quantize.decoder import Loss, Texts, quantize_decoder
from glimpse.engine.worker.quantize.quantize_checkpoint import Recipe, divide, rounding
from glimpse.engine.worker.quantize.rounding import Method

_DOCS = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
_TOKENS = 512
RECIPES = (
    *(Recipe(to="int4", group_size=size, method=method) for size in (32, 64) for method in ("nearest", "compensated")),
    Recipe(to="int8", group_size=32),
)
_METHODS: tuple[Method, ...] = ("nearest", "searched", "compensated")
GGUF_RECIPES = tuple(Recipe(to="q4_k_m", method=method) for method in _METHODS)


def loss_of(path: Path, recipe: Recipe, texts: Texts) -> Loss:
    """Rounds a checkpoint's matrices without writing them."""
    config = load_model_config(path)
    model = empty_model(path, config, torch.float32, None, scale_dtype=torch.float32, num_ranks=1)
    stored, round_parts = rounding(path, config, model, recipe)
    with torch.inference_mode():
        return quantize_decoder(
            model,
            stored,
            texts,
            round_parts=round_parts,
            write=lambda _name, _tensor: None,
            on_progress=lambda _fraction: None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--windows", type=int, default=8, help=f"windows of {_TOKENS} tokens to score")
    arguments = parser.parse_args()
    path = resolve_checkpoint(arguments.model)
    tokenizer = load_tokenizer(path)
    docs = tokenizer.encode("".join(path.read_text() for path in _DOCS))
    held_out = [docs[start : start + _TOKENS] for start in range(0, arguments.windows * _TOKENS, _TOKENS)]
    texts = Texts(seen=divide(tokenizer.encode(default_text())).seen, held_out=held_out)
    rows: list[list[str]] = []
    for recipe in GGUF_RECIPES if is_gguf(weight_files(path)[0]) else RECIPES:
        loss = loss_of(path, recipe, texts)
        names = [recipe.to, str(recipe.group_size), recipe.method]
        rows.append([*names, f"{loss.exact:.2f}", f"{loss.quantized:.2f}", f"{loss.increase:+.2%}"])
        print(*rows[-1], flush=True)
    print(f"\n{sum(map(len, held_out)):,} tokens of text\n")
    print(table(("weights", "group", "rounding", "perplexity before", "after", "increase"), rows))


if __name__ == "__main__":
    main()
