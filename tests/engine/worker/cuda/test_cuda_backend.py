"""Selection of the CUDA backend, and the page lists passed to FlashInfer."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.cuda.backend import kernel_error
from glimpse.engine.worker.cuda.pages import make_pages
from glimpse.engine.worker.loading.resolve import NativeAvailability, resolve_backend


def backend(
    requested: Any,
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    head_dim: int = 128,
    masks: bool = False,
) -> str:
    where = torch.device(device)
    native = NativeAvailability(where, None, lambda _stage, _fraction: None)
    return resolve_backend(requested, device=where, dtype=dtype, head_dim=head_dim, native=native, masks=masks)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Makes only these packages appear installed, with kernels that run."""
    monkeypatch.setattr(
        "glimpse.engine.worker.cuda.backend.find_spec", lambda name: name if name in request.param else None
    )
    monkeypatch.setattr("glimpse.engine.worker.cuda.backend.kernel_error", lambda compute: None)


def with_packages(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("installed", [names], indirect=True, ids=["+".join(names)])


@with_packages("triton", "flashinfer")
@pytest.mark.usefixtures("installed")
def test_uses_flashinfer_only_on_request():
    assert backend("auto") == "triton"
    assert [backend(name) for name in ("flashinfer", "triton", "torch")] == ["flashinfer", "triton", "torch"]


@with_packages("triton", "flashinfer")
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("options", "reason"),
    [({"dtype": torch.float32}, "does not support float32"), ({"head_dim": 80}, "no kernels for head_dim 80")],
)
def test_refuses_flashinfer_if_it_does_not_support_the_model(options: dict[str, Any], reason: str):
    with pytest.raises(CheckpointError, match=f"--backend flashinfer: it .*{reason}"):
        backend("flashinfer", **options)


@with_packages("triton", "flashinfer")
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("requested", ["triton", "flashinfer"])
def test_models_with_sliding_windows_compute_with_torch_on_a_gpu(requested: str):
    assert backend("auto", masks=True) == "torch"
    with pytest.raises(CheckpointError, match=f"--backend {requested}: it has no sliding windows"):
        backend(requested, masks=True)


@with_packages("triton")
@pytest.mark.usefixtures("installed")
def test_uses_triton_without_flashinfer():
    assert backend("auto") == "triton"
    with pytest.raises(CheckpointError, match=r"--backend flashinfer: .*pip install .glimpse\[flashinfer\]"):
        backend("flashinfer")


@with_packages("flashinfer")
@pytest.mark.usefixtures("installed")
def test_uses_torch_without_triton(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert backend("auto") == "torch"
    assert "using the slower torch backend: Triton is not installed" in caplog.text
    for requested in ("triton", "flashinfer"):
        with pytest.raises(CheckpointError, match=f"--backend {requested}: Triton is not installed"):
            backend(requested)


@with_packages("triton")
@pytest.mark.usefixtures("installed")
def test_reports_at_start_that_kernels_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("glimpse.engine.worker.cuda.backend.kernel_error", kernel_error)
    monkeypatch.setattr("glimpse.engine.worker.cuda.rows.gated_silu", fail)
    monkeypatch.setattr("torch.zeros", lambda *shape, device: None)
    with caplog.at_level(logging.WARNING):
        assert backend("auto") == "torch"
    assert "using the slower torch backend: its kernels cannot run: there is no C compiler" in caplog.text
    with pytest.raises(CheckpointError, match=r"--backend triton: its kernels cannot run: there is no C compiler$"):
        backend("triton")


def fail(_x: object) -> None:
    raise RuntimeError("there is no C compiler\nand more details")


@with_packages("triton", "flashinfer")
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("requested", ["triton", "flashinfer"])
def test_refuses_cuda_backends_on_a_cpu(requested: str):
    assert backend("auto", device="cpu") in ("native", "torch")
    with pytest.raises(CheckpointError, match=f"--backend {requested}: it requires a CUDA device"):
        backend(requested, device="cpu")


@given(
    key_lengths=st.lists(st.integers(1, 100), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 16, 32]),
    padding=st.integers(0, 3),
)
def test_pages_are_the_blocks_that_contain_tokens(key_lengths: Sequence[int], block_size: int, padding: int):
    width = -(-max(key_lengths) // block_size) + padding
    tables = np.random.default_rng(0).permutation(len(key_lengths) * width).reshape(len(key_lengths), width)
    pages = make_pages(key_lengths, block_size=block_size, table_width=width)
    for index, (num_keys, table) in enumerate(zip(key_lengths, tables, strict=True)):
        indices = pages.places[pages.starts[index] : pages.starts[index + 1]]
        num_tokens = (len(indices) - 1) * block_size + pages.last_lengths[index]
        assert tables.flatten()[indices].tolist() == table[: len(indices)].tolist()
        assert num_tokens == num_keys
        assert 1 <= pages.last_lengths[index] <= block_size
    assert pages.starts[-1] == len(pages.places)
