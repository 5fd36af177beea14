"""Gemma 4: its fields as published, and layers of several shapes on native kernels, in batches and through `LLM`."""

from pathlib import Path

import pytest
import torch

from glimpse import LLM, SamplingParams
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.decoder import (
    KVHeads,
    LayerEmbeddings,
    ProportionalScaling,
    SlidingAttention,
)
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import KvCacheDType
from glimpse.engine.worker.parallel.shards import shard_config
from glimpse.engine.worker.tensors.kv_cache import CacheShape
from tests.checkpoints.files import write_json
from tests.checkpoints.refusals import assert_refused
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.levels import needs_kernels
from tests.engine.worker.models.windows import Windows

SMALL = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "attention_k_eq_v": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 6144,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "num_attention_heads": 8,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": None,
    "num_kv_shared_layers": 20,
    "sliding_window": 512,
    "use_double_wide_mlp": True,
    "vocab_size": 262144,
    "dtype": "bfloat16",
}
LARGE = SMALL | {
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "num_global_key_value_heads": 4,
    "num_key_value_heads": 16,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
    "use_double_wide_mlp": False,
}


@pytest.fixture(scope="module", params=["gemma4", "gemma4 large", "gemma4 moe"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_checkpoint(tmp_path_factory.mktemp("gemma4"), request.param)


def test_reads_the_fields_of_small_checkpoints(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", SMALL)
    config = load_model_config(tmp_path)
    text = config.text
    assert text.sliding == SlidingAttention(window=512, rope_theta=10_000.0, kv_heads=KVHeads(1, 256))
    assert (text.num_kv_heads, text.head_dim, text.rope_theta) == (1, 512, 1_000_000.0)
    assert text.rope_scaling == ProportionalScaling(share=0.25)
    assert text.layer_embeddings == LayerEmbeddings(vocab_size=262_144, width=256, media_token_id=0)
    assert (text.score_factor, text.logit_cap, text.max_position_embeddings) == (1.0, 30.0, 131_072)
    assert [text.cache_layer(index) for index in (0, 13, 14, 15, 19, 34)] == [0, 13, 14, 13, 14, 14]
    assert config.eos_token_ids == (1,)


def test_reads_the_fields_of_large_checkpoints(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LARGE)
    text = load_model_config(tmp_path).text
    assert text.kv_heads(0) == KVHeads(16, 256)
    assert text.kv_heads(4) == KVHeads(4, 512)
    assert text.keys_are_values
    assert text.layer_embeddings is None
    assert {text.cache_layer(index) for index in range(35)} == {*range(35)}


def test_layers_without_keys_of_their_own_take_no_cache(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", SMALL)
    shape = CacheShape.of(load_model_config(tmp_path).text)
    assert shape.block_bytes(1, torch.bfloat16) == 2 * 2 * (12 * 256 + 3 * 512)
    cache = shape.allocate(3, 32, torch.bfloat16, torch.device("cpu"))
    assert cache.sliding is not None
    assert sum(tensor.nbytes for tensor in (cache.keys, cache.values, *cache.sliding)) == 3 * shape.block_bytes(
        32, torch.bfloat16
    )
    assert cache.layer(15).keys.data_ptr() == cache.layer(13).keys.data_ptr()
    assert cache.layer(34).keys.shape == (3, 32, 1, 512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": True}, "'attention_bias': expected false, got true"),
        ({"hidden_activation": "gelu"}, "'hidden_activation': expected 'gelu_pytorch_tanh', got 'gelu'"),
        ({"use_bidirectional_attention": "all"}, "'use_bidirectional_attention': expected null or 'vision', got 'all'"),
        ({"num_kv_shared_layers": 31}, "'num_kv_shared_layers': expected a layer of full_attention before those"),
        ({"per_layer_config": {"0": {"head_dim": 64}}}, "'per_layer_config': expected the same heads for each"),
    ],
)
def test_refuses_unsupported_configurations(tmp_path: Path, change: dict[str, object], message: str) -> None:
    assert_refused(tmp_path, SMALL | change, message)


def test_refuses_several_ranks(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LARGE)
    with pytest.raises(CheckpointError, match="'--tensor-parallel-size': expected 1 for heads that differ by layer"):
        shard_config(load_model_config(tmp_path).text, 2)


class TestWindows(Windows):
    pass


@needs_kernels
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_sequences_that_a_small_cache_preempts_answer_as_alone(checkpoint: Path, kv_cache_dtype: KvCacheDType) -> None:
    shape = CacheShape.of(load_model_config(checkpoint).text, kv_cache_dtype)
    kv_cache_bytes = 6 * shape.block_bytes(32, torch.float32)
    llm = LLM(
        checkpoint, dtype="float32", device="cpu", block_size=32, kv_cache_bytes=kv_cache_bytes,
        kv_cache_dtype=kv_cache_dtype, num_threads=1,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    prompts = ["the an " * 20, "an the " * 22, "the the an " * 14]
    together = llm.generate(prompts, sampling)
    alone = [llm.generate(prompt, sampling)[0] for prompt in prompts]
    assert [each.outputs[0].token_ids for each in together] == [each.outputs[0].token_ids for each in alone]
