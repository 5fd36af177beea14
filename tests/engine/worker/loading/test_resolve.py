"""The choice of the dtype on each device, for each backend, and the options that change nothing there."""

from typing import Any

import pytest
import torch

from glimpse.engine.protocol.config import EngineOptions
from glimpse.engine.worker.loading import resolve
from glimpse.engine.worker.loading.resolve import Computing, NativeAvailability, resolve_dtype, unused_options

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STORED = ("float32", "bfloat16", "float16")


def dtype(asked: Any, *, stored: str, device: torch.device, backend: Any = "auto") -> torch.dtype:
    native = NativeAvailability(device, None, lambda _stage, _fraction: None)
    return resolve_dtype(asked, stored=stored, device=device, backend=backend, native=native)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """One that has bfloat16 units, or runs the native kernels, or neither."""
    units, native = request.param
    monkeypatch.setattr(resolve, "_cpu_multiplies_bfloat16", lambda: units)
    monkeypatch.setattr(resolve, "why_not_native", lambda *_: None if native else "no compiler")


def with_processor(*, units: bool, native: bool) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "processor", [(units, native)], indirect=True, ids=[f"units={units},native={native}"]
    )


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_dtype_is_the_requested_one(asked: str, device: torch.device):
    assert dtype(asked, stored="float16", device=device) is getattr(torch, asked)


def test_dtype_on_cuda_is_the_checkpoint_s():
    expected = [torch.float32, torch.bfloat16, torch.bfloat16]
    assert [dtype("auto", stored=stored, device=CUDA) for stored in STORED] == expected


@with_processor(units=False, native=True)
@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("stored", STORED)
def test_dtype_is_bfloat16_where_the_native_kernels_run(stored: str):
    assert dtype("auto", stored=stored, device=CPU) is torch.bfloat16
    assert dtype("auto", stored=stored, device=CPU, backend="torch") is torch.float32


@with_processor(units=True, native=False)
@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_dtype_is_bfloat16_on_a_processor_with_bfloat16_units(backend: str):
    assert dtype("auto", stored="bfloat16", device=CPU, backend=backend) is torch.bfloat16


@with_processor(units=False, native=False)
@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("stored", STORED)
def test_dtype_is_float32_where_torch_computes_without_bfloat16_units(stored: str):
    assert dtype("auto", stored=stored, device=CPU) is torch.float32


@pytest.mark.parametrize(
    ("device", "backend", "unused"),
    [
        (CPU, "native", ["--gpu-memory-utilization", "--cuda-graphs"]),
        (CPU, "torch", ["--gpu-memory-utilization", "--cuda-graphs", "--cpu-level"]),
        (CUDA, "triton", ["--num-threads", "--cpu-level"]),
    ],
)
def test_options_that_change_nothing_are_told(device: torch.device, backend: Any, unused: list[str]):
    native = NativeAvailability(device, None, lambda _stage, _fraction: None)
    computing = Computing(device=device, dtype=torch.float32, backend=backend, level=None, scheme=None, native=native)
    given = EngineOptions(gpu_memory_utilization=0.5, cuda_graphs=False, num_threads=2, cpu_level="avx2")
    assert unused_options(given, computing) == unused
    assert unused_options(EngineOptions(), computing) == []
