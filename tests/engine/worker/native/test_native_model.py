"""Whole models on the native backend, and the choice of the backend on a CPU."""

import logging
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig, Quantization
from glimpse.engine.protocol.messages import Generate, TokenEvent
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.layers.linear import Int8Linear
from glimpse.engine.worker.loading.load_engine import LoadedEngine, load_core, load_shard
from glimpse.engine.worker.loading.resolve import NativeAvailability, resolve_backend
from glimpse.engine.worker.native.library import Level
from glimpse.engine.worker.native.linear import PackedLinear
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.engine.harness import Harness, Prompt, make_prompt, request_of
from tests.engine.levels import at_each_level, needs_kernels

NUM_TOKENS = 12
PROMPTS = [
    make_prompt(1, 23),
    make_prompt(2, 5, (112, 84), 9),
    make_prompt(3, 3, (28, 28), 1, (56, 196), 1, (140, 28), 4, (84, 112), 6),
    make_prompt(4, 70, (84, 84), 1),
]
CPU = torch.device("cpu")
each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float32"])


def load(path: Path, **options: Any) -> LoadedEngine:
    options = {"dtype": "bfloat16"} | options
    config = EngineConfig(model_path=str(path), kv_cache_bytes=8 << 20, num_threads=1, **options)
    return load_core(config, on_progress=lambda stage, fraction: None)


def generate(request_id: str, prompt: Prompt) -> Generate:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return request_of(request_id, prompt, sampling)


def answers(engine: LoadedEngine, prompts: list[Prompt]) -> list[list[int]]:
    """Returns greedy answers to prompts that are computed concurrently."""
    found: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    for index, prompt in enumerate(prompts):
        engine.core.submit(generate(str(index), prompt))
    events: list[TokenEvent] = []
    while engine.core.has_work:
        events += engine.core.step().events
    for event in events:
        assert event.error is None, event.message
        found[event.request_id] += event.token_ids
    return list(found.values())


def error_of(harness: Harness, exact: Harness) -> float:
    """Returns the RMS difference of the first logits over all prompts, in standard deviations of the exact logits."""
    squares: list[float] = []
    for prompt in PROMPTS:
        expected = exact.answer(exact.begin(prompt), 1).logits[0]
        difference = harness.answer(harness.begin(prompt), 1).logits[0] - expected
        squares.append((difference / expected.std()).square().mean().item())
    return (sum(squares) / len(squares)) ** 0.5


@needs_kernels
@at_each_level
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_logits_are_as_accurate_as_torch(tiny_checkpoint: Path, level: Level, quantization: Quantization):
    options: Any = {"quantization": quantization, "int8_head": quantization == "int8"}
    exact = Harness(tiny_checkpoint, **options)
    native = Harness(tiny_checkpoint, torch.bfloat16, level=level, **options)
    plain = Harness(tiny_checkpoint, torch.bfloat16, **options)
    assert error_of(native, exact) <= 1.2 * error_of(plain, exact)


@needs_kernels
@at_each_level
def test_float32_logits_are_those_of_torch(tiny_checkpoint: Path, level: Level):
    assert error_of(Harness(tiny_checkpoint, level=level), Harness(tiny_checkpoint)) < 1e-5


@needs_kernels
@each_dtype
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("options", [{}, {"max_batch_tokens": 5}, {"prefix_caching": False}], ids=str)
def test_answers_are_identical_in_any_batch(
    tiny_checkpoint: Path, dtype: str, quantization: Any, options: dict[str, Any]
):
    options = {"dtype": dtype, "quantization": quantization, **options}
    engine = load(tiny_checkpoint, dtype=dtype, quantization=quantization)
    alone = [answers(engine, [prompt])[0] for prompt in PROMPTS]
    assert answers(load(tiny_checkpoint, **options), PROMPTS * 5) == alone * 5


@needs_kernels
@each_dtype
def test_greedy_answers_match_torch(tiny_checkpoint: Path, dtype: str):
    native, plain = load(tiny_checkpoint, dtype=dtype), load(tiny_checkpoint, dtype=dtype, backend="torch")
    assert (native.ready.backend, plain.ready.backend) == ("native", "torch")
    assert answers(native, PROMPTS) == answers(plain, PROMPTS)


@needs_kernels
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_reports_int8_quantization(tiny_checkpoint: Path, backend: Any):
    engine = load(tiny_checkpoint, backend=backend, quantization="int8")
    assert (engine.ready.backend, engine.ready.quantization) == (backend, "int8")
    assert all(len(answer) == NUM_TOKENS for answer in answers(engine, PROMPTS))


def head_of(path: Path, **options: Any) -> tuple[bool, Tensor]:
    """Returns whether an engine's output head is int8, and the embedding of all tokens."""
    config = EngineConfig(model_path=str(path), dtype="bfloat16", num_threads=1, **options)
    decoder = load_shard(config, rank=0, on_progress=_ignore).model.decoder
    head = decoder.lm_head
    is_int8 = bool(head.packed.scale) if isinstance(head, PackedLinear) else isinstance(head, Int8Linear)
    return is_int8, decoder.embed(torch.arange(decoder.config.vocab_size))


@needs_kernels
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("backend", "quantization", "expected"),
    [("native", "none", False), ("native", "int8", True), ("native", "int4", True), ("torch", "int8", False)],
)
def test_native_kernels_quantize_the_head_and_not_the_embedding(
    tmp_path: Path, tied: bool, backend: Any, quantization: Any, expected: bool
):
    path = make_checkpoint(tmp_path / "checkpoint", tied=tied)
    plain_is_int8, embedding = head_of(path, backend="torch")
    is_int8, kept = head_of(path, backend=backend, quantization=quantization)
    assert (plain_is_int8, is_int8) == (False, expected)
    assert torch.equal(kept, embedding)


@needs_kernels
def test_shares_one_openmp_runtime_with_torch():
    maps = Path("/proc/self/maps").read_text()
    assert len({line.split()[-1] for line in maps.splitlines() if "libgomp" in line}) == 1


def backend(asked: Any, *, device: torch.device = CPU) -> str:
    native = NativeAvailability(device, None, lambda stage, fraction: None)
    return resolve_backend(asked, device=device, dtype=torch.bfloat16, head_dim=64, native=native)


def test_refuses_other_devices():
    with pytest.raises(CheckpointError, match="the native backend requires the CPU"):
        backend("native", device=torch.device("cuda"))


@pytest.fixture
def no_bfloat16_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.engine.worker.loading.resolve._cpu_multiplies_bfloat16", lambda: False)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CXX", "GLIMPSE_NATIVE_LIBRARY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("glimpse.native.compiler.packaged_library", lambda _: tmp_path / "none")


@pytest.mark.usefixtures("no_compiler")
def test_uses_torch_without_a_compiler():
    assert backend("auto") == "torch"
    with pytest.raises(CheckpointError, match=r"--backend native: no C\+\+ compiler found"):
        backend("native")


@pytest.mark.parametrize(("system", "machine"), [("Linux", "riscv64"), ("Darwin", "x86_64")])
def test_uses_torch_on_other_machines(monkeypatch: pytest.MonkeyPatch, system: str, machine: str):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr("subprocess.run", None)  # nothing is compiled
    assert backend("auto") == "torch"
    with pytest.raises(CheckpointError, match=f"no native kernels for {system} on {machine}"):
        backend("native")


def cpu_lines(caplog: pytest.LogCaptureFixture, path: Path, **options: Any) -> list[tuple[str, str]]:
    """Returns the severity and text of the lines about the CPU that an engine logs while it loads."""
    with caplog.at_level(logging.INFO):
        load_shard(EngineConfig(model_path=str(path), num_threads=1, **options), rank=0, on_progress=_ignore)
    return [(record.levelname, record.message) for record in caplog.records if record.message.startswith("cpu: ")]


def _ignore(_stage: str, _fraction: float) -> None: ...


@needs_kernels
@each_dtype
def test_logs_what_computes(tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture, dtype: str):
    lines = cpu_lines(caplog, tiny_checkpoint, dtype=dtype, cpu_level="avx2")
    assert lines == [("INFO", f"cpu: native kernels, AVX2, {dtype}, 1 thread")]


@pytest.mark.usefixtures("no_compiler", "no_bfloat16_units")
def test_warns_that_the_native_kernels_cannot_run(tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture):
    ((severity, text),) = cpu_lines(caplog, tiny_checkpoint)
    assert severity == "WARNING"
    assert "cpu: torch, float32, 1 thread; the native kernels are faster: no C++ compiler found: install g++" in text


def test_does_not_warn_of_torch_if_it_was_asked_for(tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture):
    ((severity, _),) = cpu_lines(caplog, tiny_checkpoint, dtype="float32", backend="torch")
    assert severity == "INFO"


@needs_kernels
@pytest.mark.usefixtures("no_bfloat16_units")
def test_native_backend_serves_bfloat16_on_any_processor(tiny_checkpoint: Path):
    config = EngineConfig(model_path=str(tiny_checkpoint), num_threads=1, kv_cache_bytes=8 << 20, cpu_level="avx2")
    ready = load_core(config, on_progress=_ignore).ready
    assert (ready.dtype, ready.backend, ready.cpu_level, ready.num_threads) == ("bfloat16", "native", "AVX2", 1)
