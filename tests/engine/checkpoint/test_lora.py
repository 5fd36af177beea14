"""Configurations of LoRA adapters: ranks and scales are PEFT's, and what changes more than linears is refused."""

from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.lora import read_adapters
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from tests.checkpoints.files import write_json

CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "use_dora": None, "modules_to_save": None}


def write(folder: Path, weights: bytes = b"", **fields: Any) -> str:
    folder.mkdir()
    write_json(folder / "adapter_config.json", CONFIG | fields)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return str(folder)


def config(modules: dict[str, str], **options: Any) -> EngineConfig:
    return EngineConfig(model_path="/m", lora_modules=modules, **options)


def test_ranks_and_scales_follow_patterns(tmp_path: Path) -> None:
    patterns: dict[str, Any] = {
        "rank_pattern": {"q_proj": 4, r"layers\.1\.mlp\.up_proj": 2},
        "alpha_pattern": {"k_proj": 24},
    }
    plain = write(tmp_path / "plain", **patterns)
    stabilized = write(tmp_path / "rs", **patterns, use_rslora=True)
    adapter, scaled = read_adapters(config({"plain": plain, "rs": stabilized}))
    name = "model.layers.{}.{}"
    found = {
        module: (adapter.rank(module), adapter.scale(module), scaled.scale(module))
        for module in (name.format(0, "self_attn.q_proj"), name.format(1, "mlp.up_proj"), name.format(0, "mlp.up_proj"))
    }
    assert list(found.values()) == [(4, 4, 8), (2, 8, 16 / 2**0.5), (8, 2, 16 / 8**0.5)]
    assert adapter.scale(name.format(0, "self_attn.k_proj")) == 3
    assert adapter.scale("model.layers.0.self_attn.my_k_proj") == 2  # a pattern begins after a dot


def test_the_digest_tells_configurations_and_weights_apart(tmp_path: Path) -> None:
    folders = {
        "a": write(tmp_path / "a"),
        "same": write(tmp_path / "same"),
        "weights": write(tmp_path / "weights", b"0"),
        "alpha": write(tmp_path / "alpha", lora_alpha=8),
    }
    digests = {adapter.name: adapter.weights()[1] for adapter in read_adapters(config(folders))}
    assert digests["a"] == digests["same"]
    assert len(set(digests.values())) == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "'peft_type': expected 'LORA', got 'IA3'"),
        ({"bias": "all"}, "'bias': expected 'none', got 'all'"),
        ({"modules_to_save": ["lm_head"]}, r"'modules_to_save': expected \[\], got \['lm_head'\]"),
        ({"use_dora": True}, "'use_dora': expected False, got True"),
        ({"target_parameters": ["mlp.experts"]}, "'target_parameters': expected"),
        ({"trainable_token_indices": [3]}, "'trainable_token_indices': expected"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights': expected True .* got 'pissa'"),
        ({"r": None}, "'r': expected finite numbers, got None"),
        ({"r": 0}, "'r': expected at least 1, got 0"),
        ({"r": 2.5}, "'r': expected finite numbers, got 2.5"),
        ({"rank_pattern": {"q": True}}, "'r': expected finite numbers, got True"),
        ({"rank_pattern": []}, r"'rank_pattern': expected an object, got \[\]"),
        ({"lora_alpha": float("inf")}, "'lora_alpha': expected finite numbers, got inf"),
        ({"alpha_pattern": {"q": "8"}}, "'lora_alpha': expected finite numbers, got '8'"),
        ({"alpha_pattern": {"(": 8}}, r"'alpha_pattern': '\(' is no pattern"),
        ({"rank_pattern": {"(a+)+$": 8}}, "expected at most 2 repeats in a pattern, none of groups"),
        ({"rank_pattern": {".*.*.*x": 8}}, "expected at most 2 repeats in a pattern, none of groups"),
        ({"rank_pattern": {"(a|aa)" * 9: 8}}, r"none of groups, and 8 of '\|', got"),
        ({"lora_alpha": 10**400}, "'lora_alpha': expected finite numbers, got 1000"),
        ({"use_rslora": "false"}, "'use_rslora': expected True or False, got 'false'"),
        ({"r": 65}, "'--max-lora-rank': expected at least the 65 of adapter 'a', got 64"),
        ({"rank_pattern": {"q_proj": 99}}, "'--max-lora-rank': expected at least the 99 of adapter 'a'"),
    ],
)
def test_refuses_by_field(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    folder = write(tmp_path / "a", **fields)
    with pytest.raises(CheckpointError, match=message):
        read_adapters(config({"a": folder}))


@pytest.mark.parametrize("document", [b"[" * 100_000, b"[]", b"{", b"\xff"])
def test_refuses_what_is_no_object(tmp_path: Path, document: bytes) -> None:
    folder = write(tmp_path / "a")
    (tmp_path / "a" / "adapter_config.json").write_bytes(document)
    with pytest.raises(CheckpointError, match=r"adapter_config.json( is not valid JSON|: expected an object, got )"):
        read_adapters(config({"a": folder}))


def test_refuses_too_many_missing_files_and_several_nodes(tmp_path: Path) -> None:
    folders = {name: write(tmp_path / name) for name in "abc"}
    with pytest.raises(CheckpointError, match="'--max-loras': expected at least the 3 of --lora-modules, got 2"):
        read_adapters(config(folders, max_loras=2))
    with pytest.raises(CheckpointError, match="'--lora-modules': expected --nnodes 1, got 2"):
        read_adapters(config(folders, tensor_parallel_size=2, nnodes=2))
    (tmp_path / "b" / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"adapter 'b': .* without adapter_model.safetensors"):
        read_adapters(config(folders))
