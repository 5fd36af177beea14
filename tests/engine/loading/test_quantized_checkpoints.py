"""Quantized checkpoints as people publish them: they compute what their weights stand for, or say why they cannot."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glimpse.engine.config import EngineConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.loading.load_engine import LoadedEngine, load_core, load_model
from glimpse.engine.model_config import load_model_config
from glimpse.engine.protocol import Generate
from glimpse.engine.sampling_params import SamplingParams
from tests.engine.harness import Harness, make_prompt
from tests.engine.levels import LEVELS, needs_kernels
from tests.quantized_checkpoints import Published, fp8_config, publish

Tensors = dict[str, Tensor]
PROMPT = make_prompt(1, 9, (56, 84), 6)
AWQ = Published(method="awq")
GROUPED = {
    "awq int4": (AWQ, Published(method="awq", group_size=64), Published(method="awq", group_size=-1)),
    "gptq int4": (
        Published(method="gptq", group_size=64),
        Published(method="gptq", version=2),
        Published(method="gptq", group_size=-1),
        Published(method="gptq", desc_act=True),
    ),
    "gptq int8": (
        Published(method="gptq", bits=8),
        Published(method="gptq", bits=8, group_size=-1, version=2),
        Published(method="gptq", bits=8, desc_act=True),
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
    ("name", "scheme"), [(name, scheme) for name, schemes in GROUPED.items() for scheme in schemes]
)
def test_logits_are_those_of_the_weights_that_are_meant(
    tiny_checkpoint: Path, tmp_path: Path, name: str, scheme: Published
):
    quantized, meant = publish(tiny_checkpoint, tmp_path, scheme)
    expected = logits(Harness(meant))
    assert torch.allclose(logits(Harness(quantized)), expected, rtol=0, atol=1e-4 * expected.std().item())
    assert str(load_model_config(quantized).quantization) == name


@pytest.mark.parametrize("scheme", [AWQ, Published(method="gptq", desc_act=True)])
def test_a_loaded_engine_answers_as_the_plain_model_and_says_what_it_serves(
    tiny_checkpoint: Path, tmp_path: Path, scheme: Published
):
    quantized, meant = publish(tiny_checkpoint, tmp_path, scheme)
    engine = load(quantized, device="cpu", dtype="float32")
    assert answer(engine) == answer(load(meant, device="cpu", dtype="float32"))
    assert engine.ready.quantization == f"{scheme.method} int4"
    assert load(quantized, dtype="float32", quantization="int4").ready.quantization == f"{scheme.method} int4"


@needs_kernels
@pytest.mark.parametrize("scheme", [AWQ, Published(method="gptq", desc_act=True), Published(method="gptq", bits=8)])
def test_native_kernels_compute_with_the_bfloat16_that_is_meant(
    tiny_checkpoint: Path, tmp_path: Path, scheme: Published
):
    quantized, meant = publish(tiny_checkpoint, tmp_path, scheme)
    computed, expected = (logits(Harness(path, torch.bfloat16, level=LEVELS[-1])) for path in (quantized, meant))
    assert torch.equal(computed, expected)


@pytest.mark.parametrize("scheme", [AWQ, Published(method="gptq", group_size=-1), Published(method="fp8")])
def test_ranks_hold_parts_of_the_whole(tiny_checkpoint: Path, tmp_path: Path, scheme: Published):
    quantized, _ = publish(tiny_checkpoint, tmp_path, scheme)
    whole, *parts = (decoder_tensors(quantized, *rank) for rank in ((0, 1), (0, 2), (1, 2)))
    for name, tensor in whole.items():
        first, second = (part[name] for part in parts)
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
    # e4m3 has no operators, so its bytes are compared.
    return {
        name: tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor
        for name, tensor in model.decoder.named_weights()
    }


def test_groups_in_any_order_cannot_be_parted(tiny_checkpoint: Path, tmp_path: Path):
    quantized, _ = publish(tiny_checkpoint, tmp_path, Published(method="gptq", desc_act=True))
    with pytest.raises(CheckpointError, match="--tensor-parallel-size 2: gptq with desc_act true"):
        decoder_tensors(quantized, 0, 2)


@needs_kernels
def test_fp8_is_not_for_the_native_kernels(tiny_checkpoint: Path):
    options: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "quantization": "fp8"}
    assert load(tiny_checkpoint, **options).ready.backend == "torch"
    with pytest.raises(CheckpointError, match="--backend native: the native backend has no FP8"):
        load(tiny_checkpoint, backend="native", **options)


def test_fp8_checkpoints_compute_as_weights_rounded_at_load(tiny_checkpoint: Path, tmp_path: Path):
    quantized, _ = publish(tiny_checkpoint, tmp_path, Published(method="fp8"))
    assert torch.equal(logits(Harness(quantized)), logits(Harness(tiny_checkpoint, quantization="fp8")))
    assert load(quantized, device="cpu").ready.quantization == "fp8"


def test_zero_points_of_zero_come_back_from_gptqs_first_version(tiny_checkpoint: Path, tmp_path: Path):
    """GPTQModel subtracts one from whole words, so that a zero borrows from its neighbour."""
    second, meant = publish(tiny_checkpoint, tmp_path, Published(method="gptq", version=2))
    tensors = load_file(second / "model.safetensors")
    zeros = tensors[f"{Q_PROJ}.qzeros"]
    zeros &= ~0xF0F  # two of the eight in each word
    save_file(tensors, second / "model.safetensors")
    expected = logits(Harness(second))
    assert not torch.equal(expected, logits(Harness(meant)))
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
GPTQ_CONFIG = Published(method="gptq").config()


def fp8_group(**changes: Any) -> dict[str, Any]:
    config = fp8_config()
    group = config["config_groups"]["group_0"]
    for field, value in changes.items():
        group[field] = value and group[field] | value
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quantized by bitsandbytes.*supported: awq, gptq, compressed-tensors"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "quantized by fp8"),
        (AWQ_CONFIG | {"bits": 8}, "awq with bits 8 is not supported; supported: 4"),
        (AWQ_CONFIG | {"version": "gemv"}, "awq with version gemv is not supported; supported: gemm"),
        (AWQ_CONFIG | {"zero_point": False}, "awq with zero_point False"),
        (AWQ_CONFIG | {"group_size": 48}, "awq with group_size 48 is not supported"),
        ({"quant_method": "awq"}, "has no field 'bits'"),
        (GPTQ_CONFIG | {"bits": 3}, "gptq with bits 3 is not supported; supported: 4, 8"),
        (GPTQ_CONFIG | {"checkpoint_format": "marlin"}, "gptq with checkpoint_format marlin.*supported: gptq, gptq_v2"),
        (GPTQ_CONFIG | {"is_marlin_format": True}, "gptq with is_marlin_format True"),
        (GPTQ_CONFIG | {"lm_head": True}, "gptq with lm_head True"),
        (GPTQ_CONFIG | {"dynamic": {"-:.*down_proj": {}}}, "gptq with dynamic True"),
        (GPTQ_CONFIG | {"pack_dtype": "int16"}, "gptq with pack_dtype int16"),
        (fp8_config() | {"format": "pack-quantized"}, "compressed-tensors with format pack-quantized"),
        (fp8_config() | {"kv_cache_scheme": {"num_bits": 8}}, "compressed-tensors with kv_cache_scheme True"),
        (fp8_group(weights={"strategy": "block"}), "group_0 weights strategy block is not supported"),
        (fp8_group(weights={"num_bits": 4}), "group_0 weights num_bits 4"),
        (fp8_group(input_activations={"dynamic": False}), "group_0 input_activations dynamic False"),
        (fp8_group(input_activations=None), "group_0 input_activations num_bits None"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tiny_checkpoint: Path, config: Mapping[str, Any], message: str):
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
    ("scheme", "change", "message"),
    [
        (AWQ, lambda t: t.pop(f"{Q_PROJ}.scales"), rf"lacks {Q_PROJ}\.scale"),
        (AWQ, lambda t: t.update({f"{Q_PROJ}.qweight": torch.ones(64, 8)}), "qweight is stored as torch.float32"),
        (
            AWQ,
            lambda t: t.update({f"{Q_PROJ}.qweight": torch.ones(32, 8, dtype=torch.int32)}),
            r"qweight has shape \[64, 16\]; config.json implies \[64, 32\]",
        ),
        (AWQ, lambda t: t.update({"visual.merger.mlp.0.qweight": torch.ones(32, 8, dtype=torch.int32)}), r"mlp\.0\.qw"),
        (AWQ, lambda t: t.update({"lm_head.qweight": torch.ones(32, 8, dtype=torch.int32)}), "knows nothing"),
        (
            Published(method="gptq"),
            lambda t: t.update({"model.layers.0.self_attn.o_proj.bias": torch.ones(64)}),
            r"knows nothing: model\.layers\.0\.self_attn\.o_proj\.bias",
        ),
        (Published(method="gptq"), shuffle_groups, "groups of inputs that are no neighbours"),
        (Published(method="gptq", desc_act=True), shuffle_groups, "g_idx differs between matrices"),
        (Published(method="gptq", desc_act=True), enlarge_group, "groups that are not of 32 inputs each"),
        (
            Published(method="fp8"),
            lambda t: t.update({"visual.merger.mlp.0.weight": torch.ones(128, 128).to(torch.float8_e4m3fn)}),
            r"visual\.merger\.mlp\.0\.weight is stored as float8_e4m3fn; config.json implies float32",
        ),
    ],
)
def test_tensors_that_do_not_fit_the_form_are_named(
    tiny_checkpoint: Path, tmp_path: Path, scheme: Published, change: Callable[[Tensors], object], message: str
):
    quantized, _ = publish(tiny_checkpoint, tmp_path, scheme)
    tensors = load_file(quantized / "model.safetensors")
    change(tensors)
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        Harness(quantized)


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_a_flag_that_contradicts_the_checkpoint_is_refused(tiny_checkpoint: Path, tmp_path: Path, quantization: Any):
    quantized, _ = publish(tiny_checkpoint, tmp_path, AWQ)
    with pytest.raises(CheckpointError, match=f"--quantization {quantization}: .*quantized already: awq int4"):
        load(quantized, quantization=quantization)


def test_groups_that_a_matrix_has_no_room_for_are_refused(tiny_checkpoint: Path, tmp_path: Path):
    quantized, _ = publish(tiny_checkpoint, tmp_path, AWQ)
    change_config(quantized, {"group_size": 128})
    with pytest.raises(CheckpointError, match=r"awq int4 weights: .* 64 inputs, not a multiple of 128"):
        load(quantized)
