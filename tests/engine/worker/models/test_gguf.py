"""GGUF files answer as transformers does with the weights that llama.cpp's own package dequantizes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from glimpse import LLM, SamplingParams
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.gguf import folder
from glimpse.engine.checkpoint.gguf.folder import WEIGHTS
from glimpse.engine.checkpoint.gguf.tensor_types import SERVED_TYPES
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.checkpoint.quantization import GGUF_FORMATS, GgufQuantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.loading.gguf_weights import gguf_tensors
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.loading.tensor_check import check_tensors
from glimpse.engine.worker.loading.weight_conversion import make_converter
from glimpse.engine.worker.loading.weight_files import checkpoint_digest, read_headers
from tests.checkpoints.gguf import (
    MIXES,
    decoder_tensors,
    dequantized,
    finish,
    fit_scale,
    permuted,
    random_blocks,
    write_gguf,
)
from tests.checkpoints.text import make_text_checkpoint, make_wide_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.engine.levels import assert_stays_near_float32, needs_kernels
from tests.engine.worker.models.steps import assert_same
from tests.oracles.answers import generate

PROMPTS = [make_prompt(1, 23), make_prompt(2, 150)]
NUM_TOKENS = 8
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "cache_folder", lambda: tmp_path / "cache")  # the kernels stay where they are


def assert_agrees(file: Path, checkpoint: Path, architecture: str) -> None:
    """Fails if the file answers otherwise than the checkpoint's model with the file's weights."""
    oracle = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    config = json.loads((checkpoint / "config.json").read_bytes())
    weights = dequantized(file, config, architecture, decoder_tensors(checkpoint))
    missing, unexpected = oracle.load_state_dict(weights, strict=False)
    assert (unexpected, set(missing) - {"lm_head.weight"}) == ([], set())
    harness = Harness(resolve_checkpoint(str(file)))
    for prompt in PROMPTS:
        answered = harness.answer(harness.begin(prompt), NUM_TOKENS)
        assert_same(answered, generate(oracle, prompt.token_ids, NUM_TOKENS))


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("smollm2", "llama"),
        ("linear rope", "llama"),
        ("mistral", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("gemma3", "gemma3"),
        ("gemma4", "gemma4"),
        ("lfm2", "lfm2"),
        ("qwen3_5", "qwen35"),
        ("phi3 128k", "phi3"),
        ("phi4 mini", "phi3"),
    ],
)
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_architectures_agree(tmp_path: Path, family: str, architecture: str, kind: str) -> None:
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", family)
    if family == "gemma3":
        fit_scale(checkpoint)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, architecture, kind)
    assert_agrees(file, checkpoint, architecture)


def test_shared_experts_agree(tmp_path: Path) -> None:
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", "qwen3_5 moe")
    assert_agrees(write_gguf(tmp_path / "model.gguf", checkpoint, "qwen35moe", "F16"), checkpoint, "qwen35moe")


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_experts_agree(tmp_path: Path, kind: str) -> None:
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", "qwen3 moe")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen3MoeConfig(
            **json.loads((checkpoint / "config.json").read_bytes())
            | {"mlp_only_layers": [], "norm_topk_prob": True, "moe_intermediate_size": 32}
        )
        Qwen3MoeForCausalLM(config).save_pretrained(checkpoint)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, "qwen3moe", kind)
    assert_agrees(file, checkpoint, "qwen3moe")


@pytest.mark.parametrize("kind", [*SERVED_TYPES, *MIXES])
def test_types_agree(tmp_path: Path, kind: str) -> None:
    checkpoint = make_wide_checkpoint(tmp_path / "checkpoint")
    file = write_gguf(tmp_path / "model.gguf", checkpoint, "llama", kind)
    assert_agrees(file, checkpoint, "llama")


@pytest.mark.parametrize(
    ("kind", "stored"),
    [("Q8_0", "gguf Q8_0"), ("Q4_1", "gguf Q4_1"), ("Q4_K_M", "gguf Q4_K, Q6_K"), ("F16", "None")],
)
def test_headers_fit_the_model(tmp_path: Path, kind: str, stored: str) -> None:
    checkpoint = make_wide_checkpoint(tmp_path / "checkpoint")
    path = resolve_checkpoint(str(write_gguf(tmp_path / "model.gguf", checkpoint, "llama", kind)))
    config = load_model_config(path)
    assert str(config.quantization) == stored
    headers = read_headers(path)
    assert headers is not None
    check = check_tensors(headers, path, config)
    assert (check.fits, check.expected > 20) == (True, True)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Q4_K_M", {"qkv_proj": (8, 16), "out": (4, 32), "gate_up_proj": (4, 32), "down_proj": (8, 16)}),
        ("Q8_0 beside BF16", {"out": (8, 32), "gate_up_proj": (8, 32), "down_proj": (8, 32)}),
    ],
)
def test_matrices_of_one_product_share_a_format(
    tmp_path: Path, kind: str, expected: dict[str, tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = make_wide_checkpoint(tmp_path / "checkpoint")
    path = resolve_checkpoint(str(write_gguf(tmp_path / "model.gguf", checkpoint, "llama", kind)))
    config = load_model_config(path)
    caplog.set_level("INFO")
    cpu = torch.device("cpu")
    model = load_model(path, config, cpu, torch.float32, lambda *_: None, scheme=config.quantization, backend="native")
    layer = model.decoder.layers[0]
    formats = {
        name.rpartition(".")[2]: (linear.bits, linear.group_size)
        for name, linear in layer.named_modules()
        if isinstance(linear, GroupQuantizedLinear)
    }
    assert formats == expected
    assert isinstance(model.decoder.lm_head, GroupQuantizedLinear)
    assert "GGUF matrices that are not multiplied as they are stored: 4 of Q" in caplog.text


@needs_kernels
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q3_K", "Q2_K", *MIXES])
def test_native_kernels_stay_near_float32(tmp_path: Path, kind: str) -> None:
    checkpoint = make_wide_checkpoint(tmp_path / "checkpoint")
    path = resolve_checkpoint(str(write_gguf(tmp_path / "model.gguf", checkpoint, "llama", kind)))
    assert_stays_near_float32(path, PROMPTS, torch.bfloat16, quantization="none", tolerance=0.1)


@pytest.mark.parametrize("kind", [kind for kind in SERVED_TYPES if kind not in ("F32", "F16", "BF16")])
def test_blocks_are_dequantized_exactly(tmp_path: Path, kind: str) -> None:
    blocks = random_blocks(kind, 3000, np.random.default_rng(1))
    writer = GGUFWriter(tmp_path / "model.gguf", "qwen2")
    writer.add_tensor("blocks", blocks, raw_dtype=GGMLQuantizationType[kind])
    finish(writer)
    ((_, read),) = gguf_tensors(tmp_path / "model.gguf", torch.device("cpu"))
    expected = torch.from_numpy(dequantize(blocks, GGMLQuantizationType[kind]))
    assert torch.equal(read(), expected)


@pytest.mark.parametrize(
    ("kind", "width", "what"),
    [("Q8_0", 128, "tiled_blocks"), ("Q6_K", 128, "tiled_blocks"), ("Q4_K", 64, "tiled_blocks"), ("Q8_0", 8, "weight")],
)
def test_columns_of_heads_are_put_in_order(tmp_path: Path, kind: str, width: int, what: str) -> None:
    """Two groups of two heads: groups of 16 and 32 columns are moved as they are, unless they span heads."""
    size, _ = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = random_blocks(kind, 16 * 4 * width // size, np.random.default_rng(1)).reshape(16, -1)
    writer = GGUFWriter(tmp_path / "model.gguf", "qwen35")
    writer.add_block_count(1)
    writer.add_ssm_group_count(2)
    writer.add_ssm_time_step_rank(4)
    writer.add_tensor("blk.0.ssm_out.weight", blocks, raw_dtype=GGMLQuantizationType[kind])
    finish(writer)
    ((name, read),) = gguf_tensors(tmp_path / "model.gguf", CPU)
    assert name == f"model.layers.0.linear_attn.out_proj.{what}"
    expected = torch.from_numpy(dequantize(blocks, GGMLQuantizationType[kind])).view(16, 4, width)[:, [0, 2, 1, 3]]
    if what == "weight":
        assert torch.equal(read(), expected.flatten(1))
        return
    stem = name.rpartition(".")[0]
    scheme = GgufQuantization(types={stem: kind}, tiled_heads=(2, 2))
    ((_, weight),) = make_converter(scheme, {}, lambda *part: [part])(name, read())
    assert torch.equal(weight, expected.flatten(1))
    form, linear = GGUF_FORMATS[kind], Linear(4 * width, 16, bias=False)
    kept = GroupQuantizedLinear(
        linear,
        bits=form.bits,
        group_size=form.group_size,
        scale_dtype=torch.float32,
        has_minimum=form.has_minimum,
    )
    destinations = dict(kept.named_weights(stem))
    for own, tensor in make_converter(scheme, destinations, lambda *part: [part])(name, read()):
        destinations[own].copy_(tensor)
    assert torch.equal(kept.dequantized(torch.float32).weight, weight)


def test_a_model_in_several_files_is_that_of_one(tmp_path: Path) -> None:
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", "smollm2")
    whole = write_gguf(tmp_path / "model.gguf", checkpoint, "llama", "Q8_0")
    first = write_gguf(tmp_path / "parts.gguf", checkpoint, "llama", "Q8_0", most_tensors=8)
    paths = [resolve_checkpoint(str(file)) for file in (whole, first)]
    expected, found = ({name: read() for name, read in gguf_tensors(path / WEIGHTS, CPU)} for path in paths)
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert load_model_config(paths[0]) == load_model_config(paths[1])
    digest = checkpoint_digest([str(paths[1])])
    second = Path(str(first).replace("-00001-of-", "-00002-of-"))
    second.write_bytes(second.read_bytes()[:-1] + b"?")
    assert checkpoint_digest([str(paths[1])]) != digest
    second.unlink()
    with pytest.raises(CheckpointError, match=f"the GGUF file '{second.name}' cannot be read"):
        resolve_checkpoint(str(first))
    wrong = first.rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"'split.count': expected 1, as the name of the first says .*, got \d"):
        resolve_checkpoint(str(wrong))


def test_llama3_rope_factors_are_read(tmp_path: Path) -> None:
    """llama.cpp's converter stores Llama 3.1's scaling as a factor for each wavelength."""
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", "llama3")
    oracle = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    unscaled = 1 / 500_000.0 ** (torch.arange(0, 16, 2) / 16)
    factors = unscaled / oracle.model.rotary_emb.inv_freq
    assert factors.max() > 2

    def change(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", factors.float().numpy())

    file = write_gguf(tmp_path / "model.gguf", checkpoint, "llama", change=change)
    harness = Harness(resolve_checkpoint(str(file)))
    for prompt in PROMPTS:
        answered = harness.answer(harness.begin(prompt), NUM_TOKENS)
        assert_same(answered, generate(oracle, prompt.token_ids, NUM_TOKENS))


def test_llm_serves_a_file(tmp_path: Path) -> None:
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", "qwen3")
    file = write_gguf(tmp_path / "model.gguf", checkpoint, "qwen3")
    messages: Any = [{"role": "user", "content": "Hello"}]
    greedy = SamplingParams(temperature=0, max_tokens=8)
    answers: list[list[int]] = []
    for model in (checkpoint, file):
        (output,) = LLM(model, dtype="float32", device="cpu", backend="torch").chat(messages, greedy, use_tqdm=False)
        answers.append([*(output.prompt_token_ids or ()), *output.outputs[0].token_ids])
    assert answers[0] == answers[1]


def test_refuses_a_type_that_is_not_served(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "qwen2")
    writer.add_tensor("blocks", np.zeros((2, 66), dtype=np.uint8), raw_dtype=GGMLQuantizationType.IQ2_XXS)
    finish(writer)
    with pytest.raises(CheckpointError, match=r"'blocks': type: expected one of F32, .*, got IQ2_XXS"):
        list(gguf_tensors(tmp_path / "model.gguf", torch.device("cpu")))


def test_permutation_is_that_of_the_converter() -> None:
    """`permute` of llama.cpp's converter, as reshapes."""
    rows = torch.arange(48)
    assert torch.equal(permuted(rows, 3), rows.reshape(3, 2, 8).swapaxes(1, 2).reshape(48))
