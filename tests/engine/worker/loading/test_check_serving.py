"""What is found out about a checkpoint without its weights is what loading it then comes to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.core.scheduler_state import SchedulerState
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig, KvCacheDType
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading import check_serving as check_serving_module
from glimpse.engine.worker.loading import quantization_choice
from glimpse.engine.worker.loading.check_messages import CheckRequest, ServingCheck
from glimpse.engine.worker.loading.check_serving import check_serving
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.engine.worker.loading.weight_files import StoredTensor, read_headers
from glimpse.engine.worker.tensors.kv_cache import CachePlan, CacheShape, KVCache
from models.published.table import load_table
from tests.checkpoints.lora import make_adapter
from tests.checkpoints.quantized import WeightFormat, quantize_checkpoint
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import make_prompt, request_of

SMALL: Mapping[str, Any] = {"kv_cache_bytes": 1 << 20, "encoder_cache_bytes": 1 << 20, "num_threads": 1}
GIB = 1 << 30
SEVEN_BILLION = "Qwen/Qwen2-VL-7B-Instruct"


@pytest.fixture(autouse=True)
def read_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_serving_module, "_READ_BYTES", 1 << 20)


def check(path: Path, tensors: dict[str, StoredTensor] | None = None, **options: Any) -> ServingCheck:
    request = CheckRequest(config=EngineConfig(model_path=str(path), **{**SMALL, **options}), tensors=tensors)
    return check_serving(request, on_progress=lambda _stage, _fraction: None)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The configuration of a large checkpoint."""
    return next(each for each in load_table() if each.name == SEVEN_BILLION).write(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_cache_dtype": "int8"},
        {"backend": "torch", "quantization": "int8"},
        {"max_model_len": 64, "dtype": "float32"},
    ],
)
def test_says_what_loading_comes_to(tiny_checkpoint: Path, options: Mapping[str, Any]) -> None:
    found = check(tiny_checkpoint, read_headers(tiny_checkpoint), **options)
    ready = load_core(
        EngineConfig(model_path=str(tiny_checkpoint), **{**SMALL, **options}), on_progress=lambda *_: None
    ).ready
    assert found.problems == []
    assert found.computing is not None
    assert found.context is not None
    for field in ("device", "dtype", "backend", "cpu_level", "num_threads", "quantization"):
        assert getattr(found.computing, field) == getattr(ready, field)
    assert found.context.window == ready.max_model_len
    assert found.context.kv_cache_tokens == ready.num_blocks * ready.block_size


def test_counts_adapters_and_tells_of_those_that_do_not_fit(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "a", tiny_checkpoint)
    modules = {"a": str(folder), "again": str(folder)}
    memory = [check(tiny_checkpoint, dtype="bfloat16", lora_modules=each).memory for each in ({}, modules)]
    assert memory[0] is not None
    assert memory[1] is not None
    numbers = sum(matrix.numel() for matrix in load_file(folder / "adapter_model.safetensors").values())
    assert memory[1].adapters == memory[1].needed - memory[0].needed == 2 * numbers
    other = make_adapter(tmp_path / "b", make_checkpoint(tmp_path / "other", hidden=128))
    (problem,) = check(tiny_checkpoint, lora_modules={"b": str(other)}).problems
    assert "adapter 'b': 'model.layers.0.mlp.down_proj': expected matrices of rank 4" in problem


def held_bytes(state: SchedulerState, cache: KVCache) -> int:
    """Returns the bytes of a cache that belong to running sequences."""
    tables = [(state.block_tables, (cache.keys, cache.values)), (state.sliding_tables, cache.sliding or ())]
    used = [(each.num_used, each.num_free + each.num_used, tensors) for each, tensors in tables if each is not None]
    if state.states is not None:
        used.append((state.states.num_held, cache.num_states, cache.states or ()))
    return sum(num * sum(tensor.nbytes for tensor in tensors) // whole for num, whole, tensors in used)


@pytest.mark.parametrize("family", ["mistral", "qwen3_5"])
def test_a_cache_without_room_for_a_block_is_refused_as_at_start(family: str, tmp_path: Path) -> None:
    path = make_text_checkpoint(tmp_path, family)
    config = EngineConfig(model_path=str(path), kv_cache_bytes=100, encoder_cache_bytes=1 << 20, num_threads=1)
    with pytest.raises(CheckpointError, match=r"'--kv-cache-bytes': expected at least the .*, got 100$") as refused:
        load_core(config, on_progress=lambda *_: None)
    assert check(path, kv_cache_bytes=100).problems == [str(refused.value)]


@pytest.mark.parametrize(("family", "number"), [("mistral", "auto"), ("qwen3_5", "auto"), ("gemma4", "int8")])
def test_sixteen_sequences_take_of_the_cache_what_is_told(family: str, number: KvCacheDType, tmp_path: Path) -> None:
    path = make_text_checkpoint(tmp_path, family)
    options: Mapping[str, Any] = {"dtype": "float32", "block_size": 8, "kv_cache_bytes": 6 << 20, "max_sequences": 16}
    options |= {"max_batch_tokens": 128, "max_model_len": 400, "max_decode_slowdown": 1000}
    options |= {"kv_cache_dtype": number}
    config = EngineConfig(model_path=str(path), num_threads=1, **options)
    shape, plan = (
        CacheShape.of(load_model_config(path).text, number),
        CachePlan.of(config, torch.float32, torch.device("cpu")),
    )
    sizes = shape.divide(6 << 20, plan)
    context = check(path, **options).context
    assert context is not None
    assert context.sequence_bytes == shape.sequence_bytes(400, plan, sizes)

    core = load_core(config, on_progress=lambda *_: None).core
    device, others = torch.device("cpu"), sizes._asdict()
    cache = shape.allocate(others.pop("num_blocks"), 8, torch.float32, device, **others)
    for index in range(16):
        sampling = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        core.submit(request_of(str(index), make_prompt(index, 7 + 19 * index), sampling))
    state, num_compared = core.scheduler.state, 0
    assert (state.states is not None, state.sliding_tables is not None) == (family == "qwen3_5", family == "gemma4")
    while core.has_work:
        core.step()
        if sum(each.decodes for each in state.running) == 16:
            told = sum(shape.sequence_bytes(each.num_computed_tokens, plan, sizes) for each in state.running)
            assert held_bytes(state, cache) == pytest.approx(told, rel=0.02)
            num_compared += 1
    assert num_compared > 20


@pytest.mark.parametrize("family", ["qwen2_5_vl", "phi3"])
def test_tensors_of_a_checkpoint_that_loads_are_all_expected(family: str, tmp_path: Path) -> None:
    path = (
        make_checkpoint(tmp_path, family="qwen2_5_vl", tied=False)
        if family == "qwen2_5_vl"
        else make_text_checkpoint(tmp_path, family)
    )
    tensors = check(path, read_headers(path)).tensors
    assert tensors is not None
    assert tensors.fits
    assert tensors.expected > 0


@pytest.mark.parametrize(
    "weight_format",
    [
        WeightFormat(method="awq", bits=4),
        WeightFormat(method="gptq", bits=8),
        WeightFormat(method="gptq", bits=4, desc_act=True),
        WeightFormat(method="fp8"),
    ],
    ids=str,
)
def test_tensors_of_quantized_checkpoints_are_all_expected(
    weight_format: WeightFormat, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    path, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, weight_format)
    tensors = check(path, read_headers(path)).tensors
    assert tensors is not None
    assert (tensors.missing, tensors.unexpected, tensors.unfit) == ([], [], [])


def test_names_tensors_that_are_missing_unexpected_or_unfit(tiny_checkpoint: Path) -> None:
    headers = read_headers(tiny_checkpoint)
    assert headers is not None
    del headers["model.norm.weight"]
    headers["model.adapter.weight"] = StoredTensor(dtype="F32", shape=(4,))
    headers["visual.blocks.0.norm1.weight"] = StoredTensor(dtype="F32", shape=(31,))
    headers["visual.blocks.1.norm1.weight"] = StoredTensor(dtype="F4", shape=(32,))
    found = check(tiny_checkpoint, headers)
    assert found.problems == ["the checkpoint does not have the tensors that config.json describes"]
    assert found.tensors is not None
    assert found.tensors.missing == ["model.norm.weight", "visual.blocks.1.norm1.weight"]
    assert found.tensors.unexpected == ["model.adapter.weight"]
    assert [text.split(":")[0] for text in found.tensors.unfit] == [
        "tensor 'visual.blocks.0.norm1.weight'",
        "tensor 'visual.blocks.1.norm1.weight'",
    ]


@pytest.mark.parametrize(
    ("available", "quantization", "scheme", "problem"),
    [
        (40 * GIB, "none", "none", None),
        (14 * GIB, "none", "none", "--quantization int8 fits"),
        (14 * GIB, "auto", "int8", None),
        (11 * GIB, "int8", "int8", "--quantization int4 fits"),
        (8 * GIB, "none", "none", "lower --kv-cache-bytes"),
        (2 * GIB, "none", "none", "serve a smaller model"),
        (2 * GIB, "auto", "int4", "--quantization auto: the weights take"),
    ],
)
def test_compares_the_memory_that_a_large_model_takes_with_the_machine_s(
    available: int,
    quantization: str,
    scheme: str,
    problem: str | None,
    published: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantization_choice, "available_memory", lambda _node: available)
    found = check(published, quantization=quantization, backend="torch", dtype="bfloat16", kv_cache_bytes=GIB)
    assert found.computing is not None
    assert found.computing.quantization == scheme
    assert len(found.problems) == (0 if problem is None else 1)
    assert (problem or "") in "".join(found.problems)


def test_a_token_reads_all_weights_of_the_decoder_but_not_the_embedding(published: Path) -> None:
    found = check(published, backend="torch", dtype="bfloat16")
    layer = (3584 + 2 * 512) * 3585 + 3584**2 + 3 * 3584 * 18944 + 2 * 3584
    assert found.decoding is not None
    assert found.decoding.weight_bytes == 2 * (28 * layer + 3584 + 152064 * 3584)
    assert found.decoding.kv_bytes == 56 << 10
    assert found.num_parameters == 8_291_375_616


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "--device cuda"),
        ({"backend": "triton"}, "--backend triton"),
        ({"tensor_parallel_size": 3}, "--tensor-parallel-size"),
    ],
)
def test_an_option_that_loading_refuses_is_the_problem(
    tiny_checkpoint: Path, options: Mapping[str, Any], message: str
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    (problem,) = check(tiny_checkpoint, **options).problems
    assert message in problem


def test_headers_of_a_sharded_checkpoint_are_read_from_all_files(tiny_checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny_checkpoint / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read_headers(tmp_path) == read_headers(tiny_checkpoint)
    (tmp_path / "b.safetensors").unlink()
    assert read_headers(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0not JSON", b"\x02\0\0\0\0\0\0\0[]", b"\xff" * 20])
def test_refuses_a_file_without_a_header(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="no readable header"):
        read_headers(tmp_path)
