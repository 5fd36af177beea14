"""GGUF files that `glimpse quantize --to q4_k_m` writes have llama.cpp's types, and compute what their blocks say."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize
from torch import Tensor

from glimpse.engine.checkpoint.gguf import folder
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.mixture import q4_k_m_types
from glimpse.engine.checkpoint.gguf.writer import GgufWriter
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.gguf_weights import as_in_checkpoints, read_tensor
from glimpse.engine.worker.quantize.blocks import round_blocks
from glimpse.engine.worker.quantize.gguf_file import BlockRounding
from glimpse.engine.worker.quantize.layers import StoredPart
from glimpse.engine.worker.quantize.quantize_checkpoint import Quantized, Recipe, quantize_checkpoint
from glimpse.engine.worker.quantize.rounding import Factor
from tests.checkpoints.gguf import decoder_tensors, dequantized, finish, write_gguf
from tests.checkpoints.mmproj import write_pair
from tests.checkpoints.quantized import write
from tests.checkpoints.text import make_text_checkpoint, make_wide_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.paths import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()[:2400]
RECIPE = Recipe(to="q4_k_m")
KINDS = ("Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1", "Q8_0")
SMALLEST = {"Q4_K": 0.05, "Q5_K": 0.025, "Q5_1": 0.025, "Q5_0": 0.04, "Q6_K": 0.02, "Q8_0": 0.005}
"""What rounding normally distributed weights may lose, as a part of their deviation."""
CHANGED = {"general.file_type", "general.quantization_version"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "cache_folder", lambda: tmp_path / "cache")


def add_nothing(_writer: GGUFWriter) -> None: ...


def quantize(file: Path, out: Path, recipe: Recipe = RECIPE) -> Quantized:
    return quantize_checkpoint(resolve_checkpoint(str(file)), out, recipe, TEXT)


def logits(path: Path, *media: tuple[int, int]) -> Tensor:
    harness = Harness(resolve_checkpoint(str(path)))
    return torch.stack(harness.answer(harness.begin(make_prompt(1, 9, *media, 6)), 3).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_those_that_the_package_reads(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 512, generator=generator) * torch.rand(16, 1, generator=generator)
    weight[0] = 0
    weight[1, :32] = -0.5
    importance = torch.rand(512, generator=generator) ** 4
    lost = {}
    for method in ("nearest", "searched"):
        blocks = round_blocks(kind, weight, importance, None, method)
        read = dequantize(blocks.octets.numpy(), GGMLQuantizationType[kind])
        assert np.array_equal(read, blocks.weight.numpy())
        lost[method] = ((blocks.weight - weight).square() * importance).sum(dim=1)
    rows = weight.std(dim=1) > 0
    assert not lost["searched"][0]
    assert (lost["searched"] <= lost["nearest"]).all()
    assert ((lost["searched"] / importance.sum()).sqrt()[rows] < SMALLEST[kind] * 2 * weight.std(dim=1)[rows]).all()


def test_errors_of_columns_are_made_up_for() -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(24, 256), torch.randn(512, 256) @ torch.randn(256, 256) * torch.rand(256)
    moments = inputs.T @ inputs / len(inputs)

    def lost(method: str) -> Tensor:
        factor = Factor.of(moments) if method == "compensated" else None
        error = round_blocks("Q4_K", weight, moments.diagonal(), factor, method).weight - weight  # type: ignore[arg-type]
        return (error @ moments * error).sum()

    assert lost("compensated") < 0.5 * lost("searched") < 0.5 * lost("nearest")


def types_of(file: Path, widths: Mapping[str, int], *, depth: int) -> dict[str, str]:
    """Returns the new types of a Llama's matrices of these widths, and vectors for 0."""
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(depth)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    for name, width in widths.items():
        writer.add_tensor(f"{name}.weight", np.zeros((2, width) if width else 2, np.float16))
    finish(writer)
    return {name.removesuffix(".weight"): kind for name, kind in q4_k_m_types(Gguf(file)).items()}


def test_types_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """Values and the last product of MLPs have more bits in half of 32 layers, where `llama-quantize` has them."""
    per_layer = {"attn_q": 256, "attn_k": 256, "attn_v": 256, "attn_output": 256, "ffn_down": 512, "attn_norm": 0}
    widths = {f"blk.{layer}.{name}": width for layer in range(32) for name, width in per_layer.items()}
    types = types_of(tmp_path / "file", {**widths, "token_embd": 256, "output": 256}, depth=32)
    layers = [*range(4), *range(6, 28, 3), *range(28, 32)]
    precise = {name for name, kind in types.items() if kind == "Q6_K"}
    assert precise == {"output", *(f"blk.{layer}.{name}" for layer in layers for name in ("attn_v", "ffn_down"))}
    assert types.keys() == {name for name in (*widths, "token_embd", "output") if "norm" not in name}
    assert {types[name] for name in types.keys() - precise} == {"Q4_K"}


def test_rows_that_are_no_whole_blocks_have_other_types(tmp_path: Path) -> None:
    widths = {"token_embd": 96, "blk.0.attn_q": 96, "blk.0.attn_output": 40}
    expected = {"token_embd": "Q8_0", "blk.0.attn_q": "Q5_0", "blk.0.attn_output": "F16"}
    assert types_of(tmp_path / "file", widths, depth=1) == expected


def test_values_of_large_models_have_more_bits(tmp_path: Path) -> None:
    types = types_of(tmp_path / "file", {f"blk.{layer}.attn_v": 256 for layer in range(80)}, depth=80)
    assert {*types.values()} == {"Q5_K", "Q6_K"}


def align(writer: GGUFWriter) -> None:
    writer.add_custom_alignment(64)


@pytest.mark.parametrize(("kind", "most_tensors", "change"), [("F16", 0, align), ("Q8_0", 4, add_nothing)])
def test_the_file_answers_with_what_its_blocks_stand_for(
    tmp_path: Path, kind: str, most_tensors: int, change: Callable[[GGUFWriter], None]
) -> None:
    checkpoint = make_wide_checkpoint(tmp_path / "checkpoint")
    source = write_gguf(
        tmp_path / f"model.{kind}.gguf", checkpoint, "llama", kind, most_tensors=most_tensors, change=change
    )
    result = quantize(source, tmp_path / "out")
    assert result.path == tmp_path / "out" / "model-Q4_K_M.gguf"
    config = json.loads((checkpoint / "config.json").read_bytes())
    weights = dequantized(result.path, config, "llama", decoder_tensors(checkpoint))
    expected = logits(write(checkpoint, tmp_path / "plain", weights, {}))
    assert torch.allclose(logits(result.path), expected, rtol=0, atol=1e-4 * expected.std().item())
    before, after = GGUFReader(source), GGUFReader(result.path)
    assert after.fields["general.file_type"].contents() == 15
    kept = {name for name in before.fields if not name.startswith(("GGUF.", "split."))} - CHANGED
    assert kept == {name for name in after.fields if not name.startswith("GGUF.")} - CHANGED
    for name in kept:
        assert all(map(np.array_equal, before.fields[name].parts, after.fields[name].parts)), name
    gguf = Gguf(result.path)
    assert {tensor.type.name for tensor in gguf.tensors.values()} == {"F32", "Q4_K", "Q6_K"}
    source_tensors = Gguf(source).tensors
    assert [*source_tensors] == [*gguf.tensors]
    assert torch.equal(read_tensor(Gguf(source), "output_norm.weight"), read_tensor(gguf, "output_norm.weight"))
    assert result.num_bytes == sum(tensor.num_bytes for tensor in gguf.tensors.values())
    assert abs(result.loss.increase) < 0.2
    assert result.loss.quantized != result.loss.exact


@pytest.mark.parametrize(
    ("family", "architecture"), [("phi3 128k", "phi3"), ("qwen3_5", "qwen35"), ("gemma4", "gemma4"), ("lfm2", "lfm2")]
)
def test_stacks_states_and_tables_are_quantized_too(tmp_path: Path, family: str, architecture: str) -> None:
    """The perplexity that is told is that of the weights in the file."""
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", family)
    made = quantize(write_gguf(tmp_path / "model.gguf", checkpoint, architecture, "F32"), tmp_path / "out")
    again = quantize(unpacked(made.path, tmp_path / "unpacked.gguf"), tmp_path / "again")
    assert again.loss.exact == pytest.approx(made.loss.quantized, rel=1e-5)
    assert again.loss.exact != pytest.approx(made.loss.exact, rel=1e-4)


def unpacked(file: Path, plain: Path) -> Path:
    """Writes the weights of a file as F32."""
    gguf = Gguf(file)
    with GgufWriter(plain, gguf, dict.fromkeys(gguf.tensors, "F32"), {}) as writer:
        for name in gguf.tensors:
            writer.write(name, read_tensor(gguf, name).float().numpy().tobytes())
    return plain


def test_columns_in_another_order_have_their_own_importance(tmp_path: Path) -> None:
    """One input of a delta net's last product matters alone: its column loses nearly nothing."""
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", "qwen3_5")
    gguf = Gguf(write_gguf(tmp_path / "model.gguf", checkpoint, "qwen35", "F32"))
    name = next(each for each in gguf.tensors if each.endswith("ssm_out.weight"))
    tensor = read_tensor(gguf, name)
    own = as_in_checkpoints(gguf, name, tensor)
    assert not torch.equal(own, tensor)
    column = next(index for index in range(own.shape[1]) if not torch.equal(own[:, index], tensor[:, index]))
    moments = torch.full((own.shape[1],), 1e-6)
    moments[column] = 1
    part = StoredPart(name=name, tensor=tensor, arrange=lambda tensor: [(name, tensor)])
    rounding = BlockRounding(gguf=gguf, types={name: "Q5_0"}, method="searched")
    (blocks,) = rounding.round_parts([part], moments.diag())
    assert blocks is not None
    lost = (as_in_checkpoints(gguf, name, blocks.weight) - own).square().sum(dim=0)
    assert lost[column] < 0.1 * lost.median()


def test_an_encoder_is_copied(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = write_pair(tmp_path / "pair", tiny_checkpoint, "F16")
    result = quantize(source, tmp_path / "out")
    assert {each.name for each in result.path.parent.iterdir()} == {"model-Q4_K_M.gguf", "mmproj-model.gguf"}
    copied, encoder = (path.parent / "mmproj-model.gguf" for path in (result.path, source))
    assert copied.read_bytes() == encoder.read_bytes()
    source.unlink()
    expected = logits(unpacked(result.path, source), (56, 84))
    assert torch.allclose(logits(result.path, (56, 84)), expected, rtol=0, atol=1e-4 * expected.std().item())


def add_unknown(writer: GGUFWriter) -> None:
    writer.add_tensor("blk.0.unknown.weight", np.zeros((64, 64), np.float32))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("Q4_1", add_nothing, r"'MODEL': expected types of F32, F16, BF16, Q8_0, got '.*' in Q4_1: it is quantized"),
        ("F16", add_unknown, r"'MODEL': expected the tensors of .*unknown.weight are unexpected"),
    ],
)
def test_refuses_files_by_name(tmp_path: Path, kind: str, change: Callable[[GGUFWriter], None], message: str) -> None:
    checkpoint = make_text_checkpoint(tmp_path / "checkpoint", "smollm2")
    source = write_gguf(tmp_path / "model.gguf", checkpoint, "llama", kind, change=change)
    with pytest.raises(CheckpointError, match=message):
        quantize(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("out", "recipe", "message"),
    [
        ("out", Recipe(to="int4"), r"'MODEL': expected .* safetensors for '--to int4', got a GGUF file; write --to q4"),
        ("out", Recipe(to="q4_k_m", group_size=64), r"'--group-size': expected none with '--to q4_k_m'.* got 64"),
        ("out.gguf", RECIPE, r"'OUT': expected the name of a folder, got 'out.gguf'"),
    ],
)
def test_refuses_flags_by_name(wide_file: Path, tmp_path: Path, out: str, recipe: Recipe, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        quantize(wide_file, tmp_path / out, recipe)
    assert not (tmp_path / out).exists()


@pytest.fixture
def wide_file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", make_wide_checkpoint(tmp_path / "checkpoint"), "llama", "F32")


def test_refuses_folders_experts_weights_that_are_no_numbers_and_full_disks(
    wide_file: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match="'MODEL': expected a GGUF file for '--to q4_k_m', got a folder; write"):
        quantize(tiny_checkpoint, out)
    experts = make_text_checkpoint(tmp_path / "experts", "qwen3_5 moe")
    with pytest.raises(CheckpointError, match="'MODEL': expected a model without experts"):
        quantize(write_gguf(tmp_path / "experts.gguf", experts, "qwen35moe", "F16"), out)
    gguf, values = Gguf(wide_file), bytearray(wide_file.read_bytes())
    place = gguf.tensors["blk.1.ffn_down.weight"].offset
    values[place : place + 4] = np.float32("nan").tobytes()
    wide_file.write_bytes(values)
    with pytest.raises(CheckpointError, match=r"GGUF tensor 'blk.1.ffn_down.weight': expected finite weights"):
        quantize(wide_file, out)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=0))
    with pytest.raises(CheckpointError, match=r"'OUT': expected 0.1 GiB of free space"):
        quantize(wide_file, out)
    assert not out.exists()
