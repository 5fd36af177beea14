"""LoRA adapters: logits and greedy answers are those of transformers with merged weights, alone and in one batch."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import Quantization
from glimpse.engine.worker.native.library import Level
from tests.checkpoints.lfm2 import make_lfm2_vl_checkpoint
from tests.checkpoints.llava import make_llava_checkpoint
from tests.checkpoints.lora import PROJECTIONS, make_adapter, merged
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, make_prompt
from tests.engine.levels import at_outer_levels, needs_kernels
from tests.engine.llava_prompts import IMAGE as LLAVA_IMAGE
from tests.engine.llava_prompts import prompt_of
from tests.engine.qwen3_vl_prompts import make_qwen3_prompt
from tests.engine.worker.models.steps import agreement, assert_same
from tests.oracles.answers import Answer, generate
from tests.oracles.llava import greedy_answer as llava_answer
from tests.oracles.qwen_vl import greedy_answer

NUM_TOKENS = 4
TEXT, IMAGE = make_prompt(1, 23), make_prompt(2, 5, (112, 84), 9)
ADAPTERS: Mapping[str, Mapping[str, Any]] = {
    "all": {"seed": 1},
    "rs": {"seed": 2, "targets": r".*\.self_attn\.(q|v)_proj", "r": 6, "use_rslora": True},
    "patterns": {
        "seed": 3,
        "rank_pattern": {r"layers.1.self_attn.k_proj": 2, "down_proj": 7},
        "alpha_pattern": {"o_proj": 3},
    },
}
"""What each of three adapters differs in."""
EXPERTS = r".*\.(self_attn\.\w_proj|(experts\.\d+|shared_expert)\.\w+_proj)"


def module_of(name: str) -> str:
    """The name of a linear of Qwen2-VL in transformers 5."""
    return name.replace("model.", "model.language_model.", 1)


@pytest.fixture(scope="module")
def adapters(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(folder / name, tiny_checkpoint, module_of=module_of, **fields)
        for name, fields in ADAPTERS.items()
    }


@pytest.fixture(scope="module")
def merge(
    tiny_checkpoint: Path, adapters: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str | None], Path]:
    """Returns the checkpoint with the weights of an adapter, or its own."""
    folder = tmp_path_factory.mktemp("merged")

    @cache
    def found(name: str | None) -> Path:
        if name is None:
            return tiny_checkpoint
        return merged(folder / name, tiny_checkpoint, adapters[name], module_of=module_of)

    return found


assert_agrees = agreement(greedy_answer, "spans", "images")


@pytest.mark.parametrize("name", ADAPTERS)
def test_answers_of_qwen2_vl_are_those_of_merged_weights(
    adapters: Mapping[str, Path], merge: Callable[[str | None], Path], tiny_checkpoint: Path, name: str
) -> None:
    harness = Harness(tiny_checkpoint, adapters=adapters)
    alone = harness.answer(harness.begin(IMAGE, adapter=name), NUM_TOKENS, chunks=[7])
    assert_agrees(alone, merge(name))
    base = harness.answer(harness.begin(IMAGE), NUM_TOKENS)
    assert (alone.logits[0] - base.logits[0]).abs().max() > 0.1
    again = harness.begin(IMAGE, adapter=name, cached=alone, num_cached=2 * BLOCK_SIZE)
    assert_agrees(harness.answer(again, NUM_TOKENS), merge(name))


def test_a_batch_of_the_base_and_three_adapters_equals_each_alone(
    adapters: Mapping[str, Path], merge: Callable[[str | None], Path], tiny_checkpoint: Path
) -> None:
    harness = Harness(tiny_checkpoint, adapters=adapters)
    names = ["patterns", None, "all", "rs", "all", None]
    sequences = [harness.begin((IMAGE, TEXT)[index % 2], adapter=name) for index, name in enumerate(names)]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in reversed(sequences)))
    for sequence, name in zip(sequences, names, strict=True):
        assert_agrees(sequence, merge(name))


@pytest.mark.parametrize("family", ["phi3", "phi4 mini", "qwen3_5", "gemma4 large", "lfm2"])
def test_answers_of_other_linears_are_those_of_merged_weights(tmp_path: Path, family: str) -> None:
    path = make_text_checkpoint(tmp_path / "base", family)
    adapter = make_adapter(tmp_path / "adapter", path, strength=0.3)
    harness = Harness(path, adapters={"a": adapter})
    sequence = harness.answer(harness.begin(TEXT, adapter="a"), NUM_TOKENS)
    oracle = AutoModelForCausalLM.from_pretrained(merged(tmp_path / "merged", path, adapter), dtype=torch.float32)
    assert_same(sequence, generate(oracle, TEXT.token_ids, NUM_TOKENS))
    assert (sequence.logits[0] - harness.answer(harness.begin(TEXT), 1).logits[0]).abs().max() > 0.1


@pytest.mark.parametrize("level", [None, pytest.param(Level.AVX2, marks=needs_kernels)])
@pytest.mark.parametrize("family", ["qwen3 moe", "qwen3_5 moe"])
def test_experts_compute_as_merged_ones_do_beside_those_of_the_base(
    tmp_path: Path, family: str, level: Level | None
) -> None:
    path = make_text_checkpoint(tmp_path / "base", family)
    adapter = make_adapter(tmp_path / "adapter", path, targets=EXPERTS, strength=2)
    harness = Harness(path, level=level, block_size=32 if level else BLOCK_SIZE, adapters={"a": adapter})
    sequences = [harness.begin(TEXT, adapter=name) for name in ("a", None)]
    harness.step(*((sequence, len(TEXT.token_ids)) for sequence in sequences))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((sequence, 1) for sequence in sequences))
    for sequence, weights in zip(sequences, (merged(tmp_path / "merged", path, adapter), path), strict=True):
        oracle = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
        assert_same(sequence, generate(oracle, TEXT.token_ids, NUM_TOKENS))
    assert (sequences[0].logits[0] - sequences[1].logits[0]).abs().max() > 0.1


@needs_kernels
@at_outer_levels
@pytest.mark.parametrize(
    ("dtype", "quantization", "tolerance"),
    [(torch.float32, "none", 1e-4), (torch.bfloat16, "none", 0.1), (torch.float32, "int8", 0.05)],
)
def test_native_kernels_stay_near_float32(
    adapters: Mapping[str, Path],
    tiny_checkpoint: Path,
    level: Any,
    dtype: torch.dtype,
    quantization: Quantization,
    tolerance: float,
) -> None:
    exact = Harness(tiny_checkpoint, quantization=quantization, adapters=adapters)
    native = Harness(tiny_checkpoint, dtype, level=level, quantization=quantization, block_size=32, adapters=adapters)
    expected, found = (_together(harness, [*ADAPTERS, None]) for harness in (exact, native))
    for own, others in zip(expected, found, strict=True):
        assert (own - others).square().mean().sqrt() < tolerance * own.std()


def _together(harness: Harness, names: list[str | None]) -> list[torch.Tensor]:
    """Returns the logits after one prompt with each adapter, computed in one step."""
    sequences = [harness.begin(TEXT, adapter=name) for name in names]
    harness.step(*((sequence, len(TEXT.token_ids)) for sequence in sequences))
    return [sequence.logits[0] for sequence in sequences]


@pytest.mark.parametrize(
    ("family", "targets", "message"),
    [
        ("qwen3 moe", r".*\.mlp\.gate", r"got 'model.layers.1.mlp.gate'"),
        ("qwen3", "lm_head", "got 'lm_head'"),
        ("qwen3", "model.embed_tokens", "got 'model.embed_tokens'"),
    ],
)
def test_refuses_other_linears_by_name(tmp_path: Path, family: str, targets: str, message: str) -> None:
    path = make_text_checkpoint(tmp_path / "base", family)
    adapter = make_adapter(tmp_path / "adapter", path, targets=targets)
    with pytest.raises(CheckpointError, match=f"adapter 'a': expected linears of the encoder, .* {message}"):
        Harness(path, adapters={"a": adapter})


def nested(name: str) -> str:
    """The name of a linear in transformers 5."""
    return f"model.{name}" if name.startswith("visual.") else module_of(name)


QWEN = (lambda path, prompt, n: greedy_answer(path, prompt.token_ids, prompt.spans, prompt.images, n), nested)
LLAVA = (lambda path, prompt, n: llava_answer(path, prompt.token_ids, prompt.images, n), str)
ENCODERS: Mapping[str, tuple[Callable[..., Path], Prompt, tuple[Callable[..., Answer], Callable[[str], str]], str]] = {
    "qwen2_vl": (make_checkpoint, IMAGE, QWEN, r"visual\.(blocks\.\d\.(attn\.\w+|mlp\.fc\d)|merger\.mlp\.\d)"),
    "qwen2_5_vl": (partial(make_checkpoint, family="qwen2_5_vl"), IMAGE, QWEN, r"visual\..*(qkv|_proj|mlp\.\d)"),
    "qwen3_vl": (make_qwen3_vl_checkpoint, make_qwen3_prompt(2, 5, (96, 64), 9), (QWEN[0], str), r".*visual\..*_fc\d"),
    "llava": (make_llava_checkpoint, prompt_of(2, 5, LLAVA_IMAGE, 9), LLAVA, r".*(_tower.*(_proj|fc\d)|linear_\d)"),
}
"""Checkpoint, prompt, reference with names in it, and the encoder's linears that an adapter changes, beside queries."""


@pytest.mark.parametrize("level", [None, pytest.param(Level.AVX2, marks=needs_kernels)])
@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_compute_as_merged_weights_do_beside_those_of_the_base(
    tmp_path: Path, family: str, level: Level | None
) -> None:
    """Two sequences have the same image."""
    make, prompt, (reference, name_of), targets = ENCODERS[family]
    path = make(tmp_path / "base")
    targets = rf"({targets}|.*layers\.0\.self_attn\.q_proj)"
    adapter = make_adapter(tmp_path / "adapter", path, targets=targets, module_of=name_of, strength=2)
    harness = Harness(path, level=level, block_size=32 if level else BLOCK_SIZE, adapters={"a": adapter})
    sequences = [harness.begin(prompt, adapter=name) for name in ("a", None)]
    harness.step(*((sequence, len(prompt.token_ids)) for sequence in sequences))
    paths = (merged(tmp_path / "merged", path, adapter, module_of=name_of), path)
    for sequence, expected in zip(sequences, paths, strict=True):
        assert_same(sequence, reference(expected, prompt, 1))


def test_refuses_convolutions_of_the_encoder_by_name(tmp_path: Path, tiny_checkpoint: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", tiny_checkpoint, targets="model.embed_tokens")
    tensors = {f"base_model.model.visual.patch_embed.proj.lora_{which}.weight": torch.ones(4, 4) for which in "AB"}
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"linears of the encoder, .* got 'visual.patch_embed.proj'"):
        Harness(tiny_checkpoint, adapters={"a": adapter})


def test_refuses_linears_of_patches_by_name(tmp_path: Path) -> None:
    path = make_lfm2_vl_checkpoint(tmp_path / "base")
    adapter = make_adapter(tmp_path / "adapter", path, targets=r".*\.patch_embedding")
    with pytest.raises(CheckpointError, match=r"linears of the encoder, .* got '.*\.patch_embedding'"):
        Harness(path, adapters={"a": adapter})


def test_refuses_matrices_of_another_model(tmp_path: Path, tiny_checkpoint: Path) -> None:
    other = make_checkpoint(tmp_path / "other", hidden=128)
    adapter = make_adapter(tmp_path / "adapter", other, targets=PROJECTIONS)
    with pytest.raises(CheckpointError, match=r"'model.layers.0.mlp.down_proj': expected matrices of rank 4 for "):
        Harness(tiny_checkpoint, adapters={"a": adapter})


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (
            {"A.weight": lambda matrix: matrix.index_fill(0, torch.tensor(0), float("nan"))},
            {},
            "expected finite numbers",
        ),
        ({"B.weight": lambda matrix: matrix.to(torch.int32)}, {}, "expected one of BF16, .* got F32, I32"),
        ({"A.weight": lambda matrix: matrix.new_empty(1, 0)}, {}, r"of rank 4, got \[1, 0\]"),
        ({"B.weight": lambda matrix: matrix[None]}, {}, r"of rank 4, got"),
        ({"B.default.weight": Tensor.clone}, {}, "expected one lora_A of '.*_proj', got several"),
        ({}, {"lora_alpha": 1e300}, "expected matrices that their scale leaves finite"),
    ],
)
def test_refuses_hostile_matrices(
    tmp_path: Path, tiny_checkpoint: Path, change: Any, fields: dict[str, Any], message: str
) -> None:
    adapter = make_adapter(tmp_path / "a", tiny_checkpoint, targets=r".*0\.self_attn\.q_proj", **fields)
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, tensor in dict(tensors).items():
        for end, make in change.items():
            if name[:-7].endswith(end[0]):
                tensors[name[: -len("A.weight")] + end] = make(tensor)
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=f"adapter 'a': .*{message}"):
        Harness(tiny_checkpoint, adapters={"a": adapter})


def test_numbers_that_overflow_stay_in_their_sequence(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """The blocks of a sequence that had them are another's afterwards."""
    adapter = make_adapter(tmp_path / "a", tiny_checkpoint, strength=1e30)
    harness = Harness(tiny_checkpoint, adapters={"a": adapter})
    expected = harness.answer(harness.begin(TEXT), NUM_TOKENS)
    harness.end(expected)
    overflowed = harness.answer(harness.begin(TEXT, adapter="a"), NUM_TOKENS)
    assert overflowed.logits[0].isnan().any()
    harness.end(overflowed)
    harness.end(harness.begin(TEXT))  # turns the order of its blocks back
    assert harness.answer(harness.begin(TEXT), NUM_TOKENS).answer == expected.answer
