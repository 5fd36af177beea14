"""`--quantization auto` picks the most accurate scheme that fits into memory, and says why."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import ChosenBackend, EngineConfig, EngineOptions
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.quantized import QuantizationScheme, quantize_linears, quantizes_head
from glimpse.engine.worker.loading import quantization_choice
from glimpse.engine.worker.loading.build_model import empty_model
from glimpse.engine.worker.loading.load_engine import LoadedEngine, load_core, load_model
from glimpse.engine.worker.loading.quantization_choice import (
    SCHEMES,
    MemoryNeeds,
    Scheme,
    available_bytes,
    choose_scheme,
    encoder_cache_bytes,
    memory_needs,
)
from tests.checkpoints.lora import make_adapter
from tests.checkpoints.quantized import WeightFormat, quantize_checkpoint
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.engine.levels import needs_kernels

GIB = 1 << 30
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"kv_cache_bytes": 1 << 20, "encoder_cache_bytes": 1 << 20, "num_threads": 1}
SEVEN_BILLION = MemoryNeeds(
    weights={None: int(15.2 * GIB), "int8": int(8.7 * GIB), "int4": int(5.5 * GIB)}, dtype=torch.bfloat16, besides=GIB
)


def bytes_of(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def needs_of(
    path: Path, dtype: torch.dtype = torch.float32, backend: ChosenBackend = "torch", **options: Any
) -> MemoryNeeds:
    config = load_model_config(path)

    def make(scheme: Scheme) -> nn.Module:
        return empty_model(path, config, dtype, scheme, scale_dtype=torch.float32, num_ranks=1, backend=backend)

    return memory_needs(EngineOptions(**SMALL | options), config, make, device=CPU, dtype=dtype)


@given(
    sizes=st.lists(st.integers(0, 100), min_size=3, max_size=3),
    supported=st.sets(st.sampled_from(SCHEMES), min_size=1),
    besides=st.integers(0, 100),
    available=st.integers(0, 250),
)
def test_picks_the_first_that_fits(sizes: list[int], supported: set[Scheme], besides: int, available: int):
    weights: dict[Scheme, int] = {
        scheme: size for scheme, size in zip(SCHEMES, sizes, strict=True) if scheme in supported
    }
    needs = MemoryNeeds(weights=weights, dtype=torch.bfloat16, besides=besides)
    fitting = [scheme for scheme, size in weights.items() if size + besides <= available]
    if fitting:
        assert needs.best_within(available) == fitting[0]
    else:
        with pytest.raises(CheckpointError, match="--quantization auto: the weights take"):
            needs.best_within(available)


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (17, "bfloat16: 15.2 GiB of weights in bfloat16 and 1.0 GiB besides fit into the 17.0 GiB available"),
        (10, "int8: 15.2 GiB of weights in bfloat16 and 1.0 GiB besides exceed the 10.0 GiB available"),
        (8, "int4: 8.7 GiB of weights in int8 and 1.0 GiB besides exceed the 8.0 GiB available"),
    ],
)
def test_explains_what_decided(available: int, expected: str):
    chosen = SEVEN_BILLION.best_within(available * GIB)
    assert SEVEN_BILLION.explain(chosen, available * GIB) == expected


def test_says_what_is_missing_if_nothing_fits():
    with pytest.raises(CheckpointError) as raised:
        SEVEN_BILLION.best_within(6 * GIB)
    assert str(raised.value) == (
        "--quantization auto: the weights take 15.2 GiB in bfloat16, 8.7 GiB in int8, 5.5 GiB in int4, and serving"
        " 1.0 GiB besides; 6.0 GiB are available. Free memory, lower --kv-cache-bytes, --encoder-cache-bytes,"
        " --max-batch-tokens or --max-sequences, or serve a smaller model"
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_sizes_are_those_of_the_loaded_model(
    tmp_path: Path, scheme: Scheme, dtype: torch.dtype, backend: ChosenBackend, tied: bool
):
    path = make_checkpoint(tmp_path / "checkpoint", tied=tied)
    config = replace(load_model_config(path), dtype="float32")
    loaded = load_model(path, config, CPU, dtype, lambda _stage, _fraction: None, scheme=scheme)
    if quantizes_head(scheme, backend):
        loaded.decoder.quantize_head()
    assert needs_of(path, dtype, backend).weights[scheme] == bytes_of(loaded)


def test_weights_shrink_with_each_scheme(tiny_checkpoint: Path):
    sizes = [*needs_of(tiny_checkpoint).weights.values()]
    assert len(sizes) == len(SCHEMES)
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("option", "less", "more"),
    [
        ("kv_cache_bytes", 1 << 20, 1 << 30),
        ("encoder_cache_bytes", 1 << 30, 2 << 30),
        ("max_batch_tokens", 512, 2048),
        ("max_sequences", 16, 256),
    ],
)
def test_options_count(tiny_checkpoint: Path, option: str, less: int, more: int):
    options: list[dict[str, Any]] = [{option: value} for value in (less, more)]
    smaller, larger = (needs_of(tiny_checkpoint, **own).besides for own in options)
    assert larger > smaller
    if option.endswith("bytes"):
        assert larger - smaller == more - less


@pytest.mark.parametrize("kv_tokens", [64, 100_000])
def test_encoded_media_of_a_whole_context_count(tiny_checkpoint: Path, kv_tokens: int):
    config = load_model_config(tiny_checkpoint)
    bytes_of_token = 2 * config.text.num_layers * config.text.num_kv_heads * config.text.head_dim * 4
    options = EngineOptions(kv_cache_bytes=kv_tokens * bytes_of_token, encoder_cache_bytes=0)
    row, trained = config.text.encoder_row_width * 4, config.text.max_position_embeddings
    assert encoder_cache_bytes(options, config, CPU, torch.float32) == row * min(kv_tokens, trained)
    assert encoder_cache_bytes(options, config, torch.device("cuda"), torch.float32) == row * trained
    assert encoder_cache_bytes(options, replace(config, encoder=None), CPU, torch.float32) == 0


def test_leaves_out_a_scheme_that_does_not_support_the_model(tiny_checkpoint: Path):
    def make(scheme: QuantizationScheme | None) -> nn.Module:
        model = nn.Sequential(Linear(48, 64, bias=False))  # int4 needs a multiple of 32 inputs
        if scheme is not None:
            quantize_linears(model, scheme, scale_dtype=torch.float32)
        return model

    with torch.device("meta"):
        needs = memory_needs(EngineOptions(), load_model_config(tiny_checkpoint), make, device=CPU, dtype=torch.float32)
    assert needs.weights == {None: 48 * 64 * 4, "int8": 48 * 64 + 64 * 4}


def test_a_gpu_offers_its_share_less_what_others_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quantization_choice, "foreign_bytes", lambda _device: (3 * GIB, 20 * GIB))
    assert available_bytes(EngineOptions(gpu_memory_utilization=0.75), torch.device("cuda")) == 12 * GIB
    assert available_bytes(EngineOptions(gpu_memory_utilization=0.1), torch.device("cuda")) == 0


def test_a_cpu_offers_the_memory_of_its_node(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quantization_choice, "available_memory", {None: 9, 1: 5}.get)
    assert [available_bytes(EngineOptions(numa_node=node), CPU) for node in (None, 1)] == [9, 5]


def load(path: Path, monkeypatch: pytest.MonkeyPatch, available: int | None, **options: Any) -> LoadedEngine:
    monkeypatch.setattr(quantization_choice, "available_memory", lambda _node: available)
    config = EngineConfig(model_path=str(path), device="cpu", dtype="float32", quantization="auto", **SMALL | options)
    return load_core(config, on_progress=lambda _stage, _fraction: None)


@needs_kernels
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(("scheme", "reported"), [(None, "none"), ("int8", "int8"), ("int4", "int4")])
def test_engine_loads_and_reports_what_was_picked(
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    scheme: Scheme,
    reported: str,
    backend: ChosenBackend,
):
    needs = needs_of(tiny_checkpoint, backend=backend)
    caplog.set_level(logging.INFO, logger=quantization_choice.__name__)
    engine = load(tiny_checkpoint, monkeypatch, needs.weights[scheme] + needs.besides, backend=backend)
    assert engine.ready.quantization == reported
    (line,) = (record.getMessage() for record in caplog.records if record.name == quantization_choice.__name__)
    assert line.startswith(f"--quantization auto: {scheme or 'float32'}: ")


def test_engine_refuses_to_load_if_nothing_fits(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    needs = needs_of(tiny_checkpoint)
    with pytest.raises(CheckpointError, match=r"--quantization auto: the weights take .* are available"):
        load(tiny_checkpoint, monkeypatch, needs.weights["int4"] + needs.besides - 1, backend="torch")


def test_adapters_need_room_too(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    adapter = make_adapter(tmp_path / "a", tiny_checkpoint)
    num_bytes = 4 * sum(matrix.numel() for matrix in load_file(adapter / "adapter_model.safetensors").values())
    needs, modules = needs_of(tiny_checkpoint), {"a": str(adapter)}
    for missing, scheme in ((0, "none"), (1, "int8")):
        available = needs.weights[None] + needs.besides + num_bytes - missing
        engine = load(tiny_checkpoint, monkeypatch, available, backend="torch", lora_modules=modules)
        assert engine.ready.quantization == scheme


def test_engine_refuses_to_choose_where_the_system_does_not_say(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(CheckpointError, match="--quantization auto: this system does not say"):
        load(tiny_checkpoint, monkeypatch, None)


def test_a_quantized_checkpoint_keeps_its_scheme(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="awq"))
    assert load(quantized, monkeypatch, None).ready.quantization == "awq int4"


def test_ranks_do_not_choose(tiny_checkpoint: Path):
    config = load_model_config(tiny_checkpoint)
    with pytest.raises(
        CheckpointError, match="--quantization auto: expected none, int8, w8a8, int4 or fp8 with --tensor"
    ):
        choose_scheme(
            EngineConfig(model_path=str(tiny_checkpoint), tensor_parallel_size=2),
            config,
            lambda _scheme: nn.Module(),
            device=CPU,
            dtype=torch.float32,
        )
