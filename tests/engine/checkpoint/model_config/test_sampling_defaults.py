"""The sampling parameters that `generation_config.json` recommends, and which files are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.engine.checkpoint.model_config.sampling_defaults import SamplingDefaults, read_sampling_defaults
from glimpse.engine.errors import CheckpointError

PUBLISHED = {
    # of Qwen2-VL-7B-Instruct
    "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True, "eos_token_id": [151645, 151643],
    "repetition_penalty": 1.0, "temperature": 0.01, "top_p": 0.001, "top_k": 1, "transformers_version": "4.37.0",
}  # fmt: skip


def read(folder: Path, document: Any, choice: str = "auto") -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(document))
    return read_sampling_defaults(choice, folder)


def test_reads_the_checkpoint_s_own_file(tmp_path: Path) -> None:
    assert read_sampling_defaults("auto", tmp_path) == SamplingDefaults(), "there is none"
    own = SamplingDefaults(temperature=0.01, top_p=0.001, top_k=1, repetition_penalty=1.0)
    assert read(tmp_path, PUBLISHED) == own
    assert read(
        tmp_path, PUBLISHED | {"min_p": 0.1, "max_new_tokens": 7, "min_new_tokens": 2, "top_k": None}
    ) == SamplingDefaults(temperature=0.01, top_p=0.001, min_p=0.1, repetition_penalty=1.0, max_tokens=7, min_tokens=2)
    assert read(tmp_path, PUBLISHED | {"do_sample": False}).temperature == 0
    for choice in ("none", "vllm"):
        assert read_sampling_defaults(choice, tmp_path) == SamplingDefaults()
    assert read_sampling_defaults("auto", DEFAULT_MODEL) == SamplingDefaults(temperature=0)


def test_reads_the_file_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    read(tmp_path / "other", {"top_k": 20})
    assert read(tmp_path, PUBLISHED, str(tmp_path / "other")) == SamplingDefaults(top_k=20)
    with pytest.raises(CheckpointError, match="'generation_config': expected auto, none or a folder with a"):
        read_sampling_defaults(str(tmp_path / "none"), tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", -1, "at least 0"),
        ("temperature", "hot", "a number"),
        ("top_p", 1.5, "at most 1"),
        ("top_k", 1.5, "an integer"),
        ("min_p", True, "a number"),
        ("repetition_penalty", 0, "at least 0.01"),
        ("max_new_tokens", 0, "at least 1"),
    ],
)
def test_refuses_an_invalid_value_by_name(tmp_path: Path, name: str, value: Any, expected: str) -> None:
    with pytest.raises(CheckpointError, match=f"generation_config.json: '{name}': expected {expected}, got "):
        read(tmp_path, {name: value})
