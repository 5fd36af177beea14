"""Quantized checkpoints with a mixture of experts compute the same as their dequantized equivalents."""

from pathlib import Path

import pytest
import torch

from tests.checkpoints import qwen3_vl
from tests.checkpoints.compressed import INT8, CompressedFormat, compress_checkpoint
from tests.checkpoints.quantized import WeightFormat, quantize_checkpoint
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.engine.worker.loading.test_compressed_tensors import assert_fits
from tests.engine.worker.loading.test_quantized_checkpoints import change_config

EXPERTS_ALONE = r".*(attn|shared_expert)"
"""Modules that Qwen's own GPTQ checkpoints of Qwen3.5 keep as floats."""


@pytest.fixture(autouse=True)
def wide_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts have as many features as groups need."""
    monkeypatch.setattr(qwen3_vl, "EXPERT_INNER", 96)
    monkeypatch.setitem(qwen3_vl.ROUTING, "moe_intermediate_size", 96)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [CompressedFormat(symmetric=False), INT8])
def test_compressed_tensors_of_qwen3_vl(tmp_path: Path, form: CompressedFormat) -> None:
    plain = make_qwen3_vl_checkpoint(tmp_path / "plain", experts=True)
    assert_agree(*compress_checkpoint(plain, tmp_path, {"Linear": form}))


def test_compressed_tensors_of_qwen3_5(tmp_path: Path) -> None:
    plain = make_qwen3_5_checkpoint(tmp_path / "plain", experts=True)
    formats = {r"re:.*self_attn\.[qkvo]_proj$": CompressedFormat(), "re:.*linear_attn": INT8, r"re:.*\.experts\.": INT8}
    assert_agree(*compress_checkpoint(plain, tmp_path, formats, [r"re:.*linear_attn\.in_proj"]))


def test_awq_of_qwen3_vl(tmp_path: Path) -> None:
    plain = make_qwen3_vl_checkpoint(tmp_path / "plain", experts=True)
    assert_agree(*quantize_checkpoint(plain, tmp_path, WeightFormat(method="awq"), ignore=r".*layers\.0\."))


def test_gptq_of_qwen3_5(tmp_path: Path) -> None:
    plain = make_qwen3_5_checkpoint(tmp_path / "plain", experts=True)
    paths = quantize_checkpoint(plain, tmp_path, WeightFormat(method="gptq"), ignore=EXPERTS_ALONE)
    change_config(paths[0], {"dynamic": {"lm_head": {}, "-:.*attn.*": {}, "-:.*shared_expert.*": {}}})
    assert_agree(*paths)


def assert_agree(quantized: Path, dequantized: Path) -> None:
    prompt = make_prompt(1, 23)
    harnesses = map(Harness, (quantized, dequantized))
    found, expected = (torch.stack(each.answer(each.begin(prompt), 3).logits) for each in harnesses)
    assert torch.allclose(found, expected, rtol=0, atol=1e-4 * expected.std().item())
    assert_fits(quantized)
