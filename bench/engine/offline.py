"""Throughput of the offline API: whole batches through `glimpse.offline.llm.LLM`, without any server.

python -m bench.engine.offline CHECKPOINT --prompts 16 --prompt-tokens 512 --output-tokens 128
"""

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import get_args

from bench.figures import spread
from bench.serving.processes import peak_rss_mib
from glimpse import SamplingParams
from glimpse.engine.protocol.config import Backend, Quantization
from glimpse.offline.llm import LLM


def measure(llm: LLM, draw: random.Random, *, num_prompts: int, prompt_tokens: int, output_tokens: int) -> float:
    """Returns the seconds for a batch of new prompts."""
    # Ids below 256 are single bytes in every byte-level vocabulary.
    prompts = [{"prompt_token_ids": [draw.randrange(256) for _ in range(prompt_tokens)]} for _ in range(num_prompts)]
    sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    begun = time.perf_counter()
    llm.generate(prompts, sampling)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--prompts", type=int, default=16, help="in a batch (default: 16)")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--backend", choices=get_args(Backend), default="auto")
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    # Random weights repeat themselves, so that draft tokens would gain more than with text.
    llm = LLM(arguments.checkpoint, backend=arguments.backend, quantization=arguments.quantization, speculative="off")
    load_seconds = time.perf_counter() - begun
    sizes = {
        "num_prompts": arguments.prompts,
        "prompt_tokens": arguments.prompt_tokens,
        "output_tokens": arguments.output_tokens,
    }
    draw = random.Random(arguments.seed)
    measure(llm, draw, num_prompts=1, prompt_tokens=16, output_tokens=2)
    seconds = [measure(llm, draw, **sizes) for _ in range(arguments.repeats)]
    output = spread([arguments.prompts * arguments.output_tokens / each for each in seconds])
    whole = spread([arguments.prompts * (arguments.output_tokens + arguments.prompt_tokens) / each for each in seconds])
    print(f"loaded in {load_seconds:.2f} s; peak memory {peak_rss_mib([os.getpid()]):,.0f} MiB")
    print(f"{output} output tokens/s, {whole} tokens/s with the prompts")
    if arguments.json:
        document = {**sizes, "seed": arguments.seed, "load_seconds": load_seconds, "seconds": seconds}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
