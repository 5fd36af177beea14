"""Steps with LoRA adapters beside those of the base, in one engine.

    python -m bench.engine.adapters CHECKPOINT --quantization none int8 int4

Random adapters of one rank change all linears of attention and of MLPs. A decode step has as many sequences as there
are adapters, each with its own, or all of them with none; a prompt has the first adapter or none. Medians of
processor time on one thread, taken in turns, so that other programs matter little.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.figures import table
from glimpse.engine.benchmark.timed_engine import TimedEngine
from glimpse.engine.protocol.config import EngineConfig, Quantization
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.engine.worker.loading.weight_files import read_headers

_LINEARS = re.compile(r"(.*layers\.\d+\.(?:self_attn|mlp)\.(?:q|k|v|o|gate|up|down)_proj)\.weight")
_CONTEXT, _PROMPT = 256, 256
_TURNS = 2


def write_adapter(folder: Path, checkpoint: Path, rank: int, seed: int) -> str:
    """Writes an adapter for a checkpoint of safetensors and returns its folder."""
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, stored in (read_headers(checkpoint) or {}).items():
        if found := _LINEARS.fullmatch(name):
            outputs, inputs = stored.shape
            for which, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                matrix = torch.randn(shape, generator=random) / 100
                tensors[f"base_model.model.{found[1]}.lora_{which}.weight"] = matrix.bfloat16()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def measure(arguments: argparse.Namespace, modules: dict[str, str], quantization: Quantization) -> list[list[str]]:
    """Returns a row for each kind of step."""
    config = EngineConfig(
        model_path=str(arguments.checkpoint),
        lora_modules=modules,
        max_loras=max(len(modules), 1),
        max_batch_tokens=4 * _PROMPT,
        max_decode_slowdown=1e6,
        prefix_caching=False,
        speculative="off",
        quantization=quantization,
        num_threads=1,
    )
    engine = load_core(config, on_progress=lambda _stage, _fraction: None)
    timed = TimedEngine(engine.core, engine.model, repeats=arguments.repeats, clock=time.process_time)
    names = list(modules)

    def decode(adapters: Sequence[str]) -> list[float]:
        timed.run(len(names), _CONTEXT, adapters=adapters)
        seconds = timed.decode()
        timed.end()
        return seconds

    kinds: dict[str, Callable[[Sequence[str]], list[float]]] = {
        f"decode {len(names)} x {_CONTEXT}": decode,
        f"prefill {_PROMPT}": lambda adapters: timed.prefill(_PROMPT, adapter=adapters[0]),
    }
    rows: list[list[str]] = []
    for kind, run in kinds.items():
        base, own = list[float](), list[float]()
        for _ in range(_TURNS):
            base += run([""])
            own += run(names)
        medians = [1000 * statistics.median(seconds) for seconds in (base, own)]
        weights = f"{engine.ready.cpu_level}, {quantization if quantization != 'none' else engine.ready.dtype}"
        rows.append([weights, kind, *(f"{median:.1f}" for median in medians), f"{medians[1] / medians[0]:.2f}"])
    return rows


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--quantization", nargs="+", default=["none"])
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        modules = {
            f"adapter{seed}": write_adapter(Path(folder) / str(seed), arguments.checkpoint, arguments.rank, seed)
            for seed in range(arguments.adapters)
        }
        rows = [row for each in arguments.quantization for row in measure(arguments, modules, each)]
    print(table(["weights", "step", "base, ms", "with adapters, ms", "times"], rows))


if __name__ == "__main__":
    main()
