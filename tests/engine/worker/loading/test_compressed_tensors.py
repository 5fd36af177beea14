"""Checkpoints of compressed-tensors compute the same as their dequantized equivalents, or are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.quantization_config import checkpoint_blocks, checkpoint_quantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.tensor_check import check_tensors
from glimpse.engine.worker.loading.weight_files import read_headers
from glimpse.engine.worker.native.library import Level
from tests.checkpoints.compressed import (
    FORMATS,
    INT8,
    CompressedFormat,
    compress,
    compress_checkpoint,
    compressed_config,
)
from tests.checkpoints.quantized import FP8_BLOCK, Tensors, WeightFormat, fp8_config, quantize_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.engine.levels import at_each_level, needs_kernels
from tests.engine.worker.loading.test_quantized_checkpoints import (
    assert_makes_up_the_whole,
    change_config,
    decoder_tensors,
    logits,
)

ASYMMETRIC = CompressedFormat(symmetric=False)
O_PROJ = "model.layers.0.self_attn.o_proj"
MIXED = {
    "Linear": CompressedFormat(),
    r"re:.*\.mlp\.gate_proj$": CompressedFormat(bits=8),
    r"re:.*down_proj": INT8,
    r"re:.*layers\.1\.self_attn\.[qk]_proj": ASYMMETRIC,
}


@pytest.mark.parametrize("form", FORMATS)
def test_logits_match_the_dequantized_weights(tiny_checkpoint: Path, tmp_path: Path, form: CompressedFormat) -> None:
    quantized, dequantized = compress_checkpoint(tiny_checkpoint, tmp_path, {"Linear": form})
    assert_equal_logits(quantized, dequantized)
    assert str(load_model_config(quantized).quantization) == f"compressed-tensors int{form.bits}"
    assert_fits(quantized)


def test_groups_and_ignored_modules_have_types_of_their_own(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Gates and up projections are one product, so those of several types are dequantized."""
    quantized, dequantized = compress_checkpoint(tiny_checkpoint, tmp_path, MIXED, ignore=[r"re:.*layers\.0.*o_proj"])
    assert_equal_logits(quantized, dequantized)
    assert str(load_model_config(quantized).quantization) == "compressed-tensors int4, int8"
    weights = decoder_tensors(quantized, 0, 1)
    names = ("0.self_attn.o_proj", "1.self_attn.q_proj", "1.self_attn.v_proj", "0.mlp.up_proj", "0.mlp.down_proj")
    types = [weights[f"model.layers.{name}.weight"].dtype for name in names]
    assert types == [torch.float32, torch.uint8, torch.uint8, torch.float32, torch.int8]


def test_matrices_of_an_encoder_are_dequantized(tiny_checkpoint: Path, tmp_path: Path) -> None:
    quantized, dequantized = compress_checkpoint(tiny_checkpoint, tmp_path, {"Linear": ASYMMETRIC})
    for path, name in ((quantized, ""), (dequantized, "weight")):
        tensors = load_file(path / "model.safetensors")
        parts, restored = compress(tensors.pop("visual.merger.mlp.0.weight"), ASYMMETRIC)
        parts = {name: restored} if name else parts
        save_file(
            tensors | {f"visual.merger.mlp.0.{part}": each for part, each in parts.items()}, path / "model.safetensors"
        )
    assert_equal_logits(quantized, dequantized)


def assert_equal_logits(quantized: Path, dequantized: Path) -> None:
    expected = logits(Harness(dequantized))
    assert torch.allclose(logits(Harness(quantized)), expected, rtol=0, atol=1e-4 * expected.std().item())


def assert_fits(path: Path) -> None:
    stored = read_headers(path)
    assert stored is not None
    check = check_tensors(stored, path, load_model_config(path))
    assert (check.missing, check.unexpected, check.unfit) == ([], [], [])


@pytest.mark.parametrize("family", ["phi3", "phi4 mini"])
def test_stacked_matrices_match_the_dequantized_weights(tmp_path: Path, family: str) -> None:
    plain = make_text_checkpoint(tmp_path / "plain", family)
    paths = compress_checkpoint(plain, tmp_path, {"Linear": ASYMMETRIC})
    prompt = make_prompt(1, 20)
    found, expected = (torch.stack(each.answer(each.begin(prompt), 3).logits) for each in map(Harness, paths))
    assert torch.allclose(found, expected, rtol=0, atol=1e-4 * expected.std().item())
    assert_fits(paths[0])


@needs_kernels
@at_each_level
def test_native_kernels_compute_with_mixed_types(tiny_checkpoint: Path, tmp_path: Path, level: Level) -> None:
    """Some weights of int8 are -128, which symmetric ranges have."""
    quantized, dequantized = compress_checkpoint(tiny_checkpoint, tmp_path, MIXED)
    assert (load_file(quantized / "model.safetensors")["model.layers.0.mlp.down_proj.weight"] == -128).any()
    computed, expected = (logits(Harness(path, torch.bfloat16, level=level))[0] for path in (quantized, dequantized))
    assert 0 < (computed - expected).square().mean().sqrt() < 0.04 * expected.std()


@pytest.mark.parametrize("formats", [MIXED, {"Linear": CompressedFormat(group_size=None, symmetric=False)}])
def test_shards_of_two_ranks_make_up_the_whole(
    tiny_checkpoint: Path, tmp_path: Path, formats: dict[str, CompressedFormat]
) -> None:
    quantized, _ = compress_checkpoint(tiny_checkpoint, tmp_path, formats)
    assert_makes_up_the_whole(quantized)


def test_zero_points_may_be_stored_as_integers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Versions before 0.10 stored them like this."""
    quantized, dequantized = compress_checkpoint(tiny_checkpoint, tmp_path, {"Linear": ASYMMETRIC})
    tensors = load_file(quantized / "model.safetensors")
    for name in [name for name in tensors if name.endswith("weight_zero_point")]:
        words = tensors[name]
        fields = torch.stack([words >> 4 * place & 15 for place in range(8)], dim=1)
        tensors[name] = (fields.flatten(0, 1) - 8).to(torch.int8)
    save_file(tensors, quantized / "model.safetensors")
    assert_equal_logits(quantized, dequantized)


def test_fp8_may_have_one_scale_for_a_matrix(tiny_checkpoint: Path, tmp_path: Path) -> None:
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="fp8"))
    expected = decoder_tensors(quantized, 0, 1)
    tensors = load_file(quantized / "model.safetensors")
    tensors[f"{O_PROJ}.weight_scale"] = torch.tensor([0.5])
    save_file(tensors, quantized / "model.safetensors")
    found = decoder_tensors(quantized, 0, 1)
    assert torch.equal(found[f"{O_PROJ}.weight"], expected[f"{O_PROJ}.weight"])
    assert torch.equal(found[f"{O_PROJ}.scale"], torch.full_like(expected[f"{O_PROJ}.scale"], 0.5))


def test_fp8_blocks_are_loaded_as_the_dequantized_weights(tiny_checkpoint: Path, tmp_path: Path) -> None:
    quantized, dequantized = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="fp8 blocks"))
    tensors = load_file(quantized / "model.safetensors")
    renamed = {name.replace("weight_scale_inv", "weight_scale"): tensor for name, tensor in tensors.items()}
    save_file(renamed, quantized / "model.safetensors")
    config = fp8_config()
    config["config_groups"]["group_0"]["weights"] |= {"strategy": "block", "block_structure": list(FP8_BLOCK)}
    config["config_groups"]["group_0"]["input_activations"] |= {"strategy": "group", "group_size": 128}
    change_config(quantized, config)
    assert torch.equal(logits(Harness(quantized)), logits(Harness(dequantized)))
    assert_fits(quantized)


def changed(path: str, value: object, *, form: CompressedFormat = ASYMMETRIC) -> dict[str, Any]:
    """Returns a configuration with another value."""
    config = document = compressed_config({"Linear": form})
    *parents, field = path.split(".")
    for parent in parents:
        document = document[parent]
    document[field] = value
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed("config_groups.group_0.format", "nvfp4-pack-quantized"), "got nvfp4-pack-quantized; use one of these"),
        (changed("config_groups.group_0.format", "mxfp4-pack-quantized"), "got mxfp4-pack-quantized; use one of these"),
        (changed("sparsity_config", {"format": "sparse-24-bitmask"}), "sparsity_config.format': expected dense for"),
        (changed("kv_cache_scheme", {"num_bits": 8}), "kv_cache_scheme': expected False for .*, got True"),
        (changed("transform_config", {"config_groups": {"u": {}}}), "transform_config': expected False for .*, got"),
        (changed("quantization_status", "frozen"), "quantization_status': expected compressed for .*, got frozen"),
        (changed("config_groups", {}), "config_groups': expected an object with 'weights' for"),
        (changed("config_groups.group_0", ["Linear"]), "group_0': expected an object with 'weights' for"),
        (changed("config_groups.group_0.weights.num_bits", 3), "weights.num_bits': expected 4 or 8 for .*, got 3"),
        (
            changed("config_groups.group_0.weights.num_bits", 4, form=INT8),
            "weights.num_bits': expected 8 for .*, got 4",
        ),
        (changed("config_groups.group_0.weights.type", "float"), "weights.type': expected int for .*, got float"),
        (changed("config_groups.group_0.weights.group_size", 48), "group_size': expected -1 or a multiple of 32 for"),
        (changed("config_groups.group_0.weights.strategy", "token"), "strategy': expected channel or group or tensor"),
        (
            changed("config_groups.group_0.input_activations.dynamic", False, form=INT8),
            r"input_activations\.dynamic': expected True for .*, got False",
        ),
        (changed("config_groups.group_0.output_activations", {"num_bits": 8}), "output_activations': expected False"),
        (changed("ignore", ["re:("]), "ignore': expected expressions, got an error"),
    ],
)
def test_refuses_what_would_change_answers(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        checkpoint_quantization({"quantization_config": config})


def test_blocks_of_several_sizes_are_refused() -> None:
    config = fp8_config()
    group = config["config_groups"]["group_0"]
    group["weights"] |= {"strategy": "block", "block_structure": [128, 128]}
    config["config_groups"]["group_1"] = group | {"weights": group["weights"] | {"block_structure": [64, 64]}}
    with pytest.raises(CheckpointError, match=r"group_1\.weights\.block_structure': expected \[128, 128\] for"):
        checkpoint_blocks({"quantization_config": config})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{O_PROJ}.weight_zero_point"), rf"has no tensors {O_PROJ}\.scale"),
        (lambda t: t.update({f"{O_PROJ}.weight_scale": torch.ones(64, 3)}), r"weight_scale': expected shape \[64, 2\]"),
        (lambda t: t.update({f"{O_PROJ}.weight_packed": torch.ones(64, 8)}), "expected an int32 matrix, got"),
        (lambda t: t.update({f"{O_PROJ}.input_scale": torch.ones(1)}), rf"unexpected tensors: {O_PROJ}\.input_scale"),
    ],
)
def test_refuses_tensors_that_do_not_fit_the_groups(
    tiny_checkpoint: Path, tmp_path: Path, change: Callable[[Tensors], object], message: str
) -> None:
    quantized, _ = compress_checkpoint(tiny_checkpoint, tmp_path, {"Linear": ASYMMETRIC})
    tensors = load_file(quantized / "model.safetensors")
    change(tensors)
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        Harness(quantized)
