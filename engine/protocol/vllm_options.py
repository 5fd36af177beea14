"""Options of vLLM's `LLM` and of `vllm serve`: those with another name here, and those that do not exist here."""

from collections.abc import Callable, Mapping
from typing import Any

from glimpse.engine.protocol.other_names import OtherName, anything, tell

NAMES_HERE: Mapping[str, str] = {
    "enable_prefix_caching": "prefix_caching",
    "enforce_eager": "cuda_graphs",
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "max_num_batched_tokens": "max_batch_tokens",
    "max_num_seqs": "max_sequences",
}
"""What options of vLLM are called here. `enforce_eager` is the opposite of `cuda_graphs`."""

OPPOSITES = frozenset({"enforce_eager"})


def _integer(value: object) -> bool:
    return isinstance(value, int)


def _most(number: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and 0 <= value <= number


_FROM_CONFIG = "the checkpoint's own configuration says it"
_NO_CODE = "the code of a checkpoint is never run, and no supported model needs it"
_ONE_WAY = "there is one way to do it"
_WITH_MODEL = "the model's own is used"

OTHER_OPTIONS: Mapping[str, OtherName] = {
    "async_scheduling": OtherName("the next step is always planned ahead", (None, True, False)),
    "code_revision": OtherName(_NO_CODE, anything),
    "compilation_config": OtherName("the kernels are compiled once on this machine", anything),
    "config_format": OtherName("config.json is read", ("auto", "hf")),
    "convert": OtherName("`embed` works on every model", ("auto", "none", "embed")),
    "cpu_offload_gb": OtherName("weights stay where the model computes; write quantization", (0,)),
    "data_parallel_size": OtherName("start a server on each GPU, and one gateway for all", (1,)),
    "disable_async_output_proc": OtherName(_ONE_WAY, (False, True)),
    "disable_custom_all_reduce": OtherName(_ONE_WAY, (False, True)),
    "disable_log_requests": OtherName("prompts are never logged", (False, True)),
    "disable_log_stats": OtherName("`LLM` logs none, and a server has metrics", (False, True)),
    "disable_mm_preprocessor_cache": OtherName("write media_cache_bytes, of 0", (False,)),
    "distributed_executor_backend": OtherName("ranks are processes", anything),
    "download_dir": OtherName("set the environment variable HF_HUB_CACHE", (None,)),
    "enable_chunked_prefill": OtherName("long prompts are always computed in chunks", (None, True, False)),
    "enable_expert_parallel": OtherName("experts are shared as other weights are", (False,)),
    "enable_lora": OtherName("lora_modules enables them", (False, True)),
    "guided_decoding_backend": OtherName("there is one grammar backend", anything),
    "hf_overrides": OtherName("change the checkpoint's config.json", (None, {})),
    "hf_token": OtherName("set the environment variable HF_TOKEN", (None,)),
    "image_feature_size": OtherName(_FROM_CONFIG, _integer),
    "image_input_shape": OtherName(_FROM_CONFIG, anything),
    "image_input_type": OtherName("write enable_mm_embeds to pass embeddings of images", ("pixel_values",)),
    "image_token_id": OtherName(_FROM_CONFIG, _integer),
    "interleave_mm_strings": OtherName("media stand where they are in the message", (False, True)),
    "load_format": OtherName("weights are read from safetensors files", ("auto", "safetensors")),
    "logits_processors": OtherName("write logit_bias, allowed_token_ids or bad_words in SamplingParams", (None, [])),
    "max_logprobs": OtherName("requests may ask for 20 at most", _most(20)),
    "max_seq_len_to_capture": OtherName("decode steps of every length are recorded", _integer),
    "mm_encoder_tp_mode": OtherName(_ONE_WAY, anything),
    "mm_processor_cache_gb": OtherName("write media_cache_bytes", (4,)),
    "model_impl": OtherName(_ONE_WAY, ("auto", "vllm")),
    "override_generation_config": OtherName("write SamplingParams, or a folder as generation_config", (None, {})),
    "override_pooler_config": OtherName("write pooling and normalize in `embed`", (None,)),
    "pipeline_parallel_size": OtherName("write tensor_parallel_size", (1,)),
    "pooler_config": OtherName("write pooling and normalize in `embed`", (None,)),
    "revision": OtherName("download it, and pass its folder", (None, "main")),
    "runner": OtherName("every model generates, and embeds", ("auto", "generate", "pooling")),
    "skip_mm_profiling": OtherName(_ONE_WAY, (False, True)),
    "skip_tokenizer_init": OtherName("write prompt_token_ids in prompts", (False,)),
    "structured_outputs_config": OtherName("there is one grammar backend", anything),
    "swap_space": OtherName("sequences that give way are computed again", anything),
    "task": OtherName("every model generates, and embeds", ("auto", "generate", "embed", "embedding", "score")),
    "tokenizer": OtherName(_WITH_MODEL, (None,)),
    "tokenizer_mode": OtherName("the checkpoint's tokenizer.json is read", ("auto", "hf")),
    "tokenizer_revision": OtherName(_WITH_MODEL, (None, "main")),
    "trust_remote_code": OtherName(_NO_CODE, (False, True)),
    "use_v2_block_manager": OtherName(_ONE_WAY, (False, True)),
}
"""Options of vLLM that do not exist here."""

SPECULATIVE_CONFIG = "speculative_config"
"""vLLM's option that is several here."""
_OF_MTP = ("mtp", "deepseek_mtp", "glm_ocr_mtp", "qwen3_5_mtp", "qwen3_next_mtp")
_METHODS = {"ngram": "ngram"} | dict.fromkeys(_OF_MTP, "mtp")


def read_speculative_config(value: object) -> dict[str, Any]:
    """Returns the options that a `speculative_config` stands for, by their names here.

    Raises:
        ValueError: it asks for something that does not exist.
    """
    if value is None:
        return {}
    config: dict[str, Any] = {**value} if isinstance(value, dict) else {}
    method, number = config.pop("method", None), config.pop("num_speculative_tokens", None)
    for name in ("prompt_lookup_max", "prompt_lookup_min"):
        if config.pop(name, None) is not None:
            tell(f"{SPECULATIVE_CONFIG}: {name} changes nothing: three tokens are looked up")
    if method not in _METHODS or config:
        raise ValueError(
            f"expected a method of {', '.join(_METHODS)}, and num_speculative_tokens or nothing else, got {value!r}"
        )
    options: dict[str, Any] = {"speculative": _METHODS[method], "num_speculative_tokens": number}
    options = {name: each for name, each in options.items() if each is not None}
    tell(f"{SPECULATIVE_CONFIG} is {' and '.join(f'{name} {each}' for name, each in options.items())} here")
    return options
