"""transformers' continuous batching on our engine's text workload.

It supports text only, so it runs a Qwen2 of the decoder's sizes with random weights, whose values do not affect speed.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from bench.engine.driver import Question
from glimpse.engine.checkpoint.model_config.decoder import TextConfig


def output_tokens_per_second(text: TextConfig, questions: Sequence[Question], device: str) -> float:
    """Runs all questions at once, after a warm-up with two."""
    model = _model(text, device)
    config, settings = _configs(device)
    with model.continuous_batching_context_manager(config, continuous_batching_config=settings) as manager:
        _answer(manager, questions[:2])
        begun = time.perf_counter()
        num_tokens = _answer(manager, questions)
        return num_tokens / (time.perf_counter() - begun)


def _model(text: TextConfig, device: str) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: PLC0415 - takes seconds

    config = Qwen2Config(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_hidden_layers=text.num_layers,
        num_attention_heads=text.num_heads,
        num_key_value_heads=text.num_kv_heads,
        tie_word_embeddings=text.tie_word_embeddings,
    )
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(config)
    return model.to(dtype).eval()


def _configs(device: str) -> tuple[Any, Any]:
    """Sets the generation options."""
    from transformers import ContinuousBatchingConfig, GenerationConfig  # noqa: PLC0415 - takes seconds

    # On a CPU it would otherwise take all memory, as it does on a GPU.
    settings = ContinuousBatchingConfig(max_memory_percent=0.05) if device == "cpu" else None
    return GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0), settings


def _answer(manager: Any, questions: Sequence[Question]) -> int:
    """Returns the number of generated tokens. Raises RuntimeError if some are missing."""
    for question in questions:
        manager.add_request(list(question.token_ids), max_new_tokens=question.output_tokens, eos_token_id=-1)
    num_tokens = num_finished = 0
    for output in manager:
        if output.error is not None:
            raise RuntimeError(output.error)
        if output.is_finished():
            num_tokens += len(output.generated_tokens)
            num_finished += 1
        if num_finished == len(questions):
            break
    if num_tokens != sum(question.output_tokens for question in questions):
        raise RuntimeError(f"transformers gave {num_tokens} tokens in {num_finished} of {len(questions)} answers")
    return num_tokens
