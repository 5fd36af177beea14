"""Checkpoints that `glimpse quantize` writes compute what their dequantized weights do, or are refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.quantize.quantize_checkpoint import Recipe, quantize_checkpoint
from glimpse.engine.worker.quantize.rounding import Method, Rounded, round_matrix
from tests.checkpoints.quantized import AWQ_ORDER, WeightFormat, write
from tests.checkpoints.quantized import quantize_checkpoint as quantized_by_libraries
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.paths import ROOT

INT4, INT8 = Recipe(to="int4", group_size=32), Recipe(to="int8", group_size=64)
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def logits(path: Path, *media: tuple[int, int]) -> Tensor:
    harness = Harness(path)
    return torch.stack(harness.answer(harness.begin(make_prompt(1, 9, *media, 6)), 3).logits)


def dequantized(path: Path, folder: Path) -> Path:
    """Writes a checkpoint with the weights that another's stand for, by the definitions of AWQ's and GPTQ's formats."""
    stored = load_file(path / "model.safetensors")
    is_awq = json.loads((path / "config.json").read_text())["quantization_config"]["quant_method"] == "awq"
    weights: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        stem, _, kind = name.rpartition(".")
        if kind == "qweight":
            zeros, scales = stored[f"{stem}.qzeros"], stored[f"{stem}.scales"]  # scales: [groups, out]
            if is_awq:
                values, zeros = awq_fields(tensor), awq_fields(zeros)
                groups = torch.arange(len(values)) // (len(values) // len(scales))
            else:
                values = octets(tensor.T).T  # [in, out]
                zeros, groups = octets(zeros) + 1, stored[f"{stem}.g_idx"]
            weights[f"{stem}.weight"] = ((values - zeros[groups]) * scales[groups]).T
        elif kind not in ("qzeros", "scales", "g_idx"):
            weights[name] = tensor
    return write(path, folder, weights, {"quantization_config": None})


def octets(words: Tensor) -> Tensor:
    return (words[..., None] >> torch.tensor([0, 8, 16, 24]) & 255).flatten(1)


def awq_fields(words: Tensor) -> Tensor:
    nibbles = words[..., None] >> torch.arange(0, 32, 4) & 15
    return torch.empty_like(nibbles).index_copy_(2, torch.tensor(AWQ_ORDER), nibbles).flatten(1)


@pytest.mark.parametrize("recipe", [INT4, INT8])
def test_a_vision_model_keeps_its_tower_and_computes_with_the_dequantized_weights(
    tiny_checkpoint: Path, tmp_path: Path, recipe: Recipe
):
    out = tmp_path / "out"
    made = quantize_checkpoint(tiny_checkpoint, out, recipe, TEXT)
    expected = logits(dequantized(out, tmp_path / "plain"), (56, 84))
    assert torch.allclose(logits(out, (56, 84)), expected, rtol=0, atol=1e-4 * expected.std().item())
    assert str(load_model_config(out).quantization) == ("awq int4" if recipe is INT4 else "gptq int8")
    stored = json.loads((out / "config.json").read_text())["quantization_config"]
    assert stored["modules_to_not_convert"] == ["lm_head", "visual"]
    assert {file.name for file in out.iterdir()} == {file.name for file in tiny_checkpoint.iterdir()}
    before, after = (load_file(path / "model.safetensors") for path in (tiny_checkpoint, out))
    kept = before.keys() & after.keys()
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert {name for name in before if name.startswith("visual.")} <= kept
    assert before.keys() - kept == {name for name in before if ".layers." in name and "_proj.weight" in name}
    assert made.num_bytes == sum(tensor.nbytes for tensor in after.values())
    assert abs(made.loss.increase) < (0.2 if recipe is INT4 else 0.01)


@pytest.mark.parametrize("family", ["phi3", "gemma3", "qwen3_5"])
def test_stacked_matrices_gates_and_states_are_quantized_too(tmp_path: Path, family: str):
    plain, out = make_text_checkpoint(tmp_path / family, family), tmp_path / "out"
    quantize_checkpoint(plain, out, INT4, TEXT)
    expected = logits(dequantized(out, tmp_path / "plain"))
    assert torch.allclose(logits(out), expected, rtol=0, atol=1e-4 * expected.std().item())


def test_a_better_method_loses_less_of_what_a_layer_computes():
    torch.manual_seed(0)
    weight, inputs = torch.randn(24, 128), torch.randn(512, 128) @ torch.randn(128, 128) * torch.rand(128)
    moments = inputs.T @ inputs / len(inputs)

    def rounded(method: Method) -> Rounded:
        return round_matrix(weight, moments, bits=4, group_size=32, scale_dtype=torch.bfloat16, method=method)

    errors = {method: rounded(method).weight - weight for method in ("nearest", "searched", "compensated")}
    weighted = {method: error.square() @ moments.diagonal() for method, error in errors.items()}
    assert (weighted["searched"] <= weighted["nearest"]).all()
    lost = {method: (error @ moments * error).sum() for method, error in errors.items()}
    assert lost["compensated"] < 0.5 * lost["searched"]
    assert lost["compensated"] < 0.5 * lost["nearest"]


def test_matrices_of_zeros_and_inputs_that_are_always_zero_stay_finite():
    weight = torch.zeros(8, 64)
    rounded = round_matrix(
        weight, torch.zeros(64, 64), bits=4, group_size=32, scale_dtype=torch.float16, method="compensated"
    )
    assert torch.equal(rounded.weight, weight)


@pytest.mark.parametrize(
    ("recipe", "text", "message"),
    [
        (Recipe(to="int4", group_size=128), TEXT, "'--group-size': expected a divisor of 64"),
        (INT4, "too short", "'--text': expected at least 1536 tokens, got "),
    ],
)
def test_refuses_recipes_and_texts_by_name(
    tiny_checkpoint: Path, tmp_path: Path, recipe: Recipe, text: str, message: str
):
    with pytest.raises(CheckpointError, match=message):
        quantize_checkpoint(tiny_checkpoint, tmp_path / "out", recipe, text)
    assert not any(tmp_path.iterdir())


def test_refuses_checkpoints_that_are_quantized_or_have_experts(tiny_checkpoint: Path, tmp_path: Path):
    quantized, _ = quantized_by_libraries(tiny_checkpoint, tmp_path, WeightFormat(method="awq"))
    experts = make_text_checkpoint(tmp_path / "experts", "qwen3 moe")
    for path, message in ((quantized, "quantized as awq int4"), (experts, "expected a model without experts")):
        with pytest.raises(CheckpointError, match=f"'MODEL': .*{message}"):
            quantize_checkpoint(path, tmp_path / "out", INT4, TEXT)


def test_refuses_folders_with_files_and_full_disks(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(CheckpointError, match="'OUT': expected a folder that is empty or not there"):
        quantize_checkpoint(tiny_checkpoint, tiny_checkpoint, INT4, TEXT)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=0))
    with pytest.raises(CheckpointError, match=r"'OUT': expected 0.1 GiB of free space, got 0.0 GiB"):
        quantize_checkpoint(tiny_checkpoint, tmp_path / "out", INT4, TEXT)
    assert not any(tmp_path.iterdir())


def test_a_run_that_is_stopped_leaves_nothing(tiny_checkpoint: Path, tmp_path: Path):
    def stop(fraction: float) -> None:
        if fraction > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(tiny_checkpoint, tmp_path / "out", INT4, TEXT, on_progress=stop)
    assert not any(tmp_path.iterdir())


def test_the_command_says_what_it_wrote_and_what_it_costs(tiny_checkpoint: Path, tmp_path: Path):
    command = [sys.executable, "-c", "from glimpse.server.cli.main import main; main()", "quantize"]
    arguments = [str(tiny_checkpoint), str(tmp_path / "out"), "--to", "int8", "--group-size", "64"]
    text = tmp_path / "text"
    text.write_text(TEXT)
    result = subprocess.run(
        [*command, *arguments, "--text", str(text)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "int8 in groups of 64" in result.stdout
    assert "Perplexity of held-out text" in result.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()
