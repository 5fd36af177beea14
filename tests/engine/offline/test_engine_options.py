"""Engine options through `LLM`: the same as the server's; each reaches the engine or is refused by name."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig, EngineOptions, OfflineOptions
from glimpse.offline import llm
from glimpse.offline.llm import LLM, InputError
from tests.engine.protocol.option_values import OPTIONS, OTHER_VALUES

OFFLINE = [name for name in OPTIONS if name != "max_waiting"]


class LoadingError(Exception):
    """Raised instead of loading an engine."""


def load(monkeypatch: pytest.MonkeyPatch, path: Path, **options: Any) -> EngineConfig:
    """The configuration that `LLM` passes to the engine."""
    configs: list[EngineConfig] = []

    def load_core(config: EngineConfig, **_: object) -> None:
        configs.append(config)
        raise LoadingError

    monkeypatch.setattr(llm, "load_core", load_core)
    with pytest.raises(LoadingError):
        LLM(path, **options)
    return configs[0]


def test_llm_declares_the_engine_s_options() -> None:
    options = get_type_hints(EngineOptions)
    assert {name: options[name] for name in OFFLINE} == get_type_hints(OfflineOptions)
    assert set(OTHER_VALUES) == set(OPTIONS)


def test_defaults_are_the_engine_s(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    config = asdict(load(monkeypatch, tiny_checkpoint))
    defaults = asdict(EngineOptions())
    assert {name: config[name] for name in OFFLINE} == {name: defaults[name] for name in OFFLINE}
    assert config["model_path"] == str(tiny_checkpoint.resolve())


@pytest.mark.parametrize("name", OFFLINE)
def test_option_reaches_the_engine(name: str, monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    value: Any = OTHER_VALUES[name]
    assert getattr(load(monkeypatch, tiny_checkpoint, **{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_model_len", 0, "'max_model_len': expected at least 1, got 0"),
        ("num_threads", "many", "'num_threads': expected an integer, got 'many'"),
        ("gpu_memory_utilization", 1.5, "'gpu_memory_utilization': expected at most 1, got 1.5"),
        ("device", "gpu", "'device': expected 'auto', 'cpu' or 'cuda', got 'gpu'"),
    ],
)
def test_refuses_a_wrong_value_by_name(name: str, value: Any, message: str, tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError) as caught:
        LLM(tiny_checkpoint, **{name: value})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("written", "name", "value"),
    [
        ({"max_num_seqs": 5}, "max_sequences", 5),
        ({"max_num_batched_tokens": "2k"}, "max_batch_tokens", 2000),
        ({"max_model_len": "8K"}, "max_model_len", 8192),
        ({"kv_cache_memory_bytes": "4GiB"}, "kv_cache_bytes", 4 << 30),
        ({"enable_prefix_caching": False}, "prefix_caching", False),
        ({"enforce_eager": True}, "cuda_graphs", False),
        ({"enforce_eager": False}, "cuda_graphs", True),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_max": 4}}, "speculative", "ngram"),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}, "num_speculative_tokens", 2),
        ({"speculative_config": None}, "speculative", "auto"),
        ({"quantization": None}, "quantization", "none"),
        ({"allowed_local_media_path": ""}, "device", "auto"),
    ],
)
def test_understands_vllm_s_names_and_units(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path, written: dict[str, Any], name: str, value: object
) -> None:
    assert getattr(load(monkeypatch, tiny_checkpoint, **written), name) == value


def test_says_once_what_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("glimpse.engine.protocol.other_names._told", set[str]())
    defaults: dict[str, Any] = {"swap_space": 4, "trust_remote_code": False, "runner": "auto", "tokenizer": None}
    needless: dict[str, Any] = {"trust_remote_code": True, "image_token_id": 32000}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load(monkeypatch, tiny_checkpoint, **defaults | needless)
    found = [message.partition(":")[0] for message in caplog.messages]
    assert found.count("trust_remote_code=True changes nothing") == 1
    assert found.count("image_token_id=32000 changes nothing") == 1
    assert not [message for message in found if "runner" in message or "tokenizer" in message]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"max_num_seqs": 5, "max_sequences": 5}, "'max_num_seqs': expected this or max_sequences, got both"),
        (
            {"speculative_config": {"method": "mtp"}, "speculative": "off"},
            "'speculative_config': expected this or speculative, got both",
        ),
        ({"download_dir": "/models"}, "'download_dir': set the environment variable HF_HUB_CACHE, got '/models'"),
        ({"kv_cache_bytes": "much"}, "'kv_cache_bytes': expected a size such as 512MiB, got 'much'"),
        ({"media_cache_bytes": "much"}, "'media_cache_bytes': expected a size such as '512MiB', got 'much'"),
    ],
)
def test_refuses_what_does_not_exist_here(tiny_checkpoint: Path, written: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        LLM(tiny_checkpoint, **written)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["max_waiting", "gpu_memory"])
def test_refuses_an_unknown_option_by_name(name: str, tiny_checkpoint: Path) -> None:
    unknown: Any = {name: 1}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        LLM(tiny_checkpoint, **unknown)
    with pytest.raises(CheckpointError, match="the folder 'gpt2' does not exist; ids of the hub are ORG/NAME"):
        LLM("gpt2")
