"""Engine options through `LLM`: the same as the server's; each reaches the engine or is refused by name."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from glimpse.engine import llm
from glimpse.engine.config import EngineConfig, EngineOptions, OfflineOptions
from glimpse.engine.llm import LLM, InputError
from tests.engine.option_values import OPTIONS, OTHER_VALUES

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


def test_the_code_of_a_checkpoint_is_never_run(tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError, match=r"'trust_remote_code': expected False, got True: the code of a checkpoint"):
        LLM(tiny_checkpoint, trust_remote_code=True)


@pytest.mark.parametrize("name", ["max_waiting", "gpu_memory"])
def test_refuses_an_unknown_option_by_name(name: str, tiny_checkpoint: Path) -> None:
    unknown: Any = {name: 1}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        LLM(tiny_checkpoint, **unknown)
