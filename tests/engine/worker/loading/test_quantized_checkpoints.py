"""Checkpoints in published quantized formats compute the same as their dequantized equivalents, or are refused."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig, Quantization
from glimpse.engine.protocol.messages import Generate
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading.load_engine import LoadedEngine, load_core, load_model
from glimpse.engine.worker.loading.tensor_check import check_tensors
from glimpse.engine.worker.loading.weight_files import read_headers
from glimpse.engine.worker.native.library import Level
from tests.checkpoints.quantized import WeightFormat, fp8_config, quantize_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.engine.levels import at_each_level, needs_kernels

Tensors = dict[str, Tensor]
PROMPT = make_prompt(1, 9, (56, 84), 6)
AWQ = WeightFormat(method="awq")
GROUPED = {
    "awq int4": (AWQ, WeightFormat(method="awq", group_size=64), WeightFormat(method="awq", group_size=-1)),
    "gptq int4": (
        WeightFormat(method="gptq", group_size=64),
        WeightFormat(method="gptq", version=2),
        WeightFormat(method="gptq", group_size=-1),
        WeightFormat(method="gptq", desc_act=True),
    ),
    "gptq int8": (
        WeightFormat(method="gptq", bits=8),
        WeightFormat(method="gptq", bits=8, group_size=-1, version=2),
        WeightFormat(method="gptq", bits=8, desc_act=True),
    ),
}
Q_PROJ = "model.layers.0.self_attn.q_proj"


def logits(harness: Harness) -> Tensor:
    return torch.stack(harness.answer(harness.begin(PROMPT), 3).logits)


def load(path: Path, **options: Any) -> LoadedEngine:
    config = EngineConfig(model_path=str(path), kv_cache_bytes=1 << 20, num_threads=1, **options)
    return load_core(config, on_progress=lambda stage, fraction: None)


def answer(engine: LoadedEngine) -> list[int]:
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    engine.core.submit(Generate(request_id="0", token_ids=list(range(30, 60)), media=[], sampling=sampling))
    token_ids: list[int] = []
    while engine.core.has_work:
        for event in engine.core.step().events:
            assert event.error is None, event.message
            token_ids += event.token_ids
    return token_ids


@pytest.mark.parametrize(
    ("name", "weight_format"), [(name, weight_format) for name, schemes in GROUPED.items() for weight_format in schemes]
)
def test_logits_match_the_dequantized_weights(
    tiny_checkpoint: Path, tmp_path: Path, name: str, weight_format: WeightFormat
):
    quantized, dequantized = quantize_checkpoint(tiny_checkpoint, tmp_path, weight_format)
    expected = logits(Harness(dequantized))
    assert torch.allclose(logits(Harness(quantized)), expected, rtol=0, atol=1e-4 * expected.std().item())
    assert str(load_model_config(quantized).quantization) == name


@pytest.mark.parametrize("weight_format", [AWQ, WeightFormat(method="gptq", desc_act=True)])
def test_engine_answers_as_the_dequantized_model_and_reports_its_scheme(
    tiny_checkpoint: Path, tmp_path: Path, weight_format: WeightFormat
):
    quantized, dequantized = quantize_checkpoint(tiny_checkpoint, tmp_path, weight_format)
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "backend": "torch"}
    engine = load(quantized, **options)
    assert answer(engine) == answer(load(dequantized, **options))
    assert engine.ready.quantization == f"{weight_format.method} int4"
    assert load(quantized, dtype="float32", quantization="int4").ready.quantization == f"{weight_format.method} int4"


@needs_kernels
@at_each_level
@pytest.mark.parametrize(
    "weight_format",
    [
        AWQ,
        WeightFormat(method="gptq", group_size=-1),
        *GROUPED["gptq int8"],
        WeightFormat(method="gptq", desc_act=True),
    ],
)
def test_native_kernels_compute_with_weights_in_groups(
    tiny_checkpoint: Path, tmp_path: Path, weight_format: WeightFormat, level: Level
):
    """Kernels round activations to 8 or 15 bits, not the weights to bfloat16. Near ties decide later tokens."""
    quantized, dequantized = quantize_checkpoint(tiny_checkpoint, tmp_path, weight_format)
    computed, expected = (logits(Harness(path, torch.bfloat16, level=level))[0] for path in (quantized, dequantized))
    assert 0 < (computed - expected).square().mean().sqrt() < 0.04 * expected.std()


@pytest.mark.parametrize("weight_format", [AWQ, WeightFormat(method="gptq", group_size=-1), WeightFormat(method="fp8")])
def test_shards_of_two_ranks_make_up_the_whole(tiny_checkpoint: Path, tmp_path: Path, weight_format: WeightFormat):
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, weight_format)
    assert_makes_up_the_whole(quantized)


def assert_makes_up_the_whole(quantized: Path) -> None:
    whole, *shards = (decoder_tensors(quantized, *rank) for rank in ((0, 1), (0, 2), (1, 2)))
    for name, tensor in whole.items():
        first, second = (shard[name] for shard in shards)
        if first.shape == tensor.shape:
            assert torch.equal(first, tensor)
            assert torch.equal(second, tensor)
        else:
            axis = int(len(first) == len(tensor))
            assert torch.equal(torch.cat([first, second], dim=axis), tensor)


def decoder_tensors(path: Path, rank: int, num_ranks: int) -> Tensors:
    config = load_model_config(path)
    model = load_model(
        path,
        config,
        torch.device("cpu"),
        torch.float32,
        lambda stage, fraction: None,
        scheme=config.quantization,
        rank=rank,
        num_ranks=num_ranks,
    )
    # e4m3 has no comparison operators, so bytes are compared.
    return {
        name: tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor
        for name, tensor in model.decoder.named_weights()
    }


def test_refuses_to_shard_groups_in_activation_order(tiny_checkpoint: Path, tmp_path: Path):
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="gptq", desc_act=True))
    with pytest.raises(
        CheckpointError, match=r"'--tensor-parallel-size': expected 1 for groups in activation order, got 2"
    ):
        decoder_tensors(quantized, 0, 2)


def test_scales_stay_exact_where_the_weights_have_another_type(tiny_checkpoint: Path, tmp_path: Path):
    quantized, dequantized = quantize_checkpoint(tiny_checkpoint, tmp_path, AWQ)
    config = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    expected = logits(Harness(dequantized))
    assert torch.allclose(logits(Harness(quantized)), expected, rtol=0, atol=1e-4 * expected.std().item())


@needs_kernels
def test_native_backend_refuses_fp8(tiny_checkpoint: Path):
    options: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "quantization": "fp8"}
    assert load(tiny_checkpoint, **options).ready.backend == "torch"
    with pytest.raises(CheckpointError, match="--backend native: the native backend does not support fp8"):
        load(tiny_checkpoint, backend="native", **options)


def test_fp8_checkpoints_match_fp8_quantization_at_load_time(tiny_checkpoint: Path, tmp_path: Path):
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="fp8"))
    assert torch.equal(logits(Harness(quantized)), logits(Harness(tiny_checkpoint, quantization="fp8")))
    assert load(quantized, device="cpu").ready.quantization == "compressed-tensors fp8"


def test_gptq_version_1_restores_zero_points_of_zero(tiny_checkpoint: Path, tmp_path: Path):
    """GPTQModel subtracts one from whole words, so a zero point of zero borrows from the next field."""
    second, dequantized = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="gptq", version=2))
    tensors = load_file(second / "model.safetensors")
    zeros = tensors[f"{Q_PROJ}.qzeros"]
    zeros &= ~0xF0F  # two of the eight in each word
    save_file(tensors, second / "model.safetensors")
    expected = logits(Harness(second))
    assert not torch.equal(expected, logits(Harness(dequantized)))
    for name, tensor in tensors.items():
        if name.endswith("qzeros"):
            tensor -= 0x11111111
    save_file(tensors, second / "model.safetensors")
    change_config(second, {"checkpoint_format": "gptq"})
    assert torch.equal(logits(Harness(second)), expected)


def change_config(path: Path, changes: Mapping[str, Any]) -> None:
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] |= changes
    (path / "config.json").write_text(json.dumps(config))


AWQ_CONFIG = AWQ.config()
FP8_BLOCKS = WeightFormat(method="fp8 blocks").config()
GPTQ_CONFIG = WeightFormat(method="gptq").config()


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_weights_in_fp8_blocks_are_loaded_as_the_dequantized_ones(
    tiny_checkpoint: Path, tmp_path: Path, quantization: Quantization
):
    quantized, dequantized = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="fp8 blocks"))
    found, expected = (logits(Harness(path, quantization=quantization)) for path in (quantized, dequantized))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", ["phi3", "phi4 mini"])
def test_stacked_weights_in_fp8_blocks_are_loaded_as_the_dequantized_ones(tmp_path: Path, family: str):
    plain = make_text_checkpoint(tmp_path / "plain", family)
    paths = quantize_checkpoint(plain, tmp_path, WeightFormat(method="fp8 blocks"))
    prompt = make_prompt(1, 20)
    found, expected = (harness.answer(harness.begin(prompt), 3).logits for harness in map(Harness, paths))
    assert torch.equal(torch.stack(found), torch.stack(expected))


def test_a_part_of_each_head_rotates_only_with_weights_that_can_be_reordered(tmp_path: Path):
    plain = make_text_checkpoint(tmp_path / "plain", "phi4 mini")
    quantized, _ = quantize_checkpoint(plain, tmp_path, AWQ)
    with pytest.raises(CheckpointError, match="expected an unquantized weight, as heads rotate only in part"):
        Harness(quantized)
    stored = read_headers(quantized)
    assert stored is not None
    check = check_tensors(stored, quantized, load_model_config(quantized))
    assert "expected an unquantized weight, as heads rotate only in part" in " ".join(check.unfit)


def test_ranks_and_checks_restore_weights_in_fp8_blocks(tiny_checkpoint: Path, tmp_path: Path):
    quantized, dequantized = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="fp8 blocks"))
    for rank in (0, 1):
        found, expected = (
            dict(
                load_model(
                    path,
                    load_model_config(path),
                    torch.device("cpu"),
                    torch.float32,
                    lambda stage, fraction: None,
                    rank=rank,
                    num_ranks=2,
                ).named_weights()
            )
            for path in (quantized, dequantized)
        )
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    stored = read_headers(quantized)
    assert stored is not None
    check = check_tensors(stored, quantized, load_model_config(quantized))
    assert (check.missing, check.unexpected, check.unfit) == ([], [], [])


def test_scales_of_fp8_blocks_must_fit_the_weights(tiny_checkpoint: Path, tmp_path: Path):
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, WeightFormat(method="fp8 blocks"))
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [128, 128]
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"weight': expected shape \[1, 1\] for blocks of 128 × 128"):
        Harness(quantized)


def fp8_group(**changes: Any) -> dict[str, Any]:
    config = fp8_config()
    group = config["config_groups"]["group_0"]
    for field, value in changes.items():
        group[field] = value and group[field] | value
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "quant_method': expected one of awq, gptq, compressed-tensors, gguf, fp8, got bitsandbytes",
        ),
        ({"quant_method": "fp8"}, "weight_block_size': expected two sizes for fp8, got None"),
        (FP8_BLOCKS | {"fmt": "e5m2"}, "fmt': expected e4m3 for fp8, got e5m2"),
        (FP8_BLOCKS | {"activation_scheme": "static"}, "activation_scheme': expected dynamic for fp8, got static"),
        (AWQ_CONFIG | {"bits": 8}, "bits': expected 4 for awq, got 8"),
        (AWQ_CONFIG | {"version": "gemv"}, "version': expected gemm for awq, got gemv"),
        (AWQ_CONFIG | {"zero_point": False}, "zero_point': expected True for awq, got False"),
        (AWQ_CONFIG | {"group_size": 48}, "group_size': expected -1 or a multiple of 32 for awq, got 48"),
        ({"quant_method": "awq"}, "has no field 'bits'"),
        (GPTQ_CONFIG | {"bits": 3}, "bits': expected 4 or 8 for gptq, got 3"),
        (
            GPTQ_CONFIG | {"checkpoint_format": "marlin"},
            "checkpoint_format': expected gptq or gptq_v2 .*, got marlin",
        ),
        (GPTQ_CONFIG | {"is_marlin_format": True}, "is_marlin_format': expected False for gptq, got True"),
        (GPTQ_CONFIG | {"lm_head": True}, "lm_head': expected False for gptq, got True"),
        (GPTQ_CONFIG | {"dynamic": {"+:up": {"bits": 8}}}, r"dynamic.\+:up': expected {} for gptq, got {'bits': 8}"),
        (GPTQ_CONFIG | {"pack_dtype": "int16"}, "pack_dtype': expected int32 for gptq, got int16"),
        (
            fp8_config() | {"format": "pack-quantized"},
            "weights.type': expected int .*, got float",
        ),
        (
            fp8_config() | {"kv_cache_scheme": {"num_bits": 8}},
            "kv_cache_scheme': expected False .*, got True",
        ),
        (
            fp8_group(weights={"strategy": "group"}),
            r"groups\.group_0\.weights\.strategy': expected channel or tensor .*, got group",
        ),
        (fp8_group(weights={"num_bits": 4}), r"group_0\.weights\.num_bits': expected 8 for .*, got 4"),
        (
            fp8_group(input_activations={"dynamic": False}),
            r"group_0\.input_activations\.dynamic': expected True .*, got False",
        ),
        (fp8_group(input_activations=None), r"group_0\.input_activations\.num_bits': expected 8 for .*, got None"),
    ],
)
def test_refuses_unsupported_quantization_configs(tiny_checkpoint: Path, config: Mapping[str, Any], message: str):
    document = json.loads((tiny_checkpoint / "config.json").read_text()) | {"quantization_config": config}
    folder = tiny_checkpoint.parent / "refused"
    shutil.copytree(tiny_checkpoint, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def shuffle_groups(tensors: Tensors) -> None:
    tensors[f"{Q_PROJ}.g_idx"] = tensors[f"{Q_PROJ}.g_idx"].flip(0)


def enlarge_group(tensors: Tensors) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        index = tensors[f"model.layers.0.self_attn.{name}.g_idx"]
        index[index.nonzero()[0]] = 0


@pytest.mark.parametrize(
    ("weight_format", "change", "message"),
    [
        (AWQ, lambda t: t.pop(f"{Q_PROJ}.scales"), rf"has no tensors {Q_PROJ}\.scale"),
        (
            AWQ,
            lambda t: t.update({f"{Q_PROJ}.qweight": torch.ones(64, 8)}),
            "expected an int32 matrix, got torch.float32",
        ),
        (
            AWQ,
            lambda t: t.update({f"{Q_PROJ}.qweight": torch.ones(32, 8, dtype=torch.int32)}),
            r"qweight': expected shape \[64, 32\] from config\.json, got \[64, 16\]",
        ),
        (AWQ, lambda t: t.update({"visual.merger.mlp.0.qweight": torch.ones(32, 8, dtype=torch.int32)}), r"mlp\.0\.qw"),
        (AWQ, lambda t: t.update({"lm_head.qweight": torch.ones(32, 8, dtype=torch.int32)}), "unexpected tensors"),
        (
            WeightFormat(method="gptq"),
            lambda t: t.update({"model.layers.0.self_attn.o_proj.bias": torch.ones(64)}),
            r"unexpected tensors: model\.layers\.0\.self_attn\.o_proj\.bias",
        ),
        (
            WeightFormat(method="gptq"),
            shuffle_groups,
            "expected groups of consecutive inputs",
        ),
        (WeightFormat(method="gptq", desc_act=True), shuffle_groups, "g_idx: expected equal groups in all matrices"),
        (WeightFormat(method="gptq", desc_act=True), enlarge_group, "g_idx: expected 32 inputs in each group"),
        (
            WeightFormat(method="fp8"),
            lambda t: t.update({"visual.merger.mlp.0.weight": torch.ones(128, 128).to(torch.float8_e4m3fn)}),
            r"has no tensors visual\.merger\.mlp\.0\.weight",  # a scale is missing
        ),
    ],
)
def test_refuses_tensors_that_do_not_fit_the_scheme(
    tiny_checkpoint: Path,
    tmp_path: Path,
    weight_format: WeightFormat,
    change: Callable[[Tensors], object],
    message: str,
):
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, weight_format)
    tensors = load_file(quantized / "model.safetensors")
    change(tensors)
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        Harness(quantized)


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_refuses_a_flag_that_contradicts_the_checkpoint(tiny_checkpoint: Path, tmp_path: Path, quantization: Any):
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, AWQ)
    with pytest.raises(CheckpointError, match=f"--quantization {quantization}: .*already quantized as awq int4"):
        load(quantized, quantization=quantization)


def test_refuses_groups_larger_than_a_matrix(tiny_checkpoint: Path, tmp_path: Path):
    quantized, _ = quantize_checkpoint(tiny_checkpoint, tmp_path, AWQ)
    change_config(quantized, {"group_size": 128})
    with pytest.raises(CheckpointError, match=r"awq int4 weights: expected a multiple of 128 inputs .*, got 64"):
        load(quantized)
